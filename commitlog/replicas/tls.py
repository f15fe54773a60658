"""TLS between a store and its replicas: version 1.3, and both sides show a certificate."""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from commitlog.disk.file_channel import DISK
from commitlog.errors import ReplicationRefused
from commitlog.replicas.certificate_times import FILE_BYTES_MAX, times_of, times_of_file
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.quantities import address_of

GREETING_SECONDS = 10.0
"""How long the other side may take for connecting, the handshake and the greetings."""

_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
"""In the names of TLS's alerts about certificates."""

_HAS_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""


@dataclass(frozen=True)
class Credentials:
    """Files in PEM: this machine's certificate and key, and who has signed those of the others."""

    certificate: Path
    key: Path
    authority: Path

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        """The settings of a connection. The files are read each time: they may be renewed.

        Raises ReplicationRefused, which names the file that can't be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        file = self.authority
        try:
            context.load_verify_locations(file)
            file = self.certificate
            if not times_of_file(file):
                raise ValueError("it holds no certificate")
            file = self.key
            DISK.read_named_file(file, FILE_BYTES_MAX)  # OpenSSL does not say which of two files is not there
            context.load_cert_chain(self.certificate, file, _no_password)
        except (OSError, ValueError) as error:
            raise ReplicationRefused(
                f"{file} can't be used: {error}; give a certificate, its key and the authority, all in PEM"
            ) from error
        return context

    def untimely(self, now_ms: int) -> str:
        """Says why these files can't be used now: expired, or not valid yet; empty if they can.

        A file of authorities can be used as long as one of them can.
        """
        for path, most in ((self.certificate, 1), (self.authority, None)):
            try:
                times = times_of_file(path)[:most]
            except (OSError, ValueError):  # `context` says what is wrong with it
                continue
            whys = [_untimely(begin, end, now_ms) for begin, end in times]
            if whys and all(whys):
                return f"{path} {whys[-1]}"
        return ""


def _no_password() -> str:
    """In place of a question on the terminal, which nobody would answer to a stage."""
    raise ValueError("it has a password; give the key without it, in a file that only this user may read")


def _untimely(begin: datetime, end: datetime, now_ms: int) -> str:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if begin <= now <= end:
        return ""
    if now > end:
        return f"has expired: it was valid until {end:%Y-%m-%d %H:%M:%S} UTC"
    return f"is not valid before {begin:%Y-%m-%d %H:%M:%S} UTC"


def connect(address: str, credentials: Credentials, seconds: float = GREETING_SECONDS) -> ssl.SSLSocket:
    """A connection to a store that listens for replicas.

    Raises IllegalArgument for an address that is none, ReplicationRefused where the certificates do
    not fit, and OSError where nobody is there.
    """
    context = credentials.context(server_side=False)
    host, port = address_of(address)
    plain = socket.create_connection((host, port), timeout=seconds)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLError as error:
        plain.close()
        raise connection_error(address, error, credentials) from error
    except BaseException:
        plain.close()
        raise


def connection_error(
    address: str, error: ssl.SSLError | ConnectionError | EOFError, credentials: Credentials
) -> ReplicationRefused | OSError | EOFError:
    """Makes the error of a connection that was not made.

    It is ReplicationRefused if one side does not take the other's certificate, or has none. Any
    other failure may be the network's fault, such as a bit that has changed on its way: then it is
    the OSError of a lost connection. A store that refuses our certificate may hang up before we
    hear why. So our own certificates are looked at, too.
    """
    now_ms = SYSTEM_CLOCK.wall_ms()
    reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
    is_alert = "ALERT" in reason and any(word in reason for word in _OF_CERTIFICATES)
    why = _expired_there(address, now_ms) if getattr(error, "verify_code", 0) == _HAS_EXPIRED else ""
    why = why or credentials.untimely(now_ms)
    if not (why or isinstance(error, ssl.SSLCertVerificationError) or is_alert):
        is_lost = isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError)
        return error if is_lost else ConnectionError(f"no TLS connection ({reason})")
    return ReplicationRefused(
        f"{address}: no TLS connection ({why or reason}): both sides need a certificate that is valid, made for their "
        f"host, and signed by the authority that the other one has"
    )


def _expired_there(address: str, now_ms: int) -> str:
    """Says since when the other side's certificate has expired; empty if it has not, or is away."""
    with contextlib.suppress(OSError, ValueError):
        pem = ssl.get_server_certificate(address_of(address), timeout=GREETING_SECONDS)
        if why := _untimely(*times_of(pem), now_ms):
            return f"the certificate there {why}"
    return ""

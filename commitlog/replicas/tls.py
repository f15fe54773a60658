"""TLS between a store and its replicas: version 1.3, and both sides show a certificate."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import ReplicationRefused
from commitlog.quantities import address_of

GREETING_SECONDS = 10.0
"""How long the other side may take for connecting, the handshake and the greetings."""

_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
"""In the names of TLS's alerts about certificates."""


@dataclass(frozen=True)
class Credentials:
    """Files in PEM: this machine's certificate and key, and who has signed those of the others."""

    certificate: Path
    key: Path
    authority: Path

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        """The settings of a connection. The files are read each time: they may be renewed.

        Raises ReplicationRefused.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = f"{self.certificate}, {self.key}, {self.authority}"
            raise ReplicationRefused(
                f"one of {files} can't be used: {error}; give a certificate, its key and the authority, all in PEM"
            ) from error
        return context


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
        raise connection_error(address, error) from error
    except BaseException:
        plain.close()
        raise


def connection_error(address: str, error: ssl.SSLError) -> ReplicationRefused | OSError:
    """ReplicationRefused where one side does not take the other's certificate, or has none.

    Anything else may be the network's fault, such as a bit that was turned over on its way: an
    OSError, as of a connection that was lost.
    """
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    is_alert = "ALERT" in reason and any(word in reason for word in _OF_CERTIFICATES)
    if not (isinstance(error, ssl.SSLCertVerificationError) or is_alert):
        return error if isinstance(error, ssl.SSLEOFError) else ConnectionError(f"no TLS connection ({reason})")
    return ReplicationRefused(
        f"{address}: no TLS connection ({reason}): both sides need a certificate that is valid, made for their host, and "
        f"signed by the authority that the other one has"
    )

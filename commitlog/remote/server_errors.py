"""Errors on their way from a server to its client: the same class, the same text.

An error goes as JSON beside Flight's own text, in `extra_info`. An exception that is none of ours
would take the server's traceback along, so a server never lets one through.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import asdict
from typing import Any

import orjson

from commitlog import errors
from commitlog.errors import (
    AccessDenied,
    CertificateRefused,
    CommitLogError,
    CorruptRecord,
    IllegalRow,
    ServerError,
    ServerUnavailable,
)
from commitlog.planning.address import Address
from commitlog.remote.requests import WANTS_TOKEN

TEXT_MAX = 4_000
"""Letters of an error's text: gRPC sends it as a header, and headers have 8 KiB."""


def to_bytes(error: CommitLogError) -> bytes:
    """The error as its client gets it."""
    facts: dict[str, Any] = {"error": type(error).__name__, "text": str(error)[:TEXT_MAX]}
    if isinstance(error, CorruptRecord):
        facts |= {"text": error.reason[:TEXT_MAX], "offset": error.offset, "file": error.file}
    if isinstance(error, IllegalRow):
        facts["row"] = error.row
    if error.rows_sent:
        facts["rows_sent"] = error.rows_sent
    return orjson.dumps(facts)


def from_bytes(data: bytes) -> CommitLogError | None:
    """The error that a server has sent, or None if it is none of ours."""
    try:
        facts = orjson.loads(data)
        kind, text = getattr(errors, facts["error"]), " ".join(str(facts["text"]).split())
        if not issubclass(kind, CommitLogError):
            return None
        if kind is CorruptRecord:
            return CorruptRecord(text, int(facts["offset"]), facts["file"])
        error = IllegalRow(text, int(facts["row"])) if kind is IllegalRow else kind(text)
        error.rows_sent = int(facts.get("rows_sent", 0))
        return error
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


_CERTIFICATE = {
    "certificate has expired": "its certificate has expired, or the clock of this machine is wrong",
    "certificate is not yet valid": "its certificate is not valid yet, or the clock of this machine is wrong",
    "certificate verify failed": "its certificate is of no authority in {ca_file}; without {ca_file}, of no public one",
    "is not in peer certificate": "its certificate is for another host; give the host by a name that is in it",
    "wrong version number": "it does not speak TLS: is it served without a certificate?",
    "empty address list": "{ca_file}, {cert_file} or {key_file}: not PEM, or the key is another's or has a password",
}
"""What gRPC says → what it means, with fields of CredentialNames."""
_ENDED = ("socket closed", "connection reset", "handshake read failed")
"""What gRPC says where a server has ended the connection, which a server that restarts does too."""
_ADDRESS = re.compile(r"(UNKNOWN|UNAVAILABLE|INTERNAL): |ipv[46]:\S+?: ")


def translated(error: Exception, address: Address) -> CommitLogError:
    """Our error for one of PyArrow's: what the server has raised, or why it can't be reached."""
    from pyarrow import flight

    known = from_bytes(getattr(error, "extra_info", b"") or b"")
    if isinstance(known, AccessDenied) and str(known).startswith(WANTS_TOKEN):
        return AccessDenied(f"{address}: {WANTS_TOKEN}: give {address.names.token_file}")
    if known is not None:
        return known
    text = _said(str(error))
    for sign, meaning in _CERTIFICATE.items():
        if sign in text.lower():
            return CertificateRefused(f"{address}: {meaning.format_map(asdict(address.names))}")
    if isinstance(
        error, (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError, OSError)
    ):
        way_out = "is it running, and the address right?"
        if any(sign in text.lower() for sign in _ENDED):
            way_out = _why_ended(address)
        if os.strerror(errno.EMFILE) in text:
            way_out = "close files of this process, or raise its limit (ulimit -n)"
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            way_out = "this process gets no more threads: raise their limit (ulimit -u, pids.max), or free memory"
        return ServerUnavailable(f"{address}: no server answers ({text}); {way_out}")
    return ServerError(f"{address}: not an answer of a commit log's server: {text}")


def _why_ended(address: Address) -> str:
    """Returns a guess why the server ended the connection.

    In TLS 1.3 a server does so after the handshake, and gives no reason.
    """
    if not address.tls:
        return "it may have ended, or want TLS: commitlog+tls://"
    names = address.names
    if address.credentials.cert_file is None:
        return f"it may have ended, or want a certificate of the client: give {names.cert_file} and {names.key_file}"
    return f"it may have ended, or not know the authority of the certificate in {names.cert_file}"


def _said(text: str) -> str:
    """What the system has said: the end of the first line, without gRPC's own context."""
    first = text.partition(". gRPC client debug context")[0].partition(". Client context")[0].strip()
    last = first.splitlines()[0] if first else "no reason is known"
    return _ADDRESS.sub("", last.rpartition("last error: ")[2].rpartition("with message: ")[2])[-200:]

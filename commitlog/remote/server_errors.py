"""Errors on their way from a server to its client: the same class, the same text.

An error goes as JSON beside Flight's own text, in `extra_info`. An exception that is none of ours
would take the server's traceback along, so a server never lets one through.
"""

from __future__ import annotations

from typing import Any

import orjson

from commitlog import errors
from commitlog.errors import (
    CertificateRefused,
    CommitLogError,
    CorruptRecord,
    IllegalRow,
    ServerError,
    ServerUnavailable,
)
from commitlog.planning.address import Address

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
        kind, text = getattr(errors, facts["error"]), str(facts["text"])
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
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of an authority that caFile names, or has expired",
    "Hostname Verification Check failed": "its certificate is for another host",
    "hostname verification": "its certificate is for another host",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: is it served without a certificate?",
    "CERTIFICATE_REQUIRED": "it wants a certificate of the client: give certFile and keyFile",
    "Cannot check peer": "it does not speak TLS: is it served without a certificate?",
    "Invalid cert chain file": "certFile or keyFile is not a certificate with its key in PEM format",
    "Invalid private key": "certFile or keyFile is not a certificate with its key in PEM format",
}


def translated(error: Exception, address: Address) -> CommitLogError:
    """Our error for one of PyArrow's: what the server has raised, or why it can't be reached."""
    from pyarrow import flight

    known = from_bytes(getattr(error, "extra_info", b"") or b"")
    if known is not None:
        return known
    text = str(error)
    for sign, meaning in _CERTIFICATE.items():
        if sign.lower() in text.lower():
            return CertificateRefused(f"{address}: {meaning}")
    if isinstance(
        error, (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError, OSError)
    ):
        return ServerUnavailable(f"{address}: no server answers ({_reason(text)}); is it running, and the port right?")
    return ServerError(f"{address}: not an answer of a commit log's server: {_reason(text)}")


def _reason(text: str) -> str:
    """The end of gRPC's text, which says what the system has said."""
    last = text.partition(". gRPC client debug context")[0].splitlines()[0] if text else "no reason is known"
    return last.rpartition("last error: ")[2].rpartition("with message: ")[2].removeprefix("UNKNOWN: ")[-200:]

"""From when until when a certificate is valid. `ssl` tells it only of valid certificates."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from commitlog.disk.file_channel import DISK

FILE_BYTES_MAX = 16 << 20
"""A larger file holds no certificates or key."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _SHORT_TIME = 0x30, 0xA0, 0x17
"""Tags of DER: a sequence, the version of a certificate, and a time with two digits a year."""
_BEFORE_VALIDITY = 3
"""Serial number, signature algorithm and issuer come before it."""


def times_of_file(path: Path) -> list[tuple[datetime, datetime]]:
    """The begin and the end of each certificate in a file. Raises OSError, ValueError."""
    text = DISK.read_named_file(path, FILE_BYTES_MAX).decode("ascii", "replace")
    return [times_of(each) for each in _PEM.findall(text)]


def times_of(pem: str) -> tuple[datetime, datetime]:
    """The begin and the end of a certificate. Raises ValueError for what is none."""
    try:
        _, certificate = next(_parts(ssl.PEM_cert_to_DER_cert(pem)))
        _, signed = next(_parts(certificate))
        fields = [(tag, body) for tag, body in _parts(signed) if tag != _VERSION]
        tag, validity = fields[_BEFORE_VALIDITY]
        begin, end = _parts(validity)
    except (StopIteration, IndexError) as error:
        raise ValueError("no certificate") from error
    if tag != _SEQUENCE:
        raise ValueError("no certificate")
    return _time(*begin), _time(*end)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the body of each value in DER."""
    at = 0
    while at < len(data):
        tag, count, at = data[at], data[at + 1], at + 2
        if count & 0x80:
            digits = count & 0x7F
            count, at = int.from_bytes(data[at : at + digits]), at + digits
        yield tag, data[at : at + count]
        at += count


def _time(tag: int, text: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == _SHORT_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)

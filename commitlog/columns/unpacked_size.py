"""Finds how many bytes a compressed message takes when it is unpacked.

Compressed data can unpack to a thousand times its size, in honest messages and in hostile ones. So
the size is checked before memory is taken.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

UNPACKED_BYTES_MAX = 128 << 20
"""Compressed messages are unpacked together only while they take no more than this."""
UNPACKED_MESSAGE_BYTES_MAX = (1 << 31) - 1
"""The largest size of a column of text or bytes in Arrow, and of a batch for Spark."""

_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3
"""Fields of Arrow's flatbuffers: `Message.header`, and two of `RecordBatch`."""
_PREFIX = struct.Struct("<iiI")
"""The first bytes of a message: -1, the length of its metadata, and where its table is in them."""
_METADATA = 8
_SHORT, _LONG, _OFFSET = (
    struct.Struct("<H").unpack_from,
    struct.Struct("<i").unpack_from,
    struct.Struct("<I").unpack_from,
)
_NOT_COMPRESSED = -1


class TooMuchUnpacked(Exception):
    """Several messages pass UNPACKED_BYTES_MAX together. The reader must take fewer at a time."""


def check_batch_size(value: pa.Buffer) -> None:
    """Checks the size to which a compressed record batch says that it unpacks.

    Raises ValueError if it is too large or not a size. Raises ArrowException and struct.error if
    the value is not a message.
    """
    message = pa.ipc.read_message(value)  # it checks the metadata
    if message.type != "record batch":
        raise ValueError("the value has no record batch")
    body, size = message.body, 0
    for at, length in _buffers(message.metadata):
        if at < 0 or not 0 <= length <= body.size - at:
            raise ValueError("a buffer lies outside the message")
        if length:
            (declared,) = struct.unpack_from("<q", body, at)
            size += length if declared == _NOT_COMPRESSED else declared
            if declared < _NOT_COMPRESSED:
                raise ValueError(f"a buffer says that it unpacks to {declared} bytes")
    if size > UNPACKED_MESSAGE_BYTES_MAX:
        raise ValueError(
            f"its columns unpack to {size:,} bytes, and a message has at most {UNPACKED_MESSAGE_BYTES_MAX:,}"
        )


def is_compressed(value: pa.Buffer) -> bool:
    """Whether a record batch says that its buffers are compressed.

    Raises ValueError and struct.error if the value is not a message.
    """
    mark, _, table = _PREFIX.unpack_from(value)
    if mark != -1:
        raise ValueError("the value has no record batch")
    return _entry(value, _field(value, _METADATA + table, _HEADER), _COMPRESSION) != 0


def _buffers(metadata: pa.Buffer) -> list[tuple[int, int]]:
    """Where each buffer of a record batch is in the message's body, and its length."""
    message = _unsigned(metadata, 0)
    header = _field(metadata, message, _HEADER)
    vector = _field(metadata, header, _BUFFERS)
    count = _unsigned(metadata, vector)
    found = np.frombuffer(metadata, "<i8", 2 * count, vector + 4).reshape(count, 2)
    return [(at, length) for at, length in found.tolist()]


def _field(metadata: pa.Buffer, table: int, field: int) -> int:
    """Where the table or vector that a field refers to begins."""
    where = table + _entry(metadata, table, field)
    return where + _unsigned(metadata, where)


def _entry(metadata: pa.Buffer, table: int, field: int) -> int:
    """How far behind its table's beginning a field is; 0 if the table does not have it."""
    entries, at = table - _LONG(metadata, table)[0], 4 + 2 * field
    return int(_SHORT(metadata, entries + at)[0]) if at < _SHORT(metadata, entries)[0] else 0


def _unsigned(metadata: pa.Buffer, at: int) -> int:
    return int(_OFFSET(metadata, at)[0])

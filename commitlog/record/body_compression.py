"""Unpacks bodies that RocketMQ's clients compressed (its CompressionType and Compressor classes).

SYSFLAG says whether a body is compressed, and how. Our own producers never compress.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from commitlog.errors import CorruptRecord, MissingCodec, how_to_install
from commitlog.record.record_layout import SysFlag

if TYPE_CHECKING:
    from commitlog.record.record import Record

_KIND_SHIFT = 8
PLAIN_BODY_BYTES_MAX = 4 * 1024 * 1024
"""RocketMQ's clients refuse larger messages before they compress them.

So only a damaged or hostile body can be larger when it is unpacked.
"""
_ZSTD_STEP_BYTES = 64
"""How many bytes zstd gets at a time, because its output can't be limited.

Four bytes of input may become 128 KiB, so one step unpacks to at most 2 MiB.
"""


def plain_body(record: Record, limit: int = PLAIN_BODY_BYTES_MAX) -> bytes:
    """The body as it was sent: unpacked if SYSFLAG says that it is compressed, otherwise as stored.

    `limit` (bytes) is the largest size that a body may be unpacked to, because it may be hostile.
    Raises CorruptRecord if the body can't be unpacked or goes beyond the limit, and MissingCodec if
    LZ4 or ZSTD is needed and not installed.
    """
    if not record.sys_flag & SysFlag.COMPRESSED:
        return record.body
    kind = (record.sys_flag & SysFlag.COMPRESSION_KIND) >> _KIND_SHIFT
    if kind in (0, 3):
        plain, name = _inflate(record, limit), "ZLIB"
    elif kind == 1:
        plain, name = _unpack_lz4(record, limit), "LZ4"
    elif kind == 2:
        plain, name = _unpack_zstd(record, limit), "ZSTD"
    else:
        raise _corrupt(record, f"compression kind {kind} is none of RocketMQ's")
    if len(plain) > limit:
        raise _corrupt(record, f"the {name} body unpacks to more than {limit:,} bytes")
    return plain


def _corrupt(record: Record, reason: str) -> CorruptRecord:
    return CorruptRecord(reason, record.physical_offset)


def _missing(name: str, package: str) -> MissingCodec:
    return MissingCodec(f"the body is compressed with {name}: {how_to_install('rocketmq', package)}")


def _inflate(record: Record, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(record.body, limit + 1)
    except zlib.error as error:
        raise _corrupt(record, f"the ZLIB body does not unpack: {error}") from None
    if not unpacker.eof and len(plain) <= limit:
        raise _corrupt(record, "the ZLIB body is cut short")
    return plain


def _unpack_lz4(record: Record, limit: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("LZ4", "lz4") from None
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        plain: bytes = unpacker.decompress(record.body, max_length=limit + 1)
    except (RuntimeError, EOFError) as error:
        raise _corrupt(record, f"the LZ4 body does not unpack: {error}") from None
    if not unpacker.eof and len(plain) <= limit:
        raise _corrupt(record, "the LZ4 body is cut short")
    return plain


def _unpack_zstd(record: Record, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("ZSTD", "zstandard") from None
    # the decoder allocates a window as large as the frame's header asks for
    unpacker = zstandard.ZstdDecompressor(max_window_size=max(limit, PLAIN_BODY_BYTES_MAX)).decompressobj()
    plain = bytearray()
    try:
        for start in range(0, len(record.body), _ZSTD_STEP_BYTES):
            plain += unpacker.decompress(record.body[start : start + _ZSTD_STEP_BYTES])
            if unpacker.eof or len(plain) > limit:
                return bytes(plain)
    except zstandard.ZstdError as error:
        raise _corrupt(record, f"the ZSTD body does not unpack: {error}") from None
    raise _corrupt(record, "the ZSTD body is cut short")

"""The encoder of one topic's messages without properties: what `Producer.send` calls for nearly every message.

The same bytes as `RecordEncoder.encode`, with everything that stays the same bound in a closure: a part of that class
that has a module to itself. What follows from the time is packed once a millisecond.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from commitlog.record import CRC_MASK, RecordEncoder, crc32, crc_digits

BoundEncoder = Callable[[bytes, int, int, int], bytes]
"""(body, queue offset, physical offset, born and store timestamp in ms) → record."""


def bind(encoder: RecordEncoder, topic: bytes) -> tuple[BoundEncoder, int]:
    """A BoundEncoder, and TOTALSIZE less the body's length (bytes).

    The encoder checks nothing: body and numbers must be such as `RecordEncoder.encode` takes. Raises IllegalTopic.
    """
    overhead = encoder.size(topic, b"", b"")  # makes it learn the shape, which is then taken from it
    tail, magic, queue = encoder._tail, encoder._magic, encoder._queue
    sys_flag, born_host, store_host = encoder._sys_flag, encoder._born, encoder._store
    layout = struct.Struct(f">4sq{len(born_host)}sq{len(store_host)}s12x")  # SYSFLAG to PREPARED_TX_OFFSET
    pack_times, pack = layout.pack, struct.Struct(f">i4si8sqq{layout.size}si").pack
    mask, crc_of, join = CRC_MASK, crc32, b"".join
    at, times = -1, b""

    def encode(body: bytes, queue_offset: int, physical_offset: int, now: int) -> bytes:
        nonlocal at, times
        if now != at:
            times = pack_times(sys_flag, now, born_host, now, store_host)
            at = now
        length = len(body)
        crc = crc_of(body) & mask
        head = pack(overhead + length, magic, crc, queue, queue_offset, physical_offset, times, length)
        return join((head, body, tail))

    if not encoder.append_crc:
        return encode, overhead
    low, middle, high = crc_digits()

    def encode_with_crc(body: bytes, queue_offset: int, physical_offset: int, now: int) -> bytes:
        nonlocal at, times
        if now != at:
            times = pack_times(sys_flag, now, born_host, now, store_host)
            at = now
        length = len(body)
        crc = crc_of(body) & mask
        head = pack(overhead + length, magic, crc, queue, queue_offset, physical_offset, times, length)
        record = join((head, body, tail))
        crc = crc_of(record) & mask
        return join((record, low[crc % 10_000], middle[crc // 10_000 % 10_000], high[crc // 100_000_000]))

    return encode_with_crc, overhead

"""The encoder of one topic and one property string: what `Producer.send` calls for every message.

The same bytes as `RecordEncoder.encode`, with everything that stays the same bound in a closure: a part of that class
that has a module to itself.
"""

from __future__ import annotations

from collections.abc import Callable

from commitlog.record import CRC_MASK, RecordEncoder, crc32, crc_digits

BoundEncoder = Callable[[bytes, int, int, int, int], bytes]
"""(body, queue offset, physical offset, born timestamp, store timestamp) → record; timestamps in ms."""


def bind(encoder: RecordEncoder, topic: bytes, properties: bytes) -> tuple[BoundEncoder, int]:
    """A BoundEncoder, and TOTALSIZE less the body's length (bytes).

    The encoder checks nothing: body and numbers must be such as `RecordEncoder.encode` takes. Raises IllegalTopic,
    PropertiesTooLarge.
    """
    overhead = encoder.size(topic, b"", properties)  # makes it learn the shape, which is then taken from it
    tail, magic, pack = encoder._tail, encoder._magic, encoder._pack
    queue, sys_flag, born_host, store_host = encoder._queue, encoder._sys_flag, encoder._born, encoder._store
    mask, crc_of = CRC_MASK, crc32

    def encode(body: bytes, queue_offset: int, physical_offset: int, born: int, stored: int) -> bytes:
        length = len(body)
        head = pack(
            overhead + length, magic, crc_of(body) & mask, queue, queue_offset, physical_offset, sys_flag,
            born, born_host, stored, store_host, length,
        )  # fmt: skip
        return head + body + tail

    if not encoder.append_crc:
        return encode, overhead
    low, high = crc_digits()

    def encode_with_crc(body: bytes, queue_offset: int, physical_offset: int, born: int, stored: int) -> bytes:
        length = len(body)
        head = pack(
            overhead + length, magic, crc_of(body) & mask, queue, queue_offset, physical_offset, sys_flag,
            born, born_host, stored, store_host, length,
        )  # fmt: skip
        record = head + body + tail
        crc = crc_of(record) & mask
        return record + low[crc % 100_000] + high[crc // 100_000]

    return encode_with_crc, overhead

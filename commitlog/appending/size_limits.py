"""How large a message and a batch may be."""

from __future__ import annotations

from commitlog.errors import MessageTooLarge
from commitlog.record.batch import batch_size, largest_record
from commitlog.record.bodies import Bodies
from commitlog.record.record import RecordEncoder
from commitlog.record.record_layout import BLANK_BYTES

_RECORD_BYTES_MAX = 4 * 1024 * 1024


def record_bytes_max(segment_bytes: int) -> int:
    """The size of the largest record, in a store with such segments."""
    return min(_RECORD_BYTES_MAX, segment_bytes // 4)


def too_large(size: int, segment_bytes: int) -> MessageTooLarge:
    """The error for a record of `size` bytes."""
    most = record_bytes_max(segment_bytes)
    more = "" if most == _RECORD_BYTES_MAX else ", or make a store with larger segments"
    return MessageTooLarge(
        f"MESSAGE_SIZE_EXCEEDED: a record of {size:,} bytes, this store takes {most:,}: split the value{more}"
    )


def checked_batch_size(
    encoder: RecordEncoder, topic: bytes, bodies: Bodies, properties: bytes | list[bytes], segment_bytes: int
) -> int:
    """The size of a batch in bytes. A batch is in one segment.

    Raises MessageTooLarge for the batch or one of its messages.
    """
    size = batch_size(encoder, topic, bodies, properties)
    largest = largest_record(encoder, topic, bodies, properties)
    if largest > record_bytes_max(segment_bytes):
        raise too_large(largest, segment_bytes)
    if size > segment_bytes - BLANK_BYTES:
        raise MessageTooLarge(
            f"MESSAGE_SIZE_EXCEEDED: a batch of {size:,} bytes, a segment of this store has {segment_bytes:,}: "
            f"send smaller batches"
        )
    return size

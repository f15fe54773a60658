"""Encodes many records at once into the write buffer.

A batch is RocketMQ's batch put: whole records one after the other in one segment, with consecutive
queue offsets and one store timestamp. If all bodies have one size and all records have the same
properties, every record is a copy of the first one, and numpy replaces five fields column by
column. Otherwise numpy makes the heads, and they are joined with bodies and tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.native import core
from commitlog.record.bodies import Bodies
from commitlog.record.byte_ranges import Ints, crcs_of_rows
from commitlog.record.crc import CRC_MASK, crc32, five_digits
from commitlog.record.record import RecordEncoder
from commitlog.record.record_layout import (
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_END,
    CRC_PROPERTY_START,
    head_dtype,
)

_BLOCK_BYTES = 256 * 1024
"""Records are made in blocks of about this size, which stay in the second-level cache."""


def batch_size(
    encoder: RecordEncoder, topic: bytes, bodies: Bodies | Sequence[bytes], properties: bytes | Sequence[bytes]
) -> int:
    """The bytes that `encode_batch` will write for the same arguments.

    Raises what Bodies.of and the encoder raise.
    """
    made = Bodies.of(bodies)
    if isinstance(properties, bytes):
        return made.total_bytes + made.count * encoder.size(topic, b"", properties)
    return made.total_bytes + made.count * encoder.size(topic, b"", b"") + sum(map(len, properties))


def largest_record(encoder: RecordEncoder, topic: bytes, bodies: Bodies, properties: bytes | Sequence[bytes]) -> int:
    """The bytes of the largest record that `encode_batch` will write.

    For an empty batch these are the bytes of a record with an empty body.
    """
    if isinstance(properties, bytes):
        return encoder.size(topic, b"", properties) + bodies.largest
    return encoder.size(topic, b"", b"") + int((bodies.sizes + _lengths(properties)).max(initial=0))


def _lengths(items: Sequence[bytes]) -> Ints:
    return np.fromiter(map(len, items), np.int64, len(items))


def encode_batch(
    encoder: RecordEncoder,
    topic: bytes,
    bodies: Bodies | Sequence[bytes] | npt.NDArray[np.uint8] | Any,
    properties: bytes | Sequence[bytes],
    first_queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    store_timestamp: int,
    out: memoryview,
    template: object = None,
) -> Ints:
    """Writes one record for each body to the start of `out`, and returns their physical offsets.

    `bodies` is what Bodies.of takes. `properties` are those of every record, or a sequence with
    those of each. Queue offsets count from `first_queue_offset`, physical offsets begin with
    `physical_offset`, timestamps are ms. `out` is writable and holds at least `batch_size` bytes;
    nothing beyond them is touched. `template` is what the native core makes records from; without
    it Python makes them. Raises ValueError if `out` is smaller, and what Bodies.of and
    RecordEncoder.encode raise. The bytes in `out` are of no use then.
    """
    made = Bodies.of(bodies)
    total = batch_size(encoder, topic, made, properties)
    if len(out) < total:
        raise ValueError(f"a batch of {total:,} bytes does not fit into {len(out):,}")
    if made.count == 0:
        return np.empty(0, np.int64)
    if core is not None and template is not None:
        places = np.empty(made.count, np.int64)
        own = properties if isinstance(properties, bytes) else list(properties)
        numbers = first_queue_offset, physical_offset, born_timestamp, store_timestamp
        written = core.encode_batch(template, *made.lent(), own, *numbers, out, places)
        if written != total:
            raise ValueError(f"a batch of {total:,} bytes was changed while it was sent, to {written:,} bytes")
        return places
    # the encoder makes the first record; the others are made from its bytes
    same, tails = (
        (properties, None) if isinstance(properties, bytes) else (properties[0], encoder.tails(topic, properties))
    )
    first = encoder.encode(
        topic, made.first(), same, first_queue_offset, physical_offset, born_timestamp, store_timestamp
    )
    writer = _Writer(encoder, first, len(made.first()), first_queue_offset, physical_offset)
    step = max(_BLOCK_BYTES * made.count // total, 1)
    if tails is None and made.size is not None:
        offsets = physical_offset + np.arange(made.count) * len(first)
        for start in range(0, made.count, step):
            writer.write_equal(made, start, min(start + step, made.count), out)
    else:
        overhead = encoder.size(topic, b"", same)
        sizes = made.sizes + (overhead if tails is None else _lengths(tails) + (overhead - len(tails[0])))
        ends = physical_offset + np.cumsum(sizes)
        offsets = ends - sizes
        for start in range(0, made.count, step):
            stop = min(start + step, made.count)
            part = [writer.tail] * (stop - start) if tails is None else tails[start:stop]
            writer.write_mixed(made, start, stop, sizes[start:stop], offsets[start:stop], part, out)
    return offsets


class _Writer:
    """Makes the records of a batch from its first one, and replaces the fields that differ."""

    def __init__(
        self, encoder: RecordEncoder, first: bytes, body_bytes: int, queue_offset: int, physical_offset: int
    ) -> None:
        self.append_crc = encoder.append_crc
        self.queue_offset, self.physical_offset = queue_offset, physical_offset
        head_bytes = encoder.head_bytes
        self.head_bytes, self.body_bytes = head_bytes, body_bytes
        crc_bytes = CRC_PROPERTY_BYTES if self.append_crc else 0
        tail_bytes = len(first) - head_bytes - body_bytes - crc_bytes
        self.head = np.frombuffer(first, f"V{head_bytes}", 1)
        self.tail = first[head_bytes + body_bytes : len(first) - crc_bytes]
        self.size = len(first)
        self.head_type = head_dtype(encoder.host_flags)
        columns: list[tuple[str, Any]] = [("head", self.head_type), ("body", f"V{body_bytes}")]
        columns += [("tail", f"V{tail_bytes}"), *([("crc", CRC_PROPERTY)] if self.append_crc else [])]
        self.record = np.frombuffer(first, f"V{self.size}", 1)
        self.record_type = np.dtype(columns)
        assert self.record_type.itemsize == self.size

    def write_equal(self, bodies: Bodies, start: int, stop: int, out: memoryview) -> None:
        """Writes the records [start, stop) of a batch whose bodies have one size."""
        count, at = stop - start, start * self.size
        np.ndarray((count,), self.record.dtype, out, at)[:] = self.record
        rows = np.ndarray((count,), self.record_type, out, at)
        head, body = rows["head"], bodies.rows(start, stop)
        index = np.arange(start, stop)
        head["queue_offset"] = index + self.queue_offset
        head["physical_offset"] = index * self.size + self.physical_offset
        if body is not None:
            rows["body"] = body
            # of what was written: the caller's thread may change its array meanwhile
            head["body_crc"] = crcs_of_rows(out, at + self.head_bytes, self.size, self.body_bytes, count)
        if self.append_crc:
            crcs = crcs_of_rows(out, at, self.size, self.size - CRC_PROPERTY_BYTES, count)
            digits = five_digits()
            rows["crc"]["low"] = digits[crcs % 100_000]
            rows["crc"]["high"] = digits[crcs // 100_000]

    def write_mixed(
        self, bodies: Bodies, start: int, stop: int, sizes: Ints, offsets: Ints, tails: list[bytes], out: memoryview
    ) -> None:
        """Writes the records [start, stop) of a batch whose bodies or tails differ in size."""
        count = stop - start
        heads = np.empty(count, self.head.dtype)
        heads[:] = self.head
        columns = heads.view(self.head_type)
        columns["total_size"] = sizes
        items = bodies.items(start, stop)
        columns["body_crc"] = np.fromiter(map(crc32, items), np.uint32, count) & np.uint32(CRC_MASK)
        columns["queue_offset"] = np.arange(start, stop) + self.queue_offset
        columns["physical_offset"] = offsets
        columns["body_bytes"] = bodies.sizes[start:stop]
        pieces = 4 if self.append_crc else 3
        parts: list[bytes] = [b""] * (count * pieces)
        parts[0::pieces] = head_items = heads.tolist()
        parts[1::pieces] = items
        parts[2::pieces] = tails
        if self.append_crc:
            running = map(crc32, items, map(crc32, head_items))
            crcs = np.fromiter(map(crc32, tails, running), np.uint32, count) & np.uint32(CRC_MASK)
            parts[3::pieces] = _crc_properties(crcs)
        at = int(offsets[0]) - self.physical_offset
        made = b"".join(parts)
        out[at : at + len(made)] = made


def _crc_properties(crcs: npt.NDArray[np.uint32]) -> list[bytes]:
    digits = five_digits()
    rows = np.empty(len(crcs), CRC_PROPERTY)
    rows["start"], rows["end"] = CRC_PROPERTY_START, ord(CRC_PROPERTY_END)
    rows["low"], rows["high"] = digits[crcs % 100_000], digits[crcs // 100_000]
    items: list[bytes] = rows.view(f"V{CRC_PROPERTY_BYTES}").tolist()
    return items

"""Records as columns: gathered from a segment's bytes by numpy, and checked column by column.

Which records are good is exactly what `record.decode` says of each: one that fails here is given to it for
the reason.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.errors import CorruptRecord
from commitlog.properties import decode_properties, tags_code
from commitlog.record import (
    BLANK_BYTES,
    CRC_MASK,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_START,
    FIXED_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SysFlag,
    Transaction,
    crc32,
    decode,
    topic_fault,
)

Source = bytes | bytearray | memoryview | mmap.mmap
"""Bytes to read from; a memoryview must be of plain bytes."""
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]

_HEAD = np.dtype(
    [
        ("total_size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
_HEAD_BYTES = 48
assert _HEAD.itemsize == _HEAD_BYTES
size_and_magic = struct.Struct(">iI").unpack_from

_BLOCK_BYTES = 1 << 20
"""Records are copied out for their CRCs in blocks of this size, which stay in the cache."""
_GATHER_BYTES_MAX = 4096
"""Larger ones are not copied out: their CRC costs more than a slice."""
_SAME_BYTES_MAX = 8 << 20
"""Property strings are compared with each other up to so many bytes in all."""
_TOPIC_ROUNDS = 64
"""Topics of a table that are found by numpy, one round each; beyond that one record at a time."""


class Stop(Enum):
    """Why a scan ended where it did."""

    END = "end"
    """All bytes up to `end` are records."""
    FULL = "full"
    """The table is full; go on at `stop_position`."""
    BLANK = "blank"
    """The segment ends here; the log goes on in the next one."""
    ZERO = "zero"
    """Nothing was written from here on."""
    PARTIAL = "partial"
    """A record that begins well and reaches beyond `end`: it may not be read yet, or its size is damaged."""
    CORRUPT = "corrupt"
    """No record of its place; `reason` says why."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Good records in log order, as columns of int64 that own their memory; where it stopped, and why.

    `positions` are bytes in the buffer that was scanned, `base_offset` is the physical offset of its first
    byte. `topics[topic_index[i]]` is the topic of record i. Timestamps are ms. `tags_codes` are the consume
    queue's.
    """

    base_offset: int
    positions: Ints
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Ints
    flags: Ints
    sys_flags: Ints
    born_timestamps: Ints
    store_timestamps: Ints
    body_positions: Ints
    body_sizes: Ints
    properties_positions: Ints
    properties_sizes: Ints
    topic_index: Ints
    topics: list[str]
    tags_codes: Ints
    stop: Stop
    stop_position: int
    reason: str

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def physical_offsets(self) -> Ints:
        return self.positions + self.base_offset

    @property
    def in_queue(self) -> Mask:
        """Which records get a consume queue entry: all but PREPARED and ROLLBACK."""
        # both have bit 0x4, the other two have not
        return (self.sys_flags & Transaction.PREPARED) == 0


def first_false(mask: Mask) -> int:
    """Index of the first False, the length if there is none."""
    return len(mask) if mask.all() else int(mask.argmin())


class RecordGatherer:
    """A buffer and what its place demands of the records in it."""

    def __init__(
        self, buffer: Source, base_offset: int, queue_id: int | None, check_crc: bool, require_crc: bool
    ) -> None:
        self.buffer = buffer
        self.view = np.frombuffer(buffer, np.uint8)
        self.base_offset, self.queue_id = base_offset, queue_id
        self.check_crc, self.require_crc = check_crc, require_crc

    def gather(self, dtype: str, positions: Ints) -> npt.NDArray[Any]:
        """Items at any positions, aligned or not: taken from an overlapping view with a stride of one byte."""
        width = np.dtype(dtype).itemsize
        if not len(positions) or not width:
            return np.empty(len(positions), dtype)
        windows = np.ndarray((len(self.view) - width + 1,), dtype, self.buffer, 0, (1,))
        return windows[positions]

    def ints(self, dtype: str, positions: Ints) -> Ints:
        return self.gather(dtype, positions).astype(np.int64)

    def tabulate(self, positions: Ints, sizes: Ints) -> RecordTable:
        """The table up to the first bad record (CORRUPT), or of all (END). All places are within the buffer."""
        columns: Columns = {"positions": positions, "sizes": sizes}
        for check in (self._heads, self._bodies, self._topic_sizes, self._properties):
            _shorten(columns, check(columns))
        topics, good = self._topics(columns)
        _shorten(columns, good)
        columns["has_crc"] = self._has_crc(columns)
        if self.check_crc:
            _shorten(columns, self._crcs(columns))
        columns["tags_codes"] = self._tags_codes(columns)
        count = len(columns["positions"])
        stop, reason = Stop.END, ""
        position = int(positions[-1] + sizes[-1]) if len(positions) else 0
        if count < len(positions):
            position = int(positions[count])
            stop, reason = Stop.CORRUPT, self.fault(position, position + int(sizes[count]))
        return RecordTable(
            base_offset=self.base_offset,
            topics=topics[: int(columns["topic_index"].max(initial=-1)) + 1],
            stop=stop,
            stop_position=position,
            reason=reason,
            **{name: columns[name] for name in RecordTable.__slots__ if name in columns},
        )

    def fault(self, position: int, end: int) -> str:
        """Why the bytes in [position, end) are no record, in decode's words."""
        try:
            decode(
                self.view.data,
                position,
                limit=end,
                physical_offset=self.base_offset + position,
                queue_id=self.queue_id,
                check_crc=self.check_crc,
                require_crc=self.require_crc,
            )
        except CorruptRecord as error:
            return error.reason
        return "its size is not the one that was expected"

    def why_stopped(self, position: int, end: int, segment_end: int | None) -> tuple[Stop, str]:
        """What is at a position where the walk ended. END where a record is, or nothing is left."""
        left = end - position
        if left == 0:
            return Stop.END, ""
        if left < BLANK_BYTES:
            return Stop.PARTIAL, f"{left} bytes are too few for a record"
        size, magic = size_and_magic(self.buffer, position)
        if magic == MAGIC_BLANK:
            if size >= BLANK_BYTES and segment_end in (None, position + size):
                return Stop.BLANK, ""
            return Stop.CORRUPT, f"BLANK of {size} bytes does not end with its segment"
        if size == 0 and magic == 0:
            return Stop.ZERO, ""
        if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN:
            if size <= left:
                return Stop.END, ""
            if left < _HEAD_BYTES or self._begins_well(position):
                return Stop.PARTIAL, f"size {size:,} with {left:,} bytes left"
        return Stop.CORRUPT, self.fault(position, end)

    def _begins_well(self, position: int) -> bool:
        head = self.view[position : position + _HEAD_BYTES].view(_HEAD)[0]
        offset_fits = int(head["physical_offset"]) == self.base_offset + position
        return offset_fits and (self.queue_id is None or int(head["queue_id"]) == self.queue_id)

    def _heads(self, columns: Columns) -> Mask:
        positions, sizes = columns["positions"], columns["sizes"]
        heads = self.gather(f"V{_HEAD_BYTES}", positions).view(_HEAD)
        columns["magic"] = magic = heads["magic"].astype(np.int64)
        for name, field in (
            ("queue_ids", "queue_id"),
            ("queue_offsets", "queue_offset"),
            ("flags", "flag"),
            ("sys_flags", "sys_flag"),
            ("born_timestamps", "born_timestamp"),
            ("body_crcs", "body_crc"),
        ):
            columns[name] = heads[field].astype(np.int64)
        sys_flags = columns["sys_flags"]
        # 0x10 and 0x20 are 12 bytes more each, for the longer address
        columns["born_bytes"] = 8 + ((sys_flags & SysFlag.BORN_HOST_V6) >> 4) * 12
        columns["hosts_bytes"] = columns["born_bytes"] + 8 + ((sys_flags & SysFlag.STORE_HOST_V6) >> 5) * 12
        columns["fixed"] = FIXED_BYTES + columns["hosts_bytes"] + (magic == MAGIC_V2)
        good = (magic == MAGIC_V1) | (magic == MAGIC_V2)
        good &= heads["total_size"] == sizes
        good &= heads["physical_offset"] == positions + self.base_offset
        good &= sizes >= columns["fixed"]
        if self.queue_id is not None:
            good &= columns["queue_ids"] == self.queue_id
        return good

    def _bodies(self, columns: Columns) -> Mask:
        positions = columns["positions"]
        columns["store_timestamps"] = self.ints(">i8", positions + 48 + columns["born_bytes"])
        columns["body_positions"] = at = positions + 72 + columns["hosts_bytes"]
        columns["body_sizes"] = sizes = self.ints(">i4", at - 4)
        return (sizes >= 0) & (sizes <= columns["sizes"] - columns["fixed"])

    def _topic_sizes(self, columns: Columns) -> Mask:
        at = columns["body_positions"] + columns["body_sizes"]
        second = columns["magic"] == MAGIC_V2
        sizes = self.ints("i1", at)
        if second.any():
            sizes[second] = self.ints(">i2", at[second])
        columns["topic_positions"], columns["topic_sizes"] = at + 1 + second, sizes
        room = columns["sizes"] - columns["fixed"] - columns["body_sizes"]
        return (sizes > 0) & (sizes <= room)

    def _properties(self, columns: Columns) -> Mask:
        at = columns["topic_positions"] + columns["topic_sizes"]
        columns["properties_positions"] = at + 2
        columns["properties_sizes"] = sizes = self.ints(">i2", at)
        return sizes == columns["positions"] + columns["sizes"] - at - 2

    def _topics(self, columns: Columns) -> tuple[list[str], Mask]:
        """Numbers the topics in order of appearance; one that can't be a topic makes its records bad."""
        positions, sizes = columns["topic_positions"], columns["topic_sizes"]
        columns["topic_index"] = index = np.full(len(positions), -1, np.int64)
        good = np.ones(len(positions), np.bool_)
        topics: list[str] = []
        first = 0
        while first < len(index):
            if len(topics) < _TOPIC_ROUNDS:
                left = np.flatnonzero((index < 0) & (sizes == sizes[first]))
                names = self.gather(f"S{sizes[first]}", positions[left])
                # all of one length, so it does no harm that numpy leaves zeros at the end out
                same = left[names == names[0]]
            else:
                same = np.array([first])
            start = int(positions[first])
            name = self.view[start : start + int(sizes[first])].tobytes()
            index[same], good[same] = len(topics), topic_fault(name) is None
            topics.append(name.decode(errors="replace"))
            first += first_false(index[first:] >= 0)
        return topics, good

    # ---- CRCs --------------------------------------------------------------------------------------------

    def _crcs(self, columns: Columns) -> Mask:
        good: Mask = self._crc_of(columns["body_positions"], columns["body_sizes"]) == columns["body_crcs"]
        has = columns["has_crc"]
        if self.require_crc:
            good &= has
        index = np.flatnonzero(has)
        positions, sizes = columns["positions"][index], columns["sizes"][index]
        crcs = self._crc_of(positions, sizes - CRC_PROPERTY_BYTES)
        ends, digits = positions + sizes, five_digits()
        good[index] &= self.gather("S5", ends - 11) == digits[crcs % 100_000]
        good[index] &= self.gather("S5", ends - 6) == digits[crcs // 100_000]
        return good

    def _has_crc(self, columns: Columns) -> Mask:
        """Which records end with the CRC property."""
        ends = columns["positions"] + columns["sizes"]
        # a record without properties is at least as long as the CRC property: no place is outside the buffer
        has: Mask = columns["properties_sizes"] >= CRC_PROPERTY_BYTES
        has &= self.gather("S9", ends - CRC_PROPERTY_BYTES) == CRC_PROPERTY_START
        has &= self.gather("u1", ends - 1) == 2
        return has

    def _crc_of(self, positions: Ints, sizes: Ints) -> Ints:
        """Masked CRC-32 of byte ranges."""
        count = len(positions)
        if not count:
            return np.empty(0, np.int64)
        size = int(sizes[0])
        if 0 < size <= _GATHER_BYTES_MAX and (sizes == size).all():
            crcs = np.empty(count, np.int64)
            step = max(_BLOCK_BYTES // size, 1)
            for at in range(0, count, step):
                # numpy makes bytes objects of void items faster than Python slices them
                block = self.gather(f"V{size}", positions[at : at + step]).tolist()
                crcs[at : at + step] = list(map(crc32, block))
            return crcs & CRC_MASK
        bounds = zip(positions.tolist(), (positions + sizes).tolist(), strict=True)
        source = self.view.data
        return np.array([crc32(source[start:end]) for start, end in bounds], np.int64) & CRC_MASK

    # ---- tags --------------------------------------------------------------------------------------------

    def _tags_codes(self, columns: Columns) -> Ints:
        """The tags code of each record; 0 where there are no TAGS."""
        positions = columns["properties_positions"]
        sizes = columns["properties_sizes"] - CRC_PROPERTY_BYTES * columns["has_crc"]
        codes = np.zeros(len(positions), np.int64)
        index = np.flatnonzero(sizes)
        if not len(index):
            return codes
        positions, sizes = positions[index], sizes[index]
        size = int(sizes[0])
        if len(index) * size <= _SAME_BYTES_MAX and (sizes == size).all():
            strings = self.gather(f"S{size}", positions)
            if (strings == strings[0]).all():  # as a batch has them
                start = int(positions[0])
                codes[index] = _tags_code_of(self.view[start : start + size].tobytes(), 0, size)
                return codes
        codes[index] = self._many_tags_codes(positions, positions + sizes)
        return codes

    def _many_tags_codes(self, starts: Ints, ends: Ints) -> list[int]:
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        if isinstance(self.buffer, bytes | bytearray | mmap.mmap):
            source = self.buffer
            return [_tags_code_of(source, start, end) for start, end in bounds]
        source_view = self.view.data
        return [_tags_code_of(bytes(source_view[start:end]), 0, end - start) for start, end in bounds]


def _shorten(columns: Columns, good: Mask) -> None:
    """Drops the first bad record and all that follow."""
    count = first_false(good)
    if count < len(good):
        for name, column in columns.items():
            columns[name] = column[:count]


def _tags_code_of(source: bytes | bytearray | mmap.mmap, start: int, end: int) -> int:
    """The tags code of the property string in [start, end)."""
    at = source.rfind(b"TAGS\x01", start, end)
    if at < 0:
        return 0
    value = at + 5
    stop = source.find(b"\x02", value, end)
    if stop > value and (at == start or source[at - 1] == 2):
        return _code_of_bytes(source[value:stop])
    # an empty value, no last separator, or a name that only ends like this one: rare, so as decode does it
    return tags_code(decode_properties(source[start:end]).get("TAGS"))


@lru_cache(maxsize=4096)
def _code_of_bytes(tags: bytes) -> int:
    return tags_code(tags.decode(errors="replace"))


@lru_cache(maxsize=1)
def five_digits() -> npt.NDArray[np.bytes_]:
    """0 to 99,999 as five digits, the least significant first: halves of the CRC property's digits."""
    numbers = np.arange(100_000)
    powers = 10 ** np.arange(5)
    return (48 + numbers[:, None] // powers % 10).astype(np.uint8).view("S5").ravel()

"""Records as columns: numpy gathers them from a segment's bytes and checks them column by column.

A record is good here exactly if `record.decode` accepts it. If a record fails here, `decode` gives
the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.errors import CorruptRecord
from commitlog.native import core
from commitlog.record.byte_ranges import Ints, Mask, crcs_of, first_false, gather
from commitlog.record.crc import five_digits
from commitlog.record.record import decode, topic_fault
from commitlog.record.record_layout import (
    BLANK_BYTES,
    BODY_LENGTH_BYTES,
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_END,
    CRC_PROPERTY_START,
    HEAD_V4_BYTES,
    HOST_V6_MORE,
    LEAD,
    LEAD_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    STORE_TIMESTAMP_AT,
    TAIL_BYTES_MIN,
    V1_TOPIC_LENGTH_BYTES,
    Buffer,
    SysFlag,
    Transaction,
    size_and_magic,
)
from commitlog.record.tags_column import tags_codes_of

Columns = dict[str, npt.NDArray[Any]]

_BORN_V6_BIT, _STORE_V6_BIT = (flag.bit_length() - 1 for flag in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6))
_TOPIC_ROUNDS = 64
"""numpy finds this number of topics of a table, one in each round.

The records of further topics are taken one by one.
"""


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
    """A record begins well and reaches beyond `end`.

    It is not complete yet, or its size is damaged.
    """
    CORRUPT = "corrupt"
    """The bytes are not a record of this place. `reason` says why."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The good records of a scan as columns, where the scan stopped, and why.

    The records are in log order; the columns are int64 and own their memory. `positions` are bytes
    in the buffer that was scanned, and `buffer_start` is the physical offset of its first byte.
    `topics[topic_index[i]]` is the topic of record i. Timestamps are ms. `tags_codes` are those of
    the consume queue.
    """

    buffer_start: int
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
    has_crc: Mask
    stop: Stop
    stop_position: int
    reason: str

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def physical_offsets(self) -> Ints:
        return self.positions + self.buffer_start

    def rows(self, begin: int, end: int) -> RecordTable:
        """The records of these numbers. Nothing is copied."""
        columns = {name: getattr(self, name)[begin:end] for name in _COLUMNS}
        return replace(self, **columns)

    @property
    def in_queue(self) -> Mask:
        """Which records get a consume queue entry: all but PREPARED and ROLLBACK."""
        # both have bit 0x4, and the other two kinds do not
        mask: Mask = (self.sys_flags & Transaction.PREPARED) == 0
        return mask


_COLUMNS = tuple(field.name for field in fields(RecordTable) if field.type in ("Ints", "Mask"))
"""The columns that the native core fills, in its order."""


def empty_columns(count: int) -> Ints:
    """Room for the columns of so many records, which the native core fills.

    A few numbers lie between two columns. Without them, the same row of all columns would often
    have the same place in a processor's cache.
    """
    return np.empty((len(_COLUMNS), count + 8), np.int64)


class RecordGatherer:
    """Makes a table of a buffer's records. Its fields are what every record there must have.

    `buffer_start` is the physical offset of the buffer's first byte. It is None for a buffer of
    records that were gathered from several places: then their physical offsets are not checked, and
    the table's `buffer_start` is 0.
    """

    def __init__(
        self, buffer: Buffer, buffer_start: int | None, queue_id: int | None, check_crc: bool, require_crc: bool
    ) -> None:
        self.buffer = buffer
        self.view = np.frombuffer(buffer, np.uint8)
        self.buffer_start, self.queue_id = buffer_start, queue_id
        self.check_crc, self.require_crc = check_crc, require_crc

    def gather(self, dtype: str, positions: Ints) -> npt.NDArray[Any]:
        """Items at any positions within the buffer, aligned or not."""
        return gather(self.view, dtype, positions)

    def ints(self, dtype: str, positions: Ints) -> Ints:
        return self.gather(dtype, positions).astype(np.int64)

    @property
    def demands(self) -> tuple[int | None, int | None, bool, bool]:
        """What the native core takes."""
        return self.buffer_start, self.queue_id, self.check_crc, self.require_crc

    def tabulate(self, positions: Ints, sizes: Ints) -> RecordTable:
        """The table of the records at these positions, all of which are within the buffer.

        It ends before the first bad record (CORRUPT), or has all records (END).
        """
        return (self.tabulate_in_python if core is None else self._tabulate_natively)(positions, sizes)

    def _tabulate_natively(self, positions: Ints, sizes: Ints) -> RecordTable:
        columns = empty_columns(len(positions))
        count, topics = core.tabulate(self.view, positions, sizes, self.demands, columns.view(np.uint8))
        if count < len(positions):
            return self.table_of(columns[:, :count], topics, int(positions[count]), int(sizes[count]))
        where = int(positions[-1] + sizes[-1]) if count else 0
        return self.table_of(columns[:, :count], topics, where)

    def table_of(self, columns: Ints, topics: list[str], where: int, bad_bytes: int = 0) -> RecordTable:
        """The table of columns that the native core has filled.

        `where` is the end of the last record. `bad_bytes` is the size of a bad record there.
        """
        stop, reason = Stop.END, ""
        if bad_bytes:
            stop, reason = Stop.CORRUPT, self.fault(where, where + bad_bytes)
        named: Columns = dict(zip(_COLUMNS, columns, strict=True))
        named["has_crc"] = named["has_crc"] != 0
        return RecordTable(
            buffer_start=self.buffer_start or 0, topics=topics, stop=stop, stop_position=where, reason=reason, **named
        )

    def tabulate_in_python(self, positions: Ints, sizes: Ints) -> RecordTable:
        """The same as `tabulate`, without the native core."""
        columns: Columns = {"positions": positions, "sizes": sizes}
        for check in (self._heads, self._bodies, self._topic_sizes, self._properties):
            _shorten(columns, check(columns))
        topics, good = self._topics(columns)
        _shorten(columns, good)
        columns["has_crc"] = self._has_crc(columns)
        if self.check_crc:
            _shorten(columns, self._crcs(columns))
        crc_bytes = CRC_PROPERTY_BYTES * columns["has_crc"]
        columns["tags_codes"] = tags_codes_of(
            self.view, columns["properties_positions"], columns["properties_sizes"] - crc_bytes
        )
        count = len(columns["positions"])
        stop, reason = Stop.END, ""
        position = int(positions[-1] + sizes[-1]) if len(positions) else 0
        if count < len(positions):
            position = int(positions[count])
            stop, reason = Stop.CORRUPT, self.fault(position, position + int(sizes[count]))
        return RecordTable(
            buffer_start=self.buffer_start or 0,
            topics=topics[: int(columns["topic_index"].max(initial=-1)) + 1],
            stop=stop,
            stop_position=position,
            reason=reason,
            **{name: columns[name] for name in RecordTable.__slots__ if name in columns},
        )

    def fault(self, position: int, end: int) -> str:
        """Why the bytes in [position, end) are not a record, in the words of `decode`."""
        try:
            decode(
                self.view.data,
                position,
                limit=end,
                physical_offset=self._physical_offset(position),
                queue_id=self.queue_id,
                check_crc=self.check_crc,
                require_crc=self.require_crc,
            )
        except CorruptRecord as error:
            return error.reason
        return "its size is not the one that was expected"

    def _physical_offset(self, position: int) -> int | None:
        return None if self.buffer_start is None else self.buffer_start + position

    def why_stopped(self, position: int, end: int, segment_end: int | None) -> tuple[Stop, str]:
        """What is at the position where the walk ended. END means a record, or nothing is left."""
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
            if left < LEAD_BYTES or self._begins_well(position):
                return Stop.PARTIAL, f"size {size:,} with {left:,} bytes left"
        return Stop.CORRUPT, self.fault(position, end)

    def _begins_well(self, position: int) -> bool:
        head = self.view[position : position + LEAD_BYTES].view(LEAD)[0]
        offset_fits = int(head["physical_offset"]) == self._physical_offset(position)
        return offset_fits and (self.queue_id is None or int(head["queue_id"]) == self.queue_id)

    def _heads(self, columns: Columns) -> Mask:
        positions, sizes = columns["positions"], columns["sizes"]
        heads = self.gather(f"V{LEAD_BYTES}", positions).view(LEAD)
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
        columns["born_more"] = ((sys_flags & SysFlag.BORN_HOST_V6) >> _BORN_V6_BIT) * HOST_V6_MORE
        columns["hosts_more"] = (
            columns["born_more"] + ((sys_flags & SysFlag.STORE_HOST_V6) >> _STORE_V6_BIT) * HOST_V6_MORE
        )
        columns["fixed"] = HEAD_V4_BYTES + TAIL_BYTES_MIN + columns["hosts_more"] + (magic == MAGIC_V2)
        good: Mask = (magic == MAGIC_V1) | (magic == MAGIC_V2)
        good &= heads["total_size"] == sizes
        if self.buffer_start is not None:
            good &= heads["physical_offset"] == positions + self.buffer_start
        good &= sizes >= columns["fixed"]
        if self.queue_id is not None:
            good &= columns["queue_ids"] == self.queue_id
        return good

    def _bodies(self, columns: Columns) -> Mask:
        positions = columns["positions"]
        columns["store_timestamps"] = self.ints(">i8", positions + STORE_TIMESTAMP_AT + columns["born_more"])
        columns["body_positions"] = at = positions + HEAD_V4_BYTES + columns["hosts_more"]
        columns["body_sizes"] = sizes = self.ints(">i4", at - BODY_LENGTH_BYTES)
        return (sizes >= 0) & (sizes <= columns["sizes"] - columns["fixed"])

    def _topic_sizes(self, columns: Columns) -> Mask:
        at = columns["body_positions"] + columns["body_sizes"]
        second = columns["magic"] == MAGIC_V2
        sizes = self.ints("i1", at)
        if second.any():
            sizes[second] = self.ints(">i2", at[second])
        columns["topic_positions"], columns["topic_sizes"] = at + V1_TOPIC_LENGTH_BYTES + second, sizes
        room = columns["sizes"] - columns["fixed"] - columns["body_sizes"]
        return (sizes > 0) & (sizes <= room)

    def _properties(self, columns: Columns) -> Mask:
        at = columns["topic_positions"] + columns["topic_sizes"]
        columns["properties_positions"] = at + PROPERTIES_LENGTH_BYTES
        columns["properties_sizes"] = sizes = self.ints(">i2", at)
        good: Mask = sizes == columns["positions"] + columns["sizes"] - at - PROPERTIES_LENGTH_BYTES
        return good

    def _topics(self, columns: Columns) -> tuple[list[str], Mask]:
        """Numbers the topics in the order in which they appear.

        Bytes that can't be a topic make their records bad.
        """
        positions, sizes = columns["topic_positions"], columns["topic_sizes"]
        columns["topic_index"] = index = np.full(len(positions), -1, np.int64)
        good = np.ones(len(positions), np.bool_)
        topics: list[str] = []
        first = 0
        while first < len(index):
            if len(topics) < _TOPIC_ROUNDS:
                left = np.flatnonzero((index < 0) & (sizes == sizes[first]))
                names = self.gather(f"S{sizes[first]}", positions[left])
                # all have one length, so it does no harm that numpy drops zeros at the end
                same = left[names == names[0]]
            else:
                same = np.array([first])
            start = int(positions[first])
            name = self.view[start : start + int(sizes[first])].tobytes()
            index[same], good[same] = len(topics), topic_fault(name) is None
            topics.append(name.decode(errors="replace"))
            first += first_false(index[first:] >= 0)
        return topics, good

    def _crcs(self, columns: Columns) -> Mask:
        """Which records have correct CRCs.

        The whole-record CRC covers the body and BODYCRC. If it is correct, the CRC of the body is
        not computed. A record that ends in a zero has lost its whole-record CRC.
        """
        good: Mask = columns["has_crc"].copy()
        index = slice(None) if good.all() else np.flatnonzero(good)
        positions, sizes = columns["positions"][index], columns["sizes"][index]
        crcs = crcs_of(self.view, positions, sizes - CRC_PROPERTY_BYTES)
        tails, digits = columns["tails"][index], five_digits()
        high = crcs // 100_000
        good[index] = (tails["low"] == digits[crcs - high * 100_000]) & (tails["high"] == digits[high])
        index = np.flatnonzero(~columns["has_crc"])
        if len(index) and not self.require_crc:
            crcs = crcs_of(self.view, columns["body_positions"][index], columns["body_sizes"][index])
            good[index] = crcs == columns["body_crcs"][index]
            ends = columns["positions"][index] + columns["sizes"][index]
            good[index] &= (columns["properties_sizes"][index] == 0) | (self.gather("u1", ends - 1) != 0)
        return good

    def _has_crc(self, columns: Columns) -> Mask:
        """Which records end with the CRC property."""
        # Even a record without properties is at least as long as the CRC property, so every place
        # is inside the buffer.
        places = columns["positions"] + columns["sizes"] - CRC_PROPERTY_BYTES
        columns["tails"] = tails = self.gather(f"V{CRC_PROPERTY_BYTES}", places).view(CRC_PROPERTY)
        has: Mask = columns["properties_sizes"] >= CRC_PROPERTY_BYTES
        has &= (tails["start"] == CRC_PROPERTY_START) & (tails["end"] == ord(CRC_PROPERTY_END))
        return has


def _shorten(columns: Columns, good: Mask) -> None:
    """Drops the first bad record and all that follow."""
    count = first_false(good)
    if count < len(good):
        for name, column in columns.items():
            columns[name] = column[:count]

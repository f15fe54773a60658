"""Finds the properties of many records at once, with no loop over records.

The rules are those of RocketMQ's parser, as in `commitlog/record/properties.py`. A pair ends at
0x02 or with the record. The first 0x01 of a pair divides it. A pair with an empty name or value
does not count. If two pairs have the same name, the last one wins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commitlog.columns.arrays import Spans, gather_bytes
from commitlog.columns.mapped_segments import Segment
from commitlog.record.byte_ranges import Ints, Mask
from commitlog.record.properties import NAME_VALUE_SEPARATOR, RESERVED_NAMES, RESERVED_PREFIX
from commitlog.record.record_layout import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME, I64

(CRC_WORD,) = I64.unpack(CRC_PROPERTY_NAME)
"""The CRC property's name as one number, which numpy compares many times faster than strings."""
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True)
class Pairs:
    """The pairs of `rows` records, in stored order.

    Positions are those in `data`. `row[i]` is the record of pair i.
    """

    rows: int
    data: npt.NDArray[np.uint8]
    row: Ints
    name_at: Ints
    name_end: Ints
    value_end: Ints  # the value begins at name_end + 1

    @classmethod
    def none(cls, rows: int) -> Pairs:
        """The pairs of records that have none."""
        return cls(rows, np.empty(0, np.uint8), _EMPTY, _EMPTY, _EMPTY, _EMPTY)

    def select(self, mask: Mask) -> Pairs:
        """The pairs for which `mask` holds."""
        parts = (self.row[mask], self.name_at[mask], self.name_end[mask], self.value_end[mask])
        return Pairs(self.rows, self.data, *parts)

    def named(self, name: bytes) -> Mask:
        """Which pairs have this name."""
        found = (self.name_end - self.name_at) == len(name)
        where = np.flatnonzero(found)
        for index, byte in enumerate(name):
            where = where[self.data[self.name_at[where] + index] == byte]
        mask = np.zeros(len(found), np.bool_)
        mask[where] = True
        return mask

    def reserved(self) -> Mask:
        """Which pairs have a name of RocketMQ's own, so that they are not headers of the user."""
        found = np.zeros(len(self.row), np.bool_)
        lengths = self.name_end - self.name_at
        present = set(np.unique(lengths).tolist())
        for name in RESERVED_NAMES:
            if len(name) in present:
                found |= self.named(name.encode())
        prefix = RESERVED_PREFIX.encode()
        where = np.flatnonzero(lengths >= len(prefix))
        for index, byte in enumerate(prefix):
            where = where[self.data[self.name_at[where] + index] == byte]
        found[where] = True
        return found

    def value_by_row(self, name: bytes) -> tuple[Spans, Ints]:
        """The values of one property, as spans in `data`, and which of them each record has.

        −1 stands for a record that does not have the property.
        """
        chosen = self.select(self.named(name))
        which = np.full(self.rows, -1, np.int64)
        which[chosen.row] = np.arange(len(chosen.row))  # of two with one name the last one stays
        return Spans(chosen.name_end + 1, chosen.value_end), which

    def counts(self) -> Ints:
        """How many pairs each record has."""
        return np.bincount(self.row, minlength=self.rows).astype(np.int64)


def parse_pairs(segment: Segment, starts: Ints, ends: Ints) -> Pairs:
    """All pairs of the records whose properties are the bytes [starts, ends) of the segment.

    The appended CRC is left out.
    """
    ends = ends - CRC_PROPERTY_BYTES * _ends_with_crc(segment, starts, ends)
    rows = len(starts)
    data, offsets = gather_bytes(segment, Spans(starts, ends))
    if not len(data):
        return Pairs(rows, data, _EMPTY, _EMPTY, _EMPTY, _EMPTY)
    is_end = data == 2
    row_ends = offsets[1:][offsets[1:] > offsets[:-1]]
    unended = row_ends[~is_end[row_ends - 1]]
    closes = np.flatnonzero(is_end)
    follows = closes + 1
    if len(unended):
        closes, order = _merged(closes, unended)
        follows = np.concatenate((follows, unended))[order]
    begins = np.concatenate((np.zeros(1, np.int64), follows[:-1]))
    row = np.searchsorted(offsets, begins, side="right") - 1
    divides = np.flatnonzero(data == 1)
    if not len(divides):
        return Pairs(rows, data, _EMPTY, _EMPTY, _EMPTY, _EMPTY)
    divide = divides[np.minimum(np.searchsorted(divides, begins), len(divides) - 1)]
    good = (divide > begins) & (divide + 1 < closes)
    return Pairs(rows, data, row[good], begins[good], divide[good], closes[good])


def _merged(closes: Ints, unended: Ints) -> tuple[Ints, Ints]:
    """Both kinds of ends in one order.

    A record's end without a separator comes before a separator at the same place, which belongs to
    the next record.
    """
    both = np.concatenate((closes, unended))
    kind = np.concatenate((np.ones(len(closes), np.int8), np.zeros(len(unended), np.int8)))
    order = np.lexsort((kind, both))
    return both[order], order


def _ends_with_crc(segment: Segment, starts: Ints, ends: Ints) -> Mask:
    long_enough = ends - starts >= CRC_PROPERTY_BYTES
    where = np.where(long_enough, ends - CRC_PROPERTY_BYTES, 0)
    divides = segment.u8[where + len(CRC_PROPERTY_NAME)] == ord(NAME_VALUE_SEPARATOR)
    is_crc: Mask = (segment.gather(">i8", where) == CRC_WORD) & divides & long_enough
    return is_crc

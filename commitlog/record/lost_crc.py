"""Finds records that have lost their whole-record CRC to damage.

The whole-record CRC is an option, so a good record may have none. But if damage has hit the bytes
of this CRC, nothing else covers the properties. So in a log whose records have whole-record CRCs, a
record without one (RocketMQ may have added it) must have properties in good order.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from commitlog.record.record_layout import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_END,
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_START,
    Buffer,
)
from commitlog.record.table import RecordTable, Stop

LOST_CRC = "the whole-record CRC is missing or damaged"
_PROPERTIES = re.compile(rb"(?:[^\x01\x02]+\x01[^\x01\x02]*\x02)*(?:[^\x01\x02]+\x01[^\x01\x02]*)?")


def up_to_lost_crc(table: RecordTable, buffer: Buffer) -> RecordTable:
    """The table up to the first record that seems to have lost its whole-record CRC."""
    ends = table.positions + table.sizes
    for index in np.flatnonzero(~table.has_crc & (table.properties_sizes > 0)).tolist():
        if not is_in_good_order(bytes(buffer[int(table.properties_positions[index]) : int(ends[index])])):
            return _shortened(table, index)
    return table


def is_in_good_order(properties: bytes) -> bool:
    """Whether properties without a CRC look as if they never had one."""
    if not _PROPERTIES.fullmatch(properties) or CRC_PROPERTY_START in properties:
        return False
    tail = properties[-CRC_PROPERTY_BYTES:].rjust(CRC_PROPERTY_BYTES, b" ")
    if b"\0" in tail:  # lost bytes read as zeros
        return False
    start, end = len(CRC_PROPERTY_START), CRC_PROPERTY_BYTES - len(CRC_PROPERTY_END)  # the digits are between them
    unchanging = zip(tail[:start] + tail[end:], CRC_PROPERTY_START + CRC_PROPERTY_END, strict=True)
    if sum(a == b for a, b in unchanging) >= 5:  # of the ten bytes, only a few were damaged
        return False
    name = properties.rstrip(b"\x02").rpartition(b"\x02")[2].partition(b"\x01")[0]
    if min(name, default=32) < 32 or _looks_like_crc(name):
        return False
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return True


def _looks_like_crc(name: bytes) -> bool:
    """Whether a property's name is the CRC's, except for a few bytes that were lost or added."""
    wanted = CRC_PROPERTY_NAME
    if not 5 <= len(name) <= 11 or len(set(name) & set(wanted)) < 4:  # rules most names out quickly
        return False
    from difflib import SequenceMatcher

    return SequenceMatcher(None, name, wanted).ratio() > 0.6


def _shortened(table: RecordTable, count: int) -> RecordTable:
    """The first `count` records of a table. The record after them is the reason why it stops."""
    columns = {
        name: getattr(table, name)[:count]
        for name in RecordTable.__slots__
        if isinstance(getattr(table, name), np.ndarray)
    }
    position = int(table.positions[count])
    return replace(table, **columns, stop=Stop.CORRUPT, stop_position=position, reason=LOST_CRC)

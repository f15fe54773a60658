"""What a cursor makes of records for a reader: messages, or their values alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from commitlog.message import Message, messages_of
from commitlog.record.byte_ranges import Ints
from commitlog.record.record_layout import HOSTS_V6, Buffer, SysFlag
from commitlog.record.table import RecordTable

MESSAGES_AT_ONCE, BYTES_AT_ONCE = 1_000, 256 << 10
"""How many records are checked together, or more bytes if one is larger.

If one of them is damaged, they are taken one by one.
"""

Item = TypeVar("Item")
Piece = tuple[Ints | Sequence[int], Sequence[Item]]
"""Some neighbours of a lane, or none after a long walk, and for each the place in the order."""


@dataclass(frozen=True, slots=True)
class Form(Generic[Item]):
    """What a reader gives out for a message."""

    of_table: Callable[[RecordTable, Buffer], Sequence[Item]]
    """Makes it of records that were checked and have none of the bits `unwanted`."""
    of_message: Callable[[Message], Item]
    unwanted: int


MESSAGES: Form[Message] = Form(messages_of, lambda message: message, SysFlag.COMPRESSED | HOSTS_V6)


def _values_of(table: RecordTable, buffer: Buffer) -> list[memoryview]:
    view, starts = memoryview(buffer), table.body_positions
    ends = starts + table.body_sizes
    return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


VALUES: Form[bytes | memoryview] = Form(_values_of, attrgetter("value"), SysFlag.COMPRESSED)
"""The values alone. They may be views of a segment."""

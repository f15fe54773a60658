"""Finds the damage of a log that the consume queues do not name, or not for all lost messages.

A start notes damage, and gives each lost message that it knows of an entry that names it. If the
consume queues and `ends.json` were lost too, it knows of none, or only of those of topics that go
on behind the damage. Then no entry leads the readers of the other topics to the damage, and nobody
knows which topics these are. So each reader has to be told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from commitlog.disk.consume_queue import PRE_FILL_SIZE, ConsumeQueue, first_where
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.quarantine import noted_ranges
from commitlog.disk.store_directory import LaneDirectory
from commitlog.reading.queue_range import QueueRange


def nameless_damage(
    lane_directory: LaneDirectory,
    first: int,
    queues: Mapping[str, QueueRange],
    open_queue: Callable[[str], ConsumeQueue],
    channel: FileChannel,
) -> Iterator[int]:
    """Gives the log offset where each noted range begins that may have unnamed messages.

    That is so if its note says it, and if no entry of these queues names the range. The log begins
    at offset `first`: what comes before was deleted. A note that can't be read tells only where its
    range begins.
    """
    for noted in noted_ranges(lane_directory, channel):
        start, end = noted.start, noted.start + 1 if noted.end is None else noted.end
        if end > first and not (
            noted.is_named and any(_names(open_queue(topic), known, start, end) for topic, known in queues.items())
        ):
            yield max(start, first)


def _names(queue: ConsumeQueue, known: QueueRange, start: int, end: int) -> bool:
    """Whether an entry of the queue names a place in the log range [start, end)."""

    def place(offset: int) -> int:
        entries = queue.entries(offset, 1)
        is_deleted = not len(entries) or int(entries["size"][0]) == PRE_FILL_SIZE
        return -1 if is_deleted else int(entries["physical_offset"][0])

    with queue:
        top = min(known.indexed, known.end)
        offset = first_where(lambda offset: place(offset) >= start, min(known.first, top), top)
        return offset < top and place(offset) < end

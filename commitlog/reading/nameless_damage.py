"""Finds the damage of a log that no consume queue names.

A start notes damage, and gives each lost message that it knows of an entry that names it. If the
consume queues and `ends.json` were lost too, it knows of none. Then no entry leads a reader to the
damage, and nobody knows the topics of its messages. So each reader has to be told of it.
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
    """Gives the log offset where each noted range begins that no entry of these queues names.

    The log begins at offset `first`: what ends before was deleted. A note that can't be read tells
    only where its range begins.
    """
    for start, known_end in noted_ranges(lane_directory, channel):
        end = start + 1 if known_end is None else known_end
        if end > first and not any(_names(open_queue(topic), known, start, end) for topic, known in queues.items()):
            yield start


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

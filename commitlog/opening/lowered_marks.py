"""Lowers trim marks that are above the end of their topic, because they would hide new messages.

Only flushed messages are trimmed. So a mark is above the end only if flushed messages are lost:
damage has taken the end of the log, or somebody has put older files back.

If the log has no message of a topic at all, the topic's mark stays. Retention may have deleted its
messages, and its consume queue may be lost. Then only the mark tells where the topic goes on, and a
new lessee begins at the mark (reading/indexed_offsets.py). So no offset is used twice, which
matters to readers that hold a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import file_locked
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.disk.trim_marks import TrimMark, TrimMarks
from commitlog.errors import DamagedFile
from commitlog.reading.indexed_offsets import IndexedOffsets
from commitlog.reading.queue_bounds import QueueBounds


def marks_within(
    marks: Mapping[str, TrimMark],
    lane_directory: LaneDirectory,
    first: int,
    indexed: int,
    unindexed_ends: Mapping[str, int],
    channel: FileChannel,
) -> dict[str, TrimMark]:
    """Returns the marks of a lane's topics, none of them above the end of its topic.

    The mark of a topic without messages in the log stays as it is. `unindexed_ends` has the ends of
    topics with messages behind the log offset `indexed`; those of all others are found by the
    consume queues, in the log [first, indexed). Raises DamagedFile, OSError.
    """
    found = dict(marks)
    for topic, mark in marks.items():
        end = unindexed_ends.get(topic)
        if end is None:
            with ConsumeQueue(lane_directory.queue_path(topic), channel=channel) as queue:
                begin, end = QueueBounds(queue, first, indexed).find()
            if begin == end:
                continue
        found[topic] = replace(mark, before=min(mark.before, end))
    return found


def lower_marks(offsets: IndexedOffsets, first: int, indexed: int) -> Iterator[str]:
    """Lowers the marks of a lane that was recovered, and gives a line for each of them.

    The lane's log is [first, offsets.synced), and its consume queues are right up to `indexed`.
    Marks that can't be read stay as they are, and get a line too. Raises StoreRefused, OSError.
    """
    lane_directory, channel = offsets.lane_directory, offsets.channel
    trims, store = TrimMarks(lane_directory, channel), StoreDirectory(lane_directory.path.parents[1], channel)
    try:
        trims.refresh(offsets.store_id)
        if not trims.marks:
            return
        with file_locked(store.topics_lock_file, store, channel):
            trims.refresh(offsets.store_id)
            unindexed_ends = offsets.walked(indexed)
            lowered = marks_within(trims.marks, lane_directory, first, indexed, unindexed_ends, channel)
            trims.replace(offsets.store_id, lowered)
    except DamagedFile as error:
        yield str(error)
        return
    for topic, mark in lowered.items():
        if mark != trims.marks[topic]:
            yield (
                f"topic {topic} was trimmed before offset {trims.marks[topic].before:,}, and ends at {mark.before:,}: the "
                "mark is there now, so that new messages can be read"
            )

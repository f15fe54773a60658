"""Queue offsets that no record of a copied log tells: those of messages that are gone.

The consume queues of a backup are built from its log. Retention may have deleted all messages of a
topic, or damage its last ones. Then only the store's own queue knows where the topic goes on. If
the topic began at 0 again, named readers would pass over new messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.disk.consume_queue import ENTRY_BYTES, ConsumeQueue, is_light
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory, segment_name
from commitlog.errors import DamagedFile
from commitlog.opening.queue_files import QueueFiles
from commitlog.reading.queue_bounds import QueueBounds


def keep_queue_ends(
    source: LaneDirectory, target: QueueFiles, first: int, end: int, channel: FileChannel
) -> Iterator[str]:
    """Places the entries that the store's queues have below log offset `end`, and the copies lack.

    Gives a line for each queue whose end is not known. Raises OSError.
    """
    for topic in channel.list(source.consumequeue):
        if is_light(topic):
            continue
        with ConsumeQueue(source.queue_path(topic), channel=channel) as queue:
            known = QueueBounds(target.queue(topic), first, end).find()[1]
            try:
                wanted = QueueBounds(queue, first, end).find()[1]
                if known < wanted:
                    _place(queue, target, topic, known, wanted)
            except DamagedFile as error:
                if not known:
                    yield f"consume queue: {error}; the offsets of its topic begin at 0 in the backup"


def _place(queue: ConsumeQueue, target: QueueFiles, topic: str, known: int, wanted: int) -> None:
    """Places the entries [known, wanted) of a queue, as far as they are in its last file."""
    copy = target.queue(topic)
    per_file = copy.file_bytes // ENTRY_BYTES
    begin = (wanted - 1) // per_file * per_file
    entries = queue.entries(max(known, begin), wanted - max(known, begin))
    offsets = range(max(known, begin), max(known, begin) + len(entries))
    copy.place(list(offsets), entries["physical_offset"], entries["size"], entries["tags_code"])
    if known < begin:  # a file in between would be missing
        for start in copy.starts():
            if start < begin * ENTRY_BYTES:
                target.channel.unlink(copy.directory / segment_name(start))

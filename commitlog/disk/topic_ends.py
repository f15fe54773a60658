"""Where each topic of a lane ended at the last stop: `lanes/<n>/ends.json`.

    {"lane": 0, "store": "<store id>", "end": 40960, "topics": {"orders": 42}, "crc32": "9d0f1a2b"}

The log offset `end` is how far the log went. `topics` has the next queue offset of each topic. All
of that was durable before the file was written, and queue offsets only grow. So an old file is true
as well, as long as the log reaches up to `end`.

The end of a topic also stands in its consume queue, and in its last record. Where both are lost,
only this file tells that messages are missing, and that their offsets must not be given out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.consume_queue import is_light
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import DamagedFile

_FIELDS = ("lane", "store", "end", "topics")
_FILE_BYTES_MAX = 256 << 20
_OFFSET_END = 1 << 56


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """The ends of a lane's topics: next queue offsets, in a log that went up to offset `end`."""

    end: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)


def load_ends(lane_directory: LaneDirectory, store_id: str, channel: FileChannel) -> TopicEnds:
    """Reads the file; without a file, or with one of another lane or store, there are no ends.

    With `store_id` "" the file of any store counts. Raises DamagedFile, OSError.
    """
    path = lane_directory.ends_file
    try:
        values = from_checked_json(channel.read_file(path, _FILE_BYTES_MAX), _FIELDS)
        is_ours = values["lane"] == lane_directory.number and store_id in ("", values["store"])
        found = TopicEnds(values["end"], values["topics"])
        numbers = (found.end, *found.topics.values())
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError("it has an end that no topic can have")
    except FileNotFoundError:
        return TopicEnds()
    except (ValueError, KeyError, TypeError, AttributeError, IsADirectoryError, NotADirectoryError) as error:
        raise DamagedFile(
            f"{path}: does not say where topics ended ({error}); put it back, or remove it: the next stop writes it anew"
        ) from error
    return found if is_ours else TopicEnds()


def save_ends(lane_directory: LaneDirectory, store_id: str, ends: TopicEnds, channel: FileChannel) -> None:
    """Makes these the ends of the lane, durably. Raises OSError.

    Topics of RocketMQ's light queues are left out: their records tell no offsets. So is what can't
    be a topic's name.
    """
    topics = {
        topic: end
        for topic, end in sorted(ends.topics.items())
        if 0 < end < _OFFSET_END and topic.isprintable() and not is_light(topic)
    }
    values = {"lane": lane_directory.number, "store": store_id, "end": ends.end, "topics": topics}
    channel.replace_file(lane_directory.ends_file, to_checked_json(values))

"""Which messages of a lane were trimmed, by topic: `lanes/<n>/trimmed.json`.

    {"lane": 0, "store": "<store id>",
     "topics": {"orders": {"before": 42}, "sales": {"before": 7, "deleted": true}},
     "crc32": "9d0f1a2b"}

Messages whose queue offset is below `before` are not read any more. Their bytes stay in the log
until retention takes their segments. This is Kafka's log start offset, one for each queue. Queue
offsets go on above a mark, so no offset names two messages. A mark goes down only where a start
finds that the log has lost what was flushed (opening/lowered_marks.py).

The marks of a lane lie in the lane. So a copy of the lane has them, and a lane that somebody
removes takes them along. The consume queues know nothing of them: who builds the queues anew brings
nothing back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import DamagedFile, ReaderError

_OFFSET_END = 1 << 62
_FIELDS = ("lane", "store", "topics")
_FILE_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class TrimMark:
    """The mark of one queue."""

    before: int
    """The queue offset of the first message that was not trimmed."""
    deleted: bool = False
    """Whether the topic was deleted: it is not listed until the queue has a message again."""


class TrimMarks:
    """The marks of one lane. `refresh` follows the file, and `marks` is what it said last."""

    def __init__(self, lane_directory: LaneDirectory, channel: FileChannel) -> None:
        self.lane_directory, self.channel = lane_directory, channel
        self.marks: dict[str, TrimMark] = {}
        self._stamp: tuple[int, ...] | None = None

    def refresh(self, store_id: str) -> bool:
        """Reads the file again if it has changed. Returns whether it has.

        It takes a microsecond or two where it has not. A file of another store or lane does not
        count. Raises DamagedFile, OSError.
        """
        path = self.lane_directory.trimmed_file
        try:
            facts = os.lstat(path)
            stamp: tuple[int, ...] | None = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        except FileNotFoundError:
            stamp = None
        except NotADirectoryError:
            raise DamagedFile(f"{path.parent} is no directory; move it away, and put the lane back") from None
        if stamp == self._stamp:
            return False
        self.marks = {} if stamp is None else self._load(store_id)
        self._stamp = stamp
        return True

    def _load(self, store_id: str) -> dict[str, TrimMark]:
        path = self.lane_directory.trimmed_file
        try:
            data = self.channel.read_file(path, _FILE_BYTES_MAX)
        except IsADirectoryError as error:
            raise _damaged(path, error) from error
        store, lane, marks = trim_marks(path, data)
        return marks if (store, lane) == (store_id, self.lane_directory.number) else {}

    def raise_to(self, store_id: str, wanted: Mapping[str, TrimMark]) -> None:
        """Raises the marks of some topics, durably: others see the old marks or the new.

        The caller holds the lock of the topics. Raises DamagedFile, ReaderError, OSError.
        """
        self.refresh(store_id)
        marks = dict(self.marks)
        for topic, mark in wanted.items():
            known = marks.get(topic, TrimMark(0))
            marks[topic] = TrimMark(max(mark.before, known.before), mark.deleted)
        self.replace(store_id, marks)

    def replace(self, store_id: str, marks: Mapping[str, TrimMark]) -> None:
        """Makes these the marks of the lane, durably. Raises OSError, ReaderError.

        Writes nothing where the file says so already, or where there is none and there are no
        marks. Raises ReaderError for more marks than can be read again, some 70,000.
        """
        path = self.lane_directory.trimmed_file
        topics = {
            topic: {"before": mark.before} | ({"deleted": True} if mark.deleted else {})
            for topic, mark in sorted(marks.items())
        }
        values = {"lane": self.lane_directory.number, "store": store_id, "topics": topics}
        data = to_checked_json(values)
        if len(data) > _FILE_BYTES_MAX:
            raise ReaderError(
                f"{path}: the marks of {len(topics):,} trimmed or deleted topics take {len(data):,} bytes, and it may have "
                f"{_FILE_BYTES_MAX:,}: leave topics as they are, and delete old messages of all with `commitlog trim`"
            )
        try:
            is_known = self.channel.read_file(path, len(data) + 1) == data
        except FileNotFoundError:
            is_known = not marks
        if not is_known:
            self.channel.replace_file(path, data)


def trim_marks(path: Path, data: bytes) -> tuple[str, int, dict[str, TrimMark]]:
    """What the content of such a file says: store id, lane, and marks. Raises DamagedFile."""
    try:
        values = from_checked_json(data, _FIELDS)
        return values["store"], values["lane"], {topic: _mark(mark) for topic, mark in values["topics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DamagedFile:
    return DamagedFile(
        f"{path}: does not say what was trimmed ({error}); put it back, or remove it: then trimmed messages that are "
        f"still in the log can be read again"
    )


def _mark(values: dict[str, Any]) -> TrimMark:
    before, deleted = values["before"], values.get("deleted", False)
    if type(before) is not int or not 0 <= before < _OFFSET_END or type(deleted) is not bool:
        raise ValueError(f"{str(values)[:80]} is not a mark")
    return TrimMark(before, deleted)

"""Finds the log offset from which on named readers still need each lane. Retention keeps that part.

Anybody may have written a reader's file, and nothing in it can stop this stage. No pattern is
matched here, and no path is made from the file's content. If something is wrong with a file,
everything is kept for its reader, and the log says so.
"""

from __future__ import annotations

import logging
from pathlib import Path

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.trim_marks import TrimMark, TrimMarks
from commitlog.errors import CommitLogError
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders

log = logging.getLogger(__name__)

_UNKNOWN = "?"
"""Takes the place of the readers' names if they can't be listed."""


class ReaderNeeds:
    """The needs of the named readers.

    `refresh` reads where the readers are. Then `holder` says which one needs a part of a lane.
    """

    def __init__(self, directory: StoreDirectory, store_id: str) -> None:
        self.directory, self.store_id = directory, store_id
        self.readers = NamedReaders(directory)
        self._needs: dict[int, list[tuple[int, str]]] = {}
        self._complaints: set[str] = set()
        self._trims: dict[int, TrimMarks] = {}
        self._queues: dict[int, list[tuple[str, _Queue]]] | None = None
        self._loaded: dict[str, tuple[tuple[int, int, int], NamedReader | str]] = {}
        """Name of a reader → its file's stamp, and the reader, or what is wrong with the file."""

    def refresh(self) -> None:
        """Reads all named readers, and finds each one's next message in the consume queues."""
        self._needs, self._queues = {}, None
        complaints: set[str] = set()
        try:
            names = self.readers.names()
        except OSError as error:
            complaints.add(f"named readers can't be listed, so everything is kept: {error}")
            self._keep_all(_UNKNOWN)
            names = []
        present = set(names)
        self._loaded = {name: known for name, known in self._loaded.items() if name in present}
        for name in names:
            complaint = self._note_needs(name)
            if complaint:
                complaints.add(complaint)
        for complaint in complaints - self._complaints:
            log.warning("%s", complaint)
        self._complaints = complaints

    def holder(self, lane: int, end: int) -> str | None:
        """The name of a reader that needs something below `end`, an offset of the lane's log."""
        return next((name for where, name in self._needs.get(lane, ()) if where < end), None)

    def _note_needs(self, name: str) -> str:
        """Notes what a reader needs. Returns what is wrong with its file, or nothing."""
        try:
            reader = self._load(name)
        except FileNotFoundError:
            return ""  # the file was removed meanwhile
        except OSError as error:
            reader = str(error)
        if isinstance(reader, NamedReader):
            if reader.store_id != self.store_id:
                return f"reader {name} belongs to another store; nothing is kept for it"
            try:
                self._note_places(reader)
                return ""
            except (OSError, CommitLogError) as error:
                reader = str(error)
        self._keep_all(name)
        return f"reader {name}: where it is can't be read, so everything is kept for it: {reader}"

    def _load(self, name: str) -> NamedReader | str:
        """The reader, or what is wrong with its file. Raises OSError.

        A file that has not changed is not read again: it may be large.
        """
        stamp = self.readers.stamp(name)
        known = self._loaded.get(name)
        if known is None or known[0] != stamp:
            try:
                found: NamedReader | str = self.readers.load(name)
            except CommitLogError as error:
                found = str(error)
            known = self._loaded[name] = stamp, found
        return known[1]

    def _keep_all(self, name: str) -> None:
        for lane in self.directory.lane_numbers():
            self._needs.setdefault(lane, []).append((0, name))

    def _note_places(self, reader: NamedReader) -> None:
        for lane, queues in self._looked_at().items():
            places = [
                queue.where(offset) for topic, queue in queues if (offset := reader.offset(topic, lane)) is not None
            ]
            needed = [where for where in places if where is not None]
            if needed:
                self._needs.setdefault(lane, []).append((min(needed), reader.name))

    def _looked_at(self) -> dict[int, list[tuple[str, _Queue]]]:
        """Lane → its topics and their queues, as they are at this refresh, for all readers."""
        if self._queues is None:
            found: dict[int, list[tuple[str, _Queue]]] = {}
            for lane in self.directory.lane_numbers():
                lane_directory, channel = self.directory.lane_directory(lane), self.directory.channel
                trims = self._trims.setdefault(lane, TrimMarks(lane_directory, channel))
                trims.refresh(self.store_id)
                found[lane] = [
                    (
                        topic,
                        _Queue(lane_directory.queue_path(topic), channel, trims.marks.get(topic, TrimMark(0)).before),
                    )
                    for topic in channel.list(lane_directory.consumequeue)
                ]
            self._queues = found
        return self._queues


class _Queue:
    """One consume queue, as it is at one moment. `before`: nobody reads what was trimmed."""

    def __init__(self, path: Path, channel: FileChannel, before: int) -> None:
        self._path, self._channel, self._before = path, channel, before
        self._end = -1
        self._found: dict[int, int] = {}

    def where(self, offset: int) -> int | None:
        """The log offset of the message with this queue offset, or of the first one behind it.

        None where there is no such message yet. Raises OSError, CommitLogError.
        """
        offset = max(offset, self._before)
        if 0 <= self._end <= offset:
            return None
        if offset not in self._found:
            with ConsumeQueue(self._path, channel=self._channel) as queue:
                if self._end < 0:
                    self._end = queue.end()
                if offset >= self._end:
                    return None
                entry = queue.entries(max(offset, queue.first()), 1)
            self._found[offset] = int(entry["physical_offset"][0]) if len(entry) and entry["size"][0] else 0
        return self._found[offset]

"""What registered readers still need of each lane, as an offset of its log: retention keeps it."""

from __future__ import annotations

import logging

from commitlog.consume_queue import ConsumeQueue
from commitlog.errors import CommitLogError
from commitlog.registered_readers import RegisteredReader, RegisteredReaders
from commitlog.store_directory import StoreDirectory

log = logging.getLogger(__name__)


class ReaderNeeds:
    """`refresh` reads where the readers are; then `holder` says who keeps a part of a lane."""

    def __init__(self, directory: StoreDirectory, store_id: str) -> None:
        self.directory, self.store_id = directory, store_id
        self.readers = RegisteredReaders(directory)
        self._needs: dict[int, list[tuple[int, str]]] = {}
        self._complaints: set[str] = set()

    def refresh(self) -> None:
        """Reads all registered readers and finds the place of each one's next message in the consume queues."""
        self._needs = {}
        complaints = set()
        for name in self.readers.names():
            try:
                reader = self.readers.load(name)
                if reader.store_id == self.store_id:
                    self._note(reader)
                else:
                    complaints.add(f"reader {name} belongs to another store; nothing is kept for it")
            except FileNotFoundError:
                continue  # removed meanwhile
            except (OSError, CommitLogError) as error:
                complaints.add(f"reader {name}: where it is can't be read, so everything is kept for it: {error}")
                self._keep_all(name)
        for complaint in complaints - self._complaints:
            log.warning("%s", complaint)
        self._complaints = complaints

    def holder(self, lane: int, end: int) -> str | None:
        """The name of a reader that needs something below `end` (bytes of the lane's log)."""
        return next((name for where, name in self._needs.get(lane, ()) if where < end), None)

    def _keep_all(self, name: str) -> None:
        for lane in self.directory.lane_numbers():
            self._needs.setdefault(lane, []).append((0, name))

    def _note(self, reader: RegisteredReader) -> None:
        for lane in self.directory.lane_numbers():
            topics = set(reader.offsets)
            if reader.pattern is not None:  # topics that it has not seen yet
                topics.update(self.directory.channel.list(self.directory.lane(lane).consumequeue))
            wheres = [self._place(reader, topic, lane) for topic in topics]
            needed = [where for where in wheres if where is not None]
            if needed:
                self._needs.setdefault(lane, []).append((min(needed), reader.name))

    def _place(self, reader: RegisteredReader, topic: str, lane: int) -> int | None:
        """Where in the lane's log the reader's next message of a topic is; None where there is none yet."""
        offset = reader.offset(topic, lane)
        if offset is None:
            return None
        queue = ConsumeQueue(self.directory.lane(lane).queue(topic), channel=self.directory.channel)
        try:
            if offset >= queue.end():
                return None
            entry = queue.entries(max(offset, queue.first()), 1)
            return int(entry["physical_offset"][0]) if len(entry) and entry["size"][0] else 0
        finally:
            queue.close()

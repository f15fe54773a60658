"""Checks whether the consume queues of a lane have the entries of its log.

A recovery needs to know two facts. The queues below the recorded `dispatched` were synced. So a
fault there is damage, and all queues are built anew (queue_repair.py). Above `dispatched` entries
may be missing, and the dispatcher places them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from commitlog.disk.consume_queue import ENTRY, is_light
from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.quarantine import rebuild_mark
from commitlog.disk.queue_entries import by_topic, entries_of, runs
from commitlog.errors import DamagedFile
from commitlog.opening.queue_files import QueueFiles
from commitlog.reading.log_scan import LogScan
from commitlog.record.scan import LARGEST_BYTES, MAX_BYTES, scan
from commitlog.record.table import RecordTable

_SAMPLE_RECORDS = 16


class QueueCheck:
    """All consume queues of one lane. `findings` has a line for each fault."""

    def __init__(self, files: QueueFiles) -> None:
        self._files = files
        self.findings: list[str] = []
        self._sound: dict[str, int] = {}
        """Topic → the end of the sound entries of its queue."""
        self._reached: set[str] = set()
        """Topics of which a record above `dispatched` was seen."""

    def have_all_below(
        self, log: LogScan, dispatched: int, counted: int, known_ends: Mapping[str, int] = MappingProxyType({})
    ) -> bool:
        """Whether the queues seem to have every entry below `dispatched`.

        `counted` is the least sum of the ends of the queues. It is −1 if nobody counted, as after a
        kill. `known_ends` are the least ends of some topics.
        """
        if rebuild_mark(self._files.lane_directory).exists():
            return False
        for directory in self._files.directories():
            try:
                state = self._files.state(directory)
            except DamagedFile as error:
                self.findings.append(f"consume queue: {error}")
                return False
            topic = directory.parent.name
            if directory == self._files.lane_directory.queue_path(topic):
                self._sound[topic] = state.sound
            if state.junk and state.junk_low < dispatched and not is_light(topic):
                self.findings.append(f"consume queue: {directory}: damaged from entry {state.sound} on")
                return False
        total = sum(self._sound.values())
        if total < counted:
            self.findings.append(f"consume queues: {total:,} of {counted:,} entries are there")
            return False
        for topic, end in known_ends.items():
            if self._sound.get(topic, 0) < end:
                directory = self._files.lane_directory.queue_path(topic)
                self.findings.append(
                    f"consume queue: {directory}: ends at {self._sound.get(topic, 0):,}, not at {end:,}"
                )
                return False
        return self._have_samples(log, dispatched)

    def _have_samples(self, log: LogScan, dispatched: int) -> bool:
        """Whether the queues have the entries of the first records of every segment."""
        for start in log.segments.starts:
            end = min(dispatched - start, log.segments.size)
            if end <= 0:
                break
            segment = log.segments.map(start)
            read_ahead(segment, 0, min(end, MAX_BYTES + LARGEST_BYTES))
            table = scan(segment, 0, end, start, log.queue_id, check_crc=False, max_records=_SAMPLE_RECORDS)
            if not self.have_entries(table, len(table)):
                return False
        return True

    def have_entries(self, table: RecordTable, count: int) -> bool:
        """Whether the first `count` records of a table have the entries that they should have."""
        for topic, rows in by_topic(table, count):
            queue = self._files.queue(topic)
            for begin, end in runs(table.queue_offsets[rows]):
                some = rows[begin:end]
                try:
                    entries = queue.entries(int(table.queue_offsets[some[0]]), end - begin)
                except (DamagedFile, OSError, OverflowError, ValueError):
                    entries = np.empty(0, ENTRY)
                if len(entries) < len(some) or (entries != entries_of(table, some)).any():
                    self.findings.append(
                        f"consume queue: {queue.directory}: entry {int(table.queue_offsets[some[0]])} is missing or wrong"
                    )
                    return False
        return True

    def reach(self, table: RecordTable, start: int) -> bool:
        """Whether the queues reach up to the records of a table from index `start` on.

        It looks at the first record of each topic only.
        """
        if self._reached.issuperset(table.topics):
            return True
        for topic, rows in by_topic(table, len(table)):
            later = rows[rows >= start]
            if len(later) and topic not in self._reached:
                self._reached.add(topic)
                if self._sound.get(topic, 0) < int(table.queue_offsets[later[0]]):
                    directory = self._files.lane_directory.queue_path(topic)
                    self.findings.append(f"consume queue: {directory}: ends too early")
                    return False
        return True

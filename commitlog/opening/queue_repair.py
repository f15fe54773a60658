"""Brings the consume queues of a lane in line with its log after a crash, and builds them anew
where they are damaged.

Below the recorded `dispatched` the queues were synced: what is wrong there is damage, and then all
of the lane's queues are placed again from the log (`rebuild.json` says so until it is done). Above
it entries may be missing, and the dispatcher places them. A queue offset whose record is lost gets
an entry that names the damaged range, so that queues have no holes, their ends are found by
bisection, and no offset is used twice.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitlog.disk.consume_queue import (
    ENTRY,
    ENTRY_BYTES,
    FILE_BYTES,
    PRE_FILL_SIZE,
    ConsumeQueue,
    Entries,
    is_light,
    queue_directories,
)
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.queue_entries import by_topic, entries_of, runs
from commitlog.disk.store_directory import LaneDirectory, is_segment_name, segment_name
from commitlog.errors import DamagedFile
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.record.layout import RECORD_BYTES_MIN
from commitlog.record.scan import scan
from commitlog.record.table import RecordTable

_MARK = "rebuild.json"
_OPEN_MOST = 256
"""Queues that are open at the same time."""
_LOOK_BYTES = 64 << 20
"""Of each queue so many bytes are looked through; what is older was looked through when it was
younger.
"""
_PART_ENTRIES_LEAST, _PART_ENTRIES_MOST = 1 << 10, 1 << 16
_SAMPLE_RECORDS = 16
_FILL_BLOCK = 1 << 16
_OFFSET_END = 1 << 56
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class QueueState:
    """How much of a queue makes sense: entries [first, sound) do; `junk`: anything but zeros comes
    after them.
    """

    first: int
    sound: int
    junk: bool
    junk_low: int
    junk_high: int
    """The lowest and highest physical offset named by what comes after `sound`; −1 where nothing is
    named.
    """
    torn: bool = False
    """Among what comes after `sound` is an entry of which a power cut may have left a part."""


class QueueRepair:
    """All consume queues of one lane."""

    def __init__(self, lane: LaneDirectory, channel: FileChannel, file_bytes: int = FILE_BYTES) -> None:
        self.lane, self.channel = lane, channel
        self.findings: list[str] = []
        self.gaps: list[Gap] = []
        """Damaged ranges of the log that were met: the last one is what lost queue offsets are said
        to be in.
        """
        self._built_from: int | None = None
        self._open: dict[str, ConsumeQueue] = {}
        self._ends: dict[str, int] = {}
        self._placed: dict[str, int] = {}
        self._sound: dict[str, int] = {}
        self._seen: set[str] = set()
        self._named: set[Path] = set()
        self._file_bytes = self._usual_file_bytes(file_bytes)

    # ---- what is there --------------------------------------------------------------------------

    def _directories(self) -> Iterator[Path]:
        """Every queue of the lane; a RocketMQ that had the lane open may have made some of other
        numbers.
        """
        return queue_directories(self.lane.consumequeue, self.channel)

    def _files(self, directory: Path) -> list[tuple[int, int]]:
        """Start and length of each file, ascending. Raises DamagedFile for what is no plain file."""
        found = []
        for name in self.channel.list(directory):
            if is_segment_name(name):
                facts = os.lstat(directory / name)
                if not stat.S_ISREG(facts.st_mode):
                    raise DamagedFile(f"{directory / name}: no regular file")
                found.append((int(name), facts.st_size))
        return found

    def _usual_file_bytes(self, configured: int) -> int:
        """The size that most files of the lane's queues have; between equals the larger, a file may
        have been cut.
        """
        sizes = Counter({configured: 1})
        for directory in self._directories():
            with contextlib.suppress(DamagedFile):
                sizes.update(size for start, size in self._files(directory) if size and start % size == 0)
        usual = [(count, size) for size, count in sizes.items() if size % ENTRY_BYTES == 0]
        return max(usual)[1]

    def _state(self, directory: Path) -> QueueState:
        """Looks a queue through. Raises DamagedFile where its files don't fit together."""
        files = self._files(directory)
        for start, size in files:
            if size not in (0, self._file_bytes) or start % self._file_bytes:
                raise DamagedFile(f"{directory}/{start:020d}: {size:,} bytes, a file here has {self._file_bytes:,}")
        starts = [start for start, size in files if size]
        if not starts:
            return QueueState(0, 0, False, -1, -1)
        queue = ConsumeQueue(directory, self._file_bytes, self.channel)
        try:
            return self._look_through(queue, starts)
        finally:
            queue.close()

    def _look_through(self, queue: ConsumeQueue, starts: list[int]) -> QueueState:
        skipped = max(len(starts) - max(_LOOK_BYTES // self._file_bytes, 2), 0)
        sound, before, broken, junk, torn = starts[skipped] // ENTRY_BYTES, -1, False, False, False
        named: list[int] = []
        for first, entries in self._parts(queue, starts[skipped:]):
            if not broken:
                good = _sound_entries(entries, before) if first == sound else 0
                sound += good
                if good:
                    before = int(entries["physical_offset"][good - 1])
                broken = good < len(entries)
                entries, first = entries[good:], first + good
            parts = _may_be_parts(entries, first * ENTRY_BYTES % self._file_bytes)
            torn = torn or bool(parts.any())
            entries = entries[~parts]
            if np.frombuffer(entries.tobytes(), np.uint8).any():
                junk = True
                offsets = entries["physical_offset"][entries["size"] != 0]
                named += [int(offsets.min()), int(offsets.max())] if len(offsets) else [0]
        low, high = min(named, default=-1), max(named, default=-1)
        return QueueState(starts[0] // ENTRY_BYTES, sound, junk, low, high, torn)

    def _parts(self, queue: ConsumeQueue, starts: list[int]) -> Iterator[tuple[int, Entries]]:
        """The entries of these files, some at a time, with the queue offset of the first.

        A file's rest is not read where the disk has given it no more blocks than what was read
        takes: it is a hole.
        """
        per_file = self._file_bytes // ENTRY_BYTES
        for start in starts:
            given = os.lstat(queue.directory / segment_name(start)).st_blocks * 512
            first, at, entries = start // ENTRY_BYTES, 0, np.empty(0, ENTRY)
            while at < per_file:
                at += len(entries)
                entries = queue.entries(
                    first + at, min(max(at, _PART_ENTRIES_LEAST), _PART_ENTRIES_MOST, per_file - at)
                )
                if not len(entries):
                    break
                yield first + at, entries
                empty = entries["size"] == 0
                if empty[-1] and given <= -(-(at + int(empty.argmax())) * ENTRY_BYTES // 4096) * 4096:
                    break

    # ---- are they right? ------------------------------------------------------------------------

    def look_right(self, log: LogScan, dispatched: int, counted: int) -> bool:
        """Whether nothing speaks against the queues having every entry below `dispatched`.

        `counted`: what their ends have to add up to, at least; −1 where nobody counted, as before a
        kill.
        """
        if self.is_unfinished:
            return False
        for directory in self._directories():
            try:
                state = self._state(directory)
            except DamagedFile as error:
                self.findings.append(f"consume queue: {error}")
                return False
            topic = directory.parent.name
            if directory == self.lane.queue(topic):
                self._sound[topic] = state.sound
            if state.junk and state.junk_low < dispatched and not is_light(topic):
                self.findings.append(f"consume queue: {directory}: damaged from entry {state.sound} on")
                return False
        total = sum(self._sound.values())
        if total < counted:
            self.findings.append(f"consume queues: {total:,} of {counted:,} entries are there")
            return False
        return self._samples_have_entries(log, dispatched)

    def _samples_have_entries(self, log: LogScan, dispatched: int) -> bool:
        """Looks a few records of every segment up."""
        for base in log.segments.starts:
            end = min(dispatched - base, log.segments.size)
            if end <= 0:
                break
            table = scan(
                log.segments.map(base), 0, end, base, log.queue_id, check_crc=False, max_records=_SAMPLE_RECORDS
            )
            if not self.has_entries(table, len(table)):
                return False
        return True

    def has_entries(self, table: RecordTable, count: int) -> bool:
        """Whether the first `count` records of a table have the entries they should have."""
        for topic, rows in by_topic(table, count):
            queue = self._queue(topic)
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
        """Whether the queues go up to the records from index `start` on, as far as those are the
        first of their topic.
        """
        if self._seen.issuperset(table.topics):
            return True
        for topic, rows in by_topic(table, len(table)):
            later = rows[rows >= start]
            if len(later) and topic not in self._seen:
                self._seen.add(topic)
                if self._sound.get(topic, 0) < int(table.queue_offsets[later[0]]):
                    self.findings.append(f"consume queue: {self.lane.queue(topic)}: ends too early")
                    return False
        return True

    # ---- placing --------------------------------------------------------------------------------

    @property
    def is_unfinished(self) -> bool:
        """Whether building them was begun, and killed."""
        return (self.lane.quarantine / _MARK).exists()

    def begin_rebuild(self, first: int) -> None:
        """Says durably that queues are built from log offset `first` on, fits files, empties what
        makes no sense.
        """
        self._built_from = first
        mark = self.lane.quarantine / _MARK
        if not mark.exists():
            self.channel.create_directory(self.lane.quarantine, below=self.lane.path)
            self.channel.replace_file(mark, b"{}\n")
        self.close()
        self._ends.clear()
        self._set_strangers_aside()
        for directory in self._directories():
            self._fit_files(directory)
            state = self._state(directory)
            if state.junk or state.torn:
                self._zero_from(directory, state.sound)

    def _set_strangers_aside(self) -> None:
        """What has a queue's name and is no directory."""
        for topic in self.channel.list(self.lane.consumequeue):
            queue = self.lane.queue(topic)
            for path in (queue.parent, queue):
                if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
                    self.channel.rename(path, self.lane.quarantine / f"queue-{topic}-{path.name}")
                    self.channel.sync_directory(path.parent)
                    break

    def _fit_files(self, directory: Path) -> None:
        for start, size in self._files_to_fit(directory):
            with self.channel.opened(directory / f"{start:020d}", write=True) as fd:
                if size > self._file_bytes:
                    self.channel.truncate(fd, self._file_bytes)
                else:
                    self.channel.truncate(fd, size - size % ENTRY_BYTES)  # a part of an entry is none
                    self.channel.truncate(fd, self._file_bytes)
                self.channel.fdatasync(fd)

    def _files_to_fit(self, directory: Path) -> list[tuple[int, int]]:
        """Files of a wrong size; what can't be a file of this queue is set aside."""
        wrong = []
        for name in self.channel.list(directory):
            if not is_segment_name(name):
                continue
            facts = os.lstat(directory / name)
            if not stat.S_ISREG(facts.st_mode) or int(name) % self._file_bytes or int(name) >= 1 << 62:
                target = f"queue-{directory.parent.name}-{directory.name}-{name}"
                self.channel.rename(directory / name, self.lane.quarantine / target)
                self.channel.sync_directory(directory)
            elif facts.st_size not in (0, self._file_bytes):
                wrong.append((int(name), facts.st_size))
        return wrong

    def place(self, table: RecordTable) -> None:
        """Places the entries of a table, and fills what is missing before them."""
        for topic, rows in by_topic(table, len(table)):
            offsets = table.queue_offsets[rows]
            possible = (offsets >= 0) & (offsets < _OFFSET_END)
            rows, offsets = rows[possible], offsets[possible]
            queue = self._queue(topic)
            if topic not in self._ends and len(offsets):
                self._ends[topic] = self._fit_before(queue, int(offsets[0]))
            for begin, end in runs(offsets):
                first = int(offsets[begin])
                if first > self._ends[topic]:
                    self._fill(queue, self._ends[topic], first)
                some = rows[begin:end]
                queue.place(offsets[begin:end], table.physical_offsets[some], table.sizes[some], table.tags_codes[some])
                self._ends[topic] = max(self._ends[topic], int(offsets[end - 1]) + 1)
                self._placed[topic] = max(self._placed.get(topic, 0), int(offsets[end - 1]) + 1)

    def _fit_before(self, queue: ConsumeQueue, first: int) -> int:
        """Where the queue ends that the entry of a topic's first record, of queue offset `first`,
        is to be placed in.

        When all is built anew, what comes before has to name deleted records, or damage; else it
        was another topic's, or some of it is missing, and it is filled as RocketMQ does.
        """
        state = self._state(queue.directory)
        if self._built_from is None or first == 0:
            return state.sound
        begin, known = self._begin_of_file(queue, first), min(state.sound, first)
        start = max(begin, state.first)
        is_ours = state.first <= known and self._first_foreign(queue.directory, start, known, self._built_from) >= known
        if is_ours and (known == first or self._gap_behind(queue, known, first - known)):
            return state.sound
        self._unlink_files(queue.directory, lambda start: start < begin * ENTRY_BYTES)  # else a hole would follow them
        queue.starts()  # as they are now
        self._fill_as_deleted(queue, begin, first)
        return first

    @staticmethod
    def _begin_of_file(queue: ConsumeQueue, offset: int) -> int:
        return offset - offset % (queue.file_bytes // ENTRY_BYTES)

    @staticmethod
    def _where(queue: ConsumeQueue, offset: int) -> int:
        """The place that an entry names; −1 without one."""
        entries = queue.entries(max(offset, 0), min(offset + 1, 1))
        return int(entries["physical_offset"][0]) if len(entries) else -1

    def _gap_behind(self, queue: ConsumeQueue, end: int, count: int) -> Gap | None:
        """The last damaged range behind the record of entry `end` − 1 that has room for so many
        records.
        """
        where, room = self._where(queue, end - 1), count * RECORD_BYTES_MIN
        return next((gap for gap in self.gaps[::-1] if gap.end > where and room <= gap.end - gap.start), None)

    def _fill(self, queue: ConsumeQueue, end: int, first: int) -> None:
        """Entries for the queue offsets [end, first), whose records are not there."""
        if gap := self._gap_behind(queue, end, first - end):
            self._place_many(queue, end, first, gap.start, min(gap.end - gap.start, PRE_FILL_SIZE - 1))
        else:
            self._fill_as_deleted(queue, max(end, self._begin_of_file(queue, first)), first)

    def _fill_as_deleted(self, queue: ConsumeQueue, begin: int, first: int) -> None:
        """As RocketMQ does for records that were deleted long ago."""
        self._place_many(queue, begin, first, 0, PRE_FILL_SIZE)

    def _place_many(self, queue: ConsumeQueue, begin: int, end: int, where: int, size: int) -> None:
        for start in range(begin, end, _FILL_BLOCK):
            count = min(_FILL_BLOCK, end - start)
            queue.place(np.arange(start, start + count), np.full(count, where), np.full(count, size), np.zeros(count))

    def _unlink_files(self, directory: Path, is_old: Callable[[int], bool]) -> None:
        """Those of which the first byte's offset meets a condition."""
        chosen = [start for start, _ in self._files(directory) if is_old(start)]
        for start in chosen:
            self.channel.unlink(directory / segment_name(start))
        if chosen:
            self.channel.sync_directory(directory)

    # ---- the end --------------------------------------------------------------------------------

    def cut(self, end: int) -> list[str]:
        """Empties the places whose records are at or past the log's end; what was emptied, a line
        each.
        """
        self._sync_all()
        self.close()
        found = []
        for directory in self._directories():
            try:
                state = self._state(directory)
            except DamagedFile as error:
                found.append(f"consume queue: {error}")
                continue
            topic = directory.parent.name
            placed = self._placed.get(topic, 0) if directory == self.lane.queue(topic) else 0  # all below the log's end
            keep = max(self._first_past(directory, state, end), placed)
            is_past = keep < state.sound or state.junk_high >= end
            if is_past or state.torn:
                self._zero_from(directory, keep)
            if is_past:
                found.append(f"consume queue: {directory}: entries from {keep} on named records past the log's end")
        return found

    def _first_past(self, directory: Path, state: QueueState, end: int) -> int:
        with contextlib.closing(ConsumeQueue(directory, self._file_bytes, self.channel)) as queue:
            low, high = state.first, state.sound
            while low < high:
                middle = (low + high) // 2
                if self._where(queue, middle) >= end:
                    high = middle
                else:
                    low = middle + 1
            return low

    def trim(self) -> list[str]:
        """After all of the log was placed: empties what comes behind a topic's last record, as
        where another topic's files were put in its place. Entries of deleted records stay, and
        those that name damage. What was emptied, a line each."""
        first, found = self._built_from, []
        if first is None:
            return []
        for directory in self._directories():
            topic = directory.parent.name
            if directory != self.lane.queue(topic) or is_light(topic):
                continue
            with contextlib.suppress(DamagedFile):  # said by `cut`
                state, end = self._state(directory), self._placed.get(topic, 0)
                keep = self._first_foreign(directory, max(end, state.first), state.sound, first)
                if keep < state.sound or state.junk:
                    self._zero_from(directory, keep)
                    if end:  # nothing deleted comes behind a record that is there
                        self._unlink_files(directory, lambda start, keep=keep: start >= keep * ENTRY_BYTES)  # type: ignore[misc]
                    found.append(f"consume queue: {directory}: entries from {keep} on named no records of its own")
        return found

    def _first_foreign(self, directory: Path, start: int, end: int, first: int) -> int:
        """The first of the entries [start, end) that names neither a place below `first` nor one
        that is damaged.
        """
        queue = ConsumeQueue(directory, self._file_bytes, self.channel)
        try:
            while start < end:
                where = queue.entries(start, min(end - start, _FILL_BLOCK))["physical_offset"].astype(np.int64)
                known = where < first
                for gap in self.gaps:
                    known |= (gap.start <= where) & (where < gap.end)
                if not known.all():
                    return start + int(known.argmin())
                start += len(where)
            return start
        finally:
            queue.close()

    def finish(self) -> None:
        """Everything placed is durable when this returns."""
        self._sync_all()
        self.close()
        mark = self.lane.quarantine / _MARK
        if mark.exists():
            self.channel.unlink(mark)
            self.channel.sync_directory(self.lane.quarantine)

    def _zero_from(self, directory: Path, offset: int) -> None:
        with contextlib.closing(ConsumeQueue(directory, self._file_bytes, self.channel)) as queue:
            queue.zero_from(offset)

    # ---- open queues ----------------------------------------------------------------------------

    def _queue(self, topic: str) -> ConsumeQueue:
        queue = self._open.get(topic)
        if queue is None:
            if len(self._open) >= _OPEN_MOST:
                self._sync_all()
                self.close()
            directory = self.lane.queue(topic)
            queue = self._open[topic] = ConsumeQueue(directory, self._file_bytes, self.channel, self._named)
        return queue

    def _sync_all(self) -> None:
        for queue in self._open.values():
            queue.sync()

    def close(self) -> None:
        """Closes the queues that are open, whatever else happened."""
        for queue in self._open.values():
            queue.close()
        self._open.clear()


def _sound_entries(entries: Entries, before: int) -> int:
    """How many of the first entries make sense: a size, and physical offsets that never go back."""
    offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    filled = sizes == PRE_FILL_SIZE
    offsets[filled & (offsets == 0)] = -1
    previous = np.empty_like(offsets)
    previous[0], previous[1:] = before, offsets[:-1]
    good = (sizes >= RECORD_BYTES_MIN) & (offsets >= previous) & (offsets >= -1)
    return len(good) if good.all() else int(good.argmin())


def _may_be_parts(entries: Entries, position: int) -> npt.NDArray[np.bool_]:
    """Which entries lie in two sectors, of which one has nothing of them and the other has
    something: a power cut tears between sectors. `position`: of the first entry, in its file. What
    such an entry names says nothing."""
    into = (position + np.arange(len(entries)) * ENTRY_BYTES) % _SECTOR_BYTES
    parts = into > _SECTOR_BYTES - ENTRY_BYTES
    for i in np.flatnonzero(parts).tolist():
        data, cut = entries[i].tobytes(), _SECTOR_BYTES - int(into[i])
        parts[i] = any(data[:cut]) != any(data[cut:])
    return parts

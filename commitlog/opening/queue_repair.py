"""Brings the consume queues of a lane in line with its log after a crash.

Damaged queues are built anew. While they are built, the file `rebuild.json` is in the lane's
quarantine: if this start is killed, the next one builds them again. A queue offset whose record is
lost gets an entry that names the damaged range. So queues have no holes, their ends are found by
bisection, and no offset is used twice.

Entries that are emptied or written over may be the only trace of lost messages. So `rebuild.json`
says where each queue ended before. Where the log is damaged too, no queue ends earlier than that,
as far as the damage had room.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.consume_queue import ENTRY_BYTES, PRE_FILL_SIZE, ConsumeQueue, first_where, is_light
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.quarantine import rebuild_mark, set_aside_name
from commitlog.disk.queue_entries import by_topic, runs
from commitlog.disk.store_directory import LaneDirectory, is_segment_name, segment_name
from commitlog.errors import DamagedFile
from commitlog.opening.queue_files import LOG_END, QueueFiles, QueueState, place_of
from commitlog.reading.log_scan import Gap
from commitlog.record.record_layout import RECORD_BYTES_MIN
from commitlog.record.table import RecordTable

_BLOCK_ENTRIES = 1 << 16
_MARK_BYTES_MAX = 256 << 20
_OFFSET_END = 1 << 56
_START_END = 1 << 62
"""No file of a queue begins here or later."""


def cut_queues(lane_directory: LaneDirectory, end: int, channel: FileChannel, queue_file_bytes: int) -> None:
    """Empties the entries of records at or behind `end`, before a log is shortened on purpose.

    A recovery would take these entries for a proof that the log was flushed further. Raises
    OSError.
    """
    channel.remove_file(lane_directory.ends_file)
    files = QueueFiles(lane_directory, channel, queue_file_bytes)
    try:
        QueueRepair(files).cut(end)
    finally:
        files.close()


class QueueRepair:
    """All consume queues of one lane."""

    def __init__(self, files: QueueFiles) -> None:
        self._files, self._lane_directory, self._channel = files, files.lane_directory, files.channel
        self.gaps: list[Gap] = []
        """The damaged ranges of the log that the walk has met.

        The entry of a lost queue offset names one of them.
        """
        self._built_from: int | None = None
        """The log offset from which all queues are built; None if they are not built anew."""
        self._ends: dict[str, int] = {}
        self._placed: dict[str, int] = {}
        self._told: Mapping[str, int] = {}
        """Topic → where its queue ended before it was built anew."""

    @property
    def is_rebuild(self) -> bool:
        """Whether the queues are built anew: what they told of lost messages may be lost."""
        return self._built_from is not None

    def begin_rebuild(self, first: int, end: int = LOG_END) -> None:
        """Begins to build all queues from log offset `first` on.

        It marks the rebuild durably, and gives files their size. It notes the ends of the queues as
        they are, by the entries that name places below log offset `end`. Then it empties entries
        that are not plausible.
        """
        self._built_from = first
        mark = rebuild_mark(self._lane_directory)
        if not mark.exists():
            self._channel.create_directory(self._lane_directory.quarantine, below=self._lane_directory.path)
            self._channel.replace_file(mark, b"{}\n")
        self._files.close()
        self._ends.clear()
        self._set_strangers_aside()
        directories = list(self._files.directories())
        for directory in directories:
            self._fit_files(directory)
        self._told = self._noted_ends() or self._note_ends(directories, end)
        for directory in directories:
            state = self._files.state(directory)
            if state.junk or state.torn:
                self._zero_from(directory, state.sound)

    def _noted_ends(self) -> Mapping[str, int]:
        """The ends of the queues when a start that was killed began to build them."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            values = from_checked_json(self._channel.read_file(rebuild_mark(self._lane_directory), _MARK_BYTES_MAX), ())
            return {str(topic): int(end) for topic, end in values["ends"].items()}
        return {}

    def _note_ends(self, directories: Iterable[Path], end: int) -> Mapping[str, int]:
        """Notes the ends of the queues as they are, durably, and returns them."""
        ends = {}
        for directory in directories:
            topic = directory.parent.name
            if directory == self._lane_directory.queue_path(topic) and topic.isprintable() and not is_light(topic):
                ends[topic] = self._files.told_end(directory, end)
        self._channel.replace_file(rebuild_mark(self._lane_directory), to_checked_json({"ends": ends}))
        return ends

    def _set_strangers_aside(self) -> None:
        """Moves things that are named like a queue and are not directories into the quarantine.

        A link to a directory may lead to the topic's own queue, and its entries may be the only
        trace of the topic. So the files behind the link are copied into the link's place.
        """
        for topic in self._channel.list(self._lane_directory.consumequeue):
            queue = self._lane_directory.queue_path(topic)
            for path in (queue.parent, queue):
                if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
                    files = (
                        {name: (queue / name).resolve() for name in self._channel.list(queue)} if queue.is_dir() else {}
                    )
                    self._set_aside(path, topic, path.name)
                    if files:
                        self._copy_files(files, queue)
                    break

    def _copy_files(self, files: dict[str, Path], queue: Path) -> None:
        """Makes the directory of a queue, and copies the queue's files into it."""
        file_bytes = self._files.file_bytes
        self._channel.make_directory(queue, below=self._lane_directory.path)
        for name, source in files.items():
            if is_segment_name(name) and source.is_file():
                with self._channel.opened(source) as fd:
                    data = self._channel.pread(fd, min(self._channel.size(fd), file_bytes), 0)
                with self._channel.opened(queue / name, write=True, create=True) as fd:
                    self._channel.pwrite(fd, data, 0)
                    self._channel.fdatasync(fd)
        for directory in (queue, queue.parent, queue.parent.parent):
            self._channel.sync_directory(directory)

    def _set_aside(self, path: Path, *names: str) -> None:
        self._channel.rename(path, self._lane_directory.quarantine / set_aside_name(*names))
        self._channel.sync_directory(path.parent)

    def _fit_files(self, directory: Path) -> None:
        file_bytes = self._files.file_bytes
        for start, size in self._files_to_fit(directory):
            with self._channel.opened(directory / segment_name(start), write=True) as fd:
                if size > file_bytes:
                    self._channel.truncate(fd, file_bytes)
                else:
                    self._channel.truncate(fd, size - size % ENTRY_BYTES)  # drops a part of an entry
                    self._channel.truncate(fd, file_bytes)
                self._channel.fdatasync(fd)

    def _files_to_fit(self, directory: Path) -> list[tuple[int, int]]:
        """Start and length of the files of a wrong size.

        Anything that can't be a file of this queue is set aside.
        """
        wrong = []
        for name in self._channel.list(directory):
            if not is_segment_name(name):
                continue
            facts, start = os.lstat(directory / name), int(name)
            if not stat.S_ISREG(facts.st_mode) or start % self._files.file_bytes or start >= _START_END:
                self._set_aside(directory / name, directory.parent.name, directory.name, name)
            elif facts.st_size not in (0, self._files.file_bytes):
                wrong.append((start, facts.st_size))
        return wrong

    # ---- placing --------------------------------------------------------------------------------

    def place(self, table: RecordTable, limit: int = LOG_END) -> None:
        """Places the entries of a table, and fills the offsets that are missing before them.

        Records at or behind log offset `limit` get none. All others must be durable: a later start
        takes an entry for a proof that its record was flushed.
        """
        for topic, rows in by_topic(table, int(np.searchsorted(table.physical_offsets, limit))):
            offsets = table.queue_offsets[rows]
            possible = (offsets >= 0) & (offsets < _OFFSET_END)
            rows, offsets = rows[possible], offsets[possible]
            queue = self._files.queue(topic)
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
        """Mends a queue before the entry of its topic's first record, and returns where it ends.

        `first` is the queue offset of that record. In a rebuild, the entries before `first` must
        name deleted records or damage. If they do not, they are another topic's, or some are
        missing. Then nobody knows how many of these records were deleted. So as many as the damage
        may have held count as lost in the damage, and only the others are filled in as RocketMQ
        does.
        """
        state = self._files.state(queue.directory)
        if self._built_from is None or first == 0:
            return state.sound
        begin, known = queue.begin_of_file(first), min(state.sound, first)
        start = max(begin, state.first)
        is_ours = state.first <= known and self._first_foreign(queue.directory, start, known, self._built_from) >= known
        if is_ours and (known == first or self._gap_behind(queue, known, first - known)):
            return state.sound
        lost_from = max(first - _room(self.gaps), 0)
        begin = queue.begin_of_file(lost_from)
        self._unlink_files(queue.directory, lambda start: start < begin * ENTRY_BYTES)  # a hole would follow
        queue.starts()  # lists the files again
        queue.fill(begin, lost_from)
        if lost_from < first:
            _fill_lost(queue, lost_from, first, self.gaps[-1])
        return first

    def _gap_behind(self, queue: ConsumeQueue, end: int, count: int) -> Gap | None:
        """The last damaged range that may have held the `count` records after entry `end` − 1.

        It must end behind that entry's record, and all ranges that do must have room for `count`
        records.
        """
        behind = self._gaps_behind(queue, end)
        return behind[-1] if behind and count <= _room(behind) else None

    def _gaps_behind(self, queue: ConsumeQueue, end: int) -> list[Gap]:
        """The damaged ranges that end behind the record of entry `end` − 1, if there is one."""
        where = place_of(queue, end - 1)
        return [gap for gap in self.gaps if gap.end > where]

    def _fill(self, queue: ConsumeQueue, end: int, first: int) -> None:
        """Places entries for the queue offsets [end, first), whose records the log lacks."""
        if gap := self._gap_behind(queue, end, first - end):
            _fill_lost(queue, end, first, gap)
        else:
            queue.fill(max(end, queue.begin_of_file(first)), first)

    # ---- the end --------------------------------------------------------------------------------

    def reach(self, ends: Mapping[str, int]) -> list[str]:
        """Places entries for lost messages of topics that ended later than the log shows.

        The entries name the damage that had their records. `ends` are next queue offsets; where the
        log is damaged, the ends count as well that the queues had before. If no message of a topic
        is left, retention may have deleted them; the topic's offsets go on all the same. Returns a
        line for each topic that has lost messages.
        """
        found = []
        told = self._told if self.gaps else {}
        for topic in {**ends, **told} if self._built_from is not None else ():
            end = max(ends.get(topic, 0), told.get(topic, 0))
            placed = self._placed.get(topic, 0)
            if placed >= end:
                continue
            queue = self._files.queue(topic)
            if placed or topic not in ends:
                known = self._end_of_known(queue.directory, placed, end)
            else:
                known = self._fit_before(queue, end)
            lost_end = self._lose(queue, known, end)
            if placed and known < ends.get(topic, 0):
                found.append(
                    f"consume queue: {queue.directory}: the topic ended at offset {end:,}, and the log tells of messages up "
                    f"to {known:,}"
                )
            elif known < lost_end:
                found.append(f"consume queue: {queue.directory}: entries from {known} on named no records of its own")
        return found

    def _end_of_known(self, directory: Path, placed: int, end: int) -> int:
        """Where the entries behind `placed` end that name deleted records or damage."""
        state = self._files.state(directory)
        begin = max(placed, state.first)
        return self._first_foreign(directory, begin, min(state.sound, end), self._built_from or 0)

    def _lose(self, queue: ConsumeQueue, begin: int, end: int) -> int:
        """Makes the entries [begin, end) name damage, as many as the damage may have held.

        It is the damage behind the record of the entry before `begin`. Returns where the changed
        entries end.
        """
        behind = self._gaps_behind(queue, begin)
        end = min(end, begin + _room(behind))
        if begin < end:
            _fill_lost(queue, begin, end, behind[-1])
        return max(begin, end)

    def cut(self, end: int) -> list[str]:
        """Empties the places whose records are at or behind the log's end.

        Returns a line for each queue that had entries there.
        """
        self._files.sync()
        self._files.close()
        found = []
        for directory in self._files.directories():
            try:
                state = self._files.state(directory)
            except DamagedFile as error:
                found.append(f"consume queue: {error}")
                continue
            topic = directory.parent.name
            is_own = directory == self._lane_directory.queue_path(topic)
            placed = self._placed.get(topic, 0) if is_own else 0  # all of these are below the log's end
            keep = max(self._first_behind(directory, state, end), placed)
            is_behind = keep < state.sound or state.junk_high >= end
            if is_behind or state.torn:
                is_trace = is_own and self._built_from is None and not is_light(topic)
                self._zero_from(directory, self._keep_trace(directory, keep) if is_trace else keep)
            if is_behind:
                found.append(f"consume queue: {directory}: entries from {keep} on named records past the log's end")
        return found

    def _keep_trace(self, directory: Path, keep: int) -> int:
        """Has the entries from `keep` on name damage: see `_lose`. In a rebuild `reach` does so."""
        end = self._files.told_end(directory, LOG_END)
        with self._files.opened(directory) as queue:
            kept = self._lose(queue, keep, end)
            queue.sync()
        return kept

    def _first_behind(self, directory: Path, state: QueueState, end: int) -> int:
        """The first sound entry whose record is at or behind log offset `end`."""
        with self._files.opened(directory) as queue:
            return first_where(lambda offset: place_of(queue, offset) >= end, state.first, state.sound)

    def trim(self) -> list[str]:
        """Empties the places behind each topic's last record, after the whole log was placed.

        Somebody may have put another topic's files in the place of the topic's own. Entries of
        deleted records stay, and so do entries that name damage. Returns a line for each queue that
        had other entries.
        """
        first, found = self._built_from, []
        if first is None:
            return []
        for directory in self._files.directories():
            topic = directory.parent.name
            if directory != self._lane_directory.queue_path(topic) or is_light(topic):
                continue
            with contextlib.suppress(DamagedFile):  # `cut` reports it
                state, end = self._files.state(directory), self._placed.get(topic, 0)
                keep = self._first_foreign(directory, max(end, state.first), state.sound, first)
                if keep < state.sound or state.junk:
                    self._zero_from(directory, keep)
                    if end:  # no deleted record comes behind a record that is there
                        self._unlink_files(directory, lambda start, keep=keep: start >= keep * ENTRY_BYTES)  # type: ignore[misc]
                    found.append(f"consume queue: {directory}: entries from {keep} on named no records of its own")
        return found

    def _first_foreign(self, directory: Path, start: int, end: int, first: int) -> int:
        """The first of the entries [start, end) whose record was neither deleted nor damaged.

        Its place is not below `first`, and not in a damaged range.
        """
        with self._files.opened(directory) as queue:
            while start < end:
                where = queue.entries(start, min(end - start, _BLOCK_ENTRIES))["physical_offset"].astype(np.int64)
                known = where < first
                for gap in self.gaps:
                    known |= (gap.start <= where) & (where < gap.end)
                if not known.all():
                    return start + int(known.argmin())
                start += len(where)
            return start

    def finish(self) -> None:
        """Syncs all entries that were placed, and then removes the mark of the rebuild."""
        self._files.sync()
        self._files.close()
        self._channel.remove_file(rebuild_mark(self._lane_directory))

    def _unlink_files(self, directory: Path, is_chosen: Callable[[int], bool]) -> None:
        """Unlinks the files whose start (bytes) meets a condition."""
        chosen = [start for start, _ in self._files.files(directory) if is_chosen(start)]
        for start in chosen:
            self._channel.unlink(directory / segment_name(start))
        if chosen:
            self._channel.sync_directory(directory)

    def _zero_from(self, directory: Path, offset: int) -> None:
        with self._files.opened(directory) as queue:
            queue.zero_from(offset)


def _room(gaps: Iterable[Gap]) -> int:
    """How many records these ranges may have held."""
    return sum((gap.end - gap.start) // RECORD_BYTES_MIN for gap in gaps)


def _fill_lost(queue: ConsumeQueue, begin: int, end: int, gap: Gap) -> None:
    """Places entries that name a damaged range for the queue offsets [begin, end).

    Where the entry before them names a place in the range, they name the rest of it: the places in
    a queue never go back.
    """
    start = max(gap.start, place_of(queue, begin - 1))
    queue.fill(begin, end, start, min(max(gap.end - start, RECORD_BYTES_MIN), PRE_FILL_SIZE - 1))

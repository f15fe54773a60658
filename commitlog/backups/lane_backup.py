"""Brings the backup of one lane up to date: copies what is new of its log, checks it, records it.

    first                 `begin`: flushed of the backup              `end`: flushed of the store
      ├──────────────────────────────┼──────────────────────────────────────┤
      │ is there since last time     │ copied, checked, indexed             │

While the backup runs, its lane has an `abort` file, and its `positions` are those of the last
backup. So a killed backup is like a killed store: the data of the last backup counts, and the next
run, or a start, goes on from there. When `copy` and `publish` are done, the lane is as a proper
stop leaves it: no process needs more of it than its files.

The consume queues are not copied. Each record that is checked gets its entry, as in a recovery. So
the queues have what the copied log has, whatever the dispatcher of the store is doing. Only the
facts that no record tells are taken from the store's queues (queue_ends.py) and its trim marks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from commitlog.backups.lane_source import LaneSource
from commitlog.backups.queue_ends import keep_queue_ends
from commitlog.disk.checkpoint import Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.consume_queue import queue_directories, unlink_below
from commitlog.disk.mapped_file_queue import MappedFileQueue, unlink_segments_below
from commitlog.disk.new_segment import NewSegment
from commitlog.disk.quarantine import COPY_BYTES, Quarantine, noted_ranges
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.disk.topic_ends import TopicEnds, load_ends
from commitlog.disk.trim_marks import TrimMarks
from commitlog.errors import BackupRefused, DamagedFile
from commitlog.inspecting.verify import NOT_A_DIRECTORY
from commitlog.opening.lowered_marks import marks_within
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.noted_damage import NamedMessages, note_damage
from commitlog.opening.queue_check import QueueCheck
from commitlog.opening.queue_files import QueueFiles
from commitlog.opening.queue_repair import QueueRepair
from commitlog.reading.log_scan import LogScan
from commitlog.reading.queue_bounds import QueueBounds, total_of_ends
from commitlog.reading.queue_order import LogOrder
from commitlog.record.table import RecordTable
from commitlog.shm.layout import segment_start


class LaneBackup:
    """One lane of the store, and its copy. Raises BackupRefused, OSError.

    `copied` is called with the size of each piece that was copied.
    """

    def __init__(
        self, source: LaneSource, target: StoreDirectory, facts: StoreFacts, copied: Callable[[int], None]
    ) -> None:
        self.source, self.target, self.channel = source, target, target.channel
        self.facts, self.size = facts, facts.segment_bytes
        self.lane = target.lane_directory(source.number)
        self._copied = copied
        self.findings: list[str] = []
        self.messages = self.removed_segments = 0
        self._positions = PositionsFile(self.lane, facts.id, self.channel)
        self._known = self._positions.load()
        self._begin = self._known.flushed_where if self._known else 0
        self._last_store_timestamp = self._known.last_store_timestamp if self._known else 0
        self._check_from = self._begin
        """The log is checked from here on."""
        self._is_changed = self._has_disorder = False

    # ---- is it the same log ---------------------------------------------------------------------

    def refuse_other_history(self) -> None:
        """Raises BackupRefused if the backup has what the store does not have.

        That is so after a restore of an older store. The end of the backup's log has to be in the
        store's log: messages that were sent again have other times. Changes nothing.
        """
        begin, end = self._begin, self.source.end
        if begin > end:
            raise BackupRefused(
                f"{self.lane.path}: the backup has {begin:,} bytes of this lane, the store {end:,}: {_OLDER_STORE}"
            )
        start = segment_start(max(begin - 1, 0), self.size)
        for stop in range(begin, start, -COPY_BYTES):
            at = max(stop - COPY_BYTES, start)
            try:
                copy, original = (
                    self._read(lane.segment_path(start), at - start, stop - at)
                    for lane in (self.lane, self.source.directory)
                )
            except FileNotFoundError:  # retention has deleted it, or it is lost here and is copied again
                return
            if copy != original:
                raise BackupRefused(
                    f"{self.lane.segment_path(start)}: differs from the store's in [{at:,}, {stop:,}): {_OLDER_STORE}. Or "
                    f"one of both is damaged: `commitlog verify` says which; without this file, it is copied again"
                )
            if copy.count(0) < len(copy):  # else it is the end of a full segment, and tells nothing
                return

    def _read(self, path: Path, at: int, count: int) -> bytes:
        """Some bytes of a segment; one that is too short is filled up with zeros."""
        fd = self._open(path)
        try:
            return self.channel.pread(fd, count, at).ljust(count, b"\0")
        finally:
            self.channel.close(fd)

    def _open(self, path: Path) -> int:
        """Opens a segment. Raises FileNotFoundError, also where something else is in its place."""
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
        return self.channel.open(path)

    # ---- copying --------------------------------------------------------------------------------

    def copy(self) -> None:
        """Copies, checks and indexes what is new. It is durable when this returns."""
        if self._is_up_to_date():
            return
        self._is_changed = True
        for directory in (self.lane.commitlog, self.lane.consumequeue, self.lane.tmp):
            self.channel.create_directory(directory, below=self.target.path)
        self.channel.replace_file(self.lane.abort_file, str(os.getpid()).encode())
        for name in self.channel.list(self.lane.tmp):  # of a run that was interrupted
            self.channel.unlink(self.lane.tmp / name)
        if not self.target.file.exists():  # nothing of a first backup counts yet: old segments only take room
            self._remove_old_segments()
        self._copy_segments()
        self._clear_behind(self.source.end)
        self.channel.sync_directory(self.lane.commitlog)
        self._check_and_index()

    def _is_up_to_date(self) -> bool:
        known, wanted = self._known, range(self.source.first, self.source.end, self.size)
        return (
            known is not None
            and (known.first_where, known.flushed_where) == (self.source.first, self.source.end)
            and not self.lane.abort_file.exists()
            and set(wanted) <= self._segments_there()
        )

    def _segments_there(self) -> set[int]:
        """Starts of the segment files that were whole at the last backup."""
        found = MappedFileQueue(self.lane.commitlog, self.size, self.channel)
        return {start for start in found.starts if start < self._begin and start not in found.wrong_sizes}

    def _copy_segments(self) -> None:
        there, done = self._segments_there(), set[int]()
        while (start := self._next(there, done)) is not None:
            done.add(start)
            try:
                source = self._open(self.source.directory.segment_path(start))
            except FileNotFoundError:
                if not self.source.is_retired(start):  # it is lost, and the check says so
                    self._check_from = min(self._check_from, start)
                continue
            try:
                if start in there:
                    self._copy_rest(source, start)
                else:
                    self._copy_whole(source, start)
            finally:
                self.channel.close(source)

    def _next(self, there: set[int], done: set[int]) -> int | None:
        """The next segment that is not here, or not all of it. A log has at least one file."""
        first, end = self.source.first, self.source.end
        for start in range(first, max(end, first + 1 if first else 0), self.size):
            if start not in done and (start not in there or start + self.size > self._begin):
                return start
        return None

    def _copy_rest(self, source: int, start: int) -> None:
        """Copies what is new of the segment that the last backup ends in."""
        with self.channel.opened(self.lane.segment_path(start), write=True) as fd:
            self._copy_bytes(source, fd, start, self._begin - start, is_new=False)
            self.channel.fdatasync(fd)

    def _copy_whole(self, source: int, start: int) -> None:
        with NewSegment(self.lane, start, self.size, self.channel, sparse=True) as segment:
            self._copy_bytes(source, segment.fd, start, 0, is_new=True)
            segment.publish()
        self._check_from = min(self._check_from, start)

    def _copy_bytes(self, source: int, target: int, start: int, begin: int, *, is_new: bool) -> None:
        end = min(self.source.end - start, self.size)
        for at in range(begin, end, COPY_BYTES):
            data = self.channel.pread(source, min(COPY_BYTES, end - at), at)
            if not is_new or data.count(0) < len(data):  # a new file has zeros already
                self.channel.pwrite(target, data, at)
            self._copied(len(data))

    def _clear_behind(self, end: int) -> None:
        """Removes what a run that was killed, or half a record, left behind the log's end."""
        segments = MappedFileQueue(self.lane.commitlog, self.size, self.channel)
        for start in segments.starts:
            if start >= end and start != self.source.first:
                self.channel.unlink(segments.segment_path(start))
        start = segment_start(max(end - 1, 0), self.size)
        used = segments.last_nonzero(start, end - start) if start in segments else 0
        if used > end - start:
            with self.channel.opened(segments.segment_path(start), write=True) as fd:
                self.channel.pwrite(fd, bytes(used - (end - start)), end - start)
                self.channel.fdatasync(fd)

    # ---- checking and indexing ------------------------------------------------------------------

    def _check_and_index(self) -> None:
        files = QueueFiles(self.lane, self.channel, queue_file_bytes(self.facts))
        try:
            log = LogScan(MappedFileQueue(self.lane.commitlog, self.size, self.channel), self.source.number)
            repair, begin = QueueRepair(files), max(self._check_from, self.source.first)
            if not self._queues_are_sound(files, log):
                begin = self.source.first
                repair.begin_rebuild(begin, self.source.end)
            order = LogOrder(lambda topic: self._next_offset(files, topic, begin))
            self._walk(log, begin, repair, order)
            ends = self._known_ends()
            self._find(repair.reach(ends.topics))
            repair.cut(self.source.end)
            repair.trim()
            first, end = self.source.first, self.source.end
            self._find(keep_queue_ends(self.source.directory, files, first, end, self.channel))
            messages = NamedMessages(self.lane, first, end, self.channel, end, self.source.entries, ends)
            quarantine = Quarantine(self.lane, self.size, self.channel)
            if repair.gaps:
                unnamed = [noted for noted in noted_ranges(self.source.directory, self.channel) if not noted.is_named]
                self._find(note_damage(repair.gaps, messages, quarantine, anew=repair.is_rebuild, unnamed=unnamed))
            repair.finish()
        finally:
            files.close()

    def _find(self, said: Iterable[str]) -> None:
        self.findings += [f"lane {self.source.number}: {finding}" for finding in said]

    def _known_ends(self) -> TopicEnds:
        """Where the store's topics ended at its last stop."""
        try:
            known = load_ends(self.source.directory, self.facts.id, self.channel)
        except DamagedFile as error:
            self._find([str(error)])
            return TopicEnds()
        return known if known.end <= self.source.end else TopicEnds()

    def _queues_are_sound(self, files: QueueFiles, log: LogScan) -> bool:
        """Whether the queues have what the last backup has placed, so that new entries suffice."""
        known = self._known
        if known is None or known.flushed_where < self.source.first:
            return False
        return QueueCheck(files).have_all_below(log, known.dispatched_where, known.entries)

    def _next_offset(self, files: QueueFiles, topic: str, begin: int) -> int | None:
        """The queue offset that is next in a topic at log offset `begin`; None: nobody knows."""
        end = QueueBounds(files.queue(topic), self.source.first, begin).find()[1] if begin > self.source.first else 0
        is_known = end > 0 or (self.source.first == 0 and topic not in self.source.trims.marks)
        return end if is_known else None

    def _walk(self, log: LogScan, begin: int, repair: QueueRepair, order: LogOrder) -> None:
        """Checks every record from `begin` on, places its entry, and finds what is damaged."""
        for piece in log.pieces(begin):
            if isinstance(piece, RecordTable):
                self.messages += len(piece)
                self._note_disorder(piece, order)
                self._last_store_timestamp = int(piece.store_timestamps[-1])
                repair.place(piece)
            elif piece.start >= self.source.end:
                return
            elif self.source.is_unfinished(piece):
                self.source.end = piece.start
                self._clear_behind(piece.start)
                return
            else:
                repair.gaps.append(
                    replace(piece, end=self.source.end if piece.last else min(piece.end, self.source.end))
                )
                order.pass_hole()

    def _note_disorder(self, table: RecordTable, order: LogOrder) -> None:
        """Names the first record that is not next in its queue."""
        faults = order.faults(table, len(table))
        if faults and not self._has_disorder:
            self._has_disorder = True
            (where, reason), file = faults[0], self.lane.segment_path(table.buffer_start)
            self.findings.append(
                f"lane {self.source.number}: {file} at offset {where}: {reason}; `commitlog verify` lists all"
            )

    # ---- recording ------------------------------------------------------------------------------

    def publish(self) -> None:
        """Makes what was copied count, then removes what retention has deleted in the store."""
        if self._is_changed:
            first, end, timestamp = self.source.first, self.source.end, self._last_store_timestamp
            entries = total_of_ends(self.lane, first, end, self.channel)
            if self.source.other:
                self.findings.append(f"lane {self.source.number}: {self.source.other}")
            if not self.findings and 0 <= self.source.entries != entries:
                self.findings.append(
                    f"lane {self.source.number}: its queues end at {entries:,} in all, and the store has counted "
                    f"{self.source.entries:,}: it is not the log that was flushed here; see `commitlog verify`"
                )
            self._positions.store(
                Positions(
                    generation=self.facts.generation,
                    flushed_where=end,
                    dispatched_where=end,
                    first_where=first,
                    last_store_timestamp=timestamp,
                    drained=True,
                    entries=entries,
                )
            )
            StoreCheckpoint(timestamp, timestamp, 0).save(self.lane.checkpoint_file, self.channel)
            self.channel.unlink(self.lane.abort_file)
            self.channel.sync_directory(self.lane.path)
        for path in self.source.directory.misplaced():
            self.findings.append(f"lane {self.source.number}: {path}: {NOT_A_DIRECTORY}")
        self._write_marks()
        self._remove_retired()

    def _write_marks(self) -> None:
        """Writes what was trimmed in the store. Marks that can't be read stay as they were here.

        A mark in the store may be above what was copied of its topic, if the last messages are
        damaged. It is lowered, or a store that is restored would hide new messages.
        """
        if self.source.damage:
            self.findings.append(f"lane {self.source.number}: {self.source.damage}")
            return
        try:
            first, end = self.source.first, self.source.end
            marks = marks_within(self.source.trims.marks, self.lane, first, end, {}, self.channel)
        except DamagedFile as error:
            self.findings.append(f"lane {self.source.number}: {error}; what was trimmed stays as it was in the backup")
            return
        TrimMarks(self.lane, self.channel).replace(self.facts.id, marks)

    def _remove_retired(self) -> None:
        self._remove_old_segments()
        for queue in queue_directories(self.lane.consumequeue, self.channel):
            unlink_below(queue, self.source.first, self.channel)

    def _remove_old_segments(self) -> None:
        self.removed_segments += unlink_segments_below(self.lane, self.source.first, self.size, self.channel)


_OLDER_STORE = (
    "the store was restored from an older copy, or the backup was started and written to; keep this backup, and give the "
    "next one a new directory"
)

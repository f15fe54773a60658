"""Opens a lane that no pool is left of: finds the end of its log, cuts a torn tail off, says what
is damaged.

    first           recorded `flushed`            end of the log           end of the last file
      ├──────────────────────┼───────────────────────────┼───────────────────────────┤
      │ a bad record is      │ kept: written again       │ torn tail: copied to      │
      │ corruption: reported │ and synced, it may have   │ quarantine/, then zeroed; │
      │ and left in place    │ been in memory only       │ later files set aside     │

What was flushed is never cut, so a record that readers have seen keeps its place, and its offset
names no other record later. In a lane without `abort` that is all of it: it was stopped properly,
by us or by a RocketMQ. The log is walked from the recorded `dispatched` on; without a record of
positions, from its first segment on.

Everything here may be done again: recovery that is killed anywhere and repeated ends the same, and
repeated on a sound lane it changes no byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from commitlog.clock import SYSTEM_CLOCK
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import FILE_BYTES
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import Cut, Quarantine, write_again
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import FAULT_BY_ERRNO, DamagedFile, RecoveryError, disk_error
from commitlog.opening.queue_check import QueueCheck
from commitlog.opening.queue_files import QueueFiles
from commitlog.opening.queue_repair import QueueRepair
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.queue_bounds import total_of_ends
from commitlog.record.layout import BLANK_BYTES, RECOGNISABLE_BYTES
from commitlog.record.table import RecordTable
from commitlog.shm.layout import MAX_SLOTS

Report = Callable[[str], None]

_PAGE_BYTES = 4096
_PROGRESS_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """What recovery made sure of. Offsets are bytes of the lane's log."""

    first: int
    """Start of the first segment file."""
    end: int
    """End of the valid log; all that is kept below it is durable. A record's end, or a segment's
    start.
    """
    dispatched: int
    """A record's start up to which the consume queues are right and durable; ≤ end."""
    allocated: int
    """Segment files exist in full size up to here; a multiple of the segment size."""
    last_store_timestamp: int
    """ms, of the last record below `end`; 0 without records."""
    findings: tuple[str, ...]
    entries: int = -1
    """What the consume queues end at, added up, each behind its last entry below `dispatched`; −1
    if they can't be read.
    """


def recover_lane(
    lane: LaneDirectory,
    segment_bytes: int,
    channel: FileChannel,
    report: Report,
    *,
    queue_file_bytes: int = FILE_BYTES,
    known_end: int = 0,
    store_id: str = "",
) -> LaneEnd:
    """Makes the lane ready to be appended to. `report` gets progress and each finding, one line
    each.

    `queue_file_bytes` is the configured size of a consume queue's files; where other files are
    there, theirs counts. `known_end`: the log is known to reach so far (a log offset), so what is
    bad below is damage and no torn tail. `store_id`: whose `positions` count; see PositionsFile.

    Called before anybody appends or reads as live. Raises RecoveryError where the lane is in use or
    can't be opened without losing data, DiskError where the disk refuses.
    """
    try:
        _prepare_directories(lane, channel)
        with _locked(lane, channel):
            recovery = _Recovery(lane, segment_bytes, channel, report, queue_file_bytes, store_id)
            try:
                return recovery.run(known_end)
            finally:
                recovery.queue_files.close()
    except OSError as error:
        doing = f"recovery of {lane.path}"
        if error.errno in FAULT_BY_ERRNO and not isinstance(error, FileNotFoundError):
            raise disk_error(error.errno, doing) from error
        raise RecoveryError(f"{doing}: {error}; it was left as it is") from error


def _prepare_directories(lane: LaneDirectory, channel: FileChannel) -> None:
    for path in (lane.commitlog, lane.consumequeue, lane.tmp):
        if os.path.lexists(path) and not path.is_dir():
            raise RecoveryError(f"{path} is no directory; move it away, then start again")
        channel.create_directory(path, below=lane.path)
    # whoever made what is there may have been killed before he had synced its name
    for directory in (lane.path, lane.path.parent):
        channel.sync_directory(directory)


@contextmanager
def _locked(lane: LaneDirectory, channel: FileChannel) -> Iterator[None]:
    with channel.opened(lane.lock_file, write=True, create=True) as fd:
        if not (channel.try_lock(fd) and channel.is_at(fd, lane.lock_file)):
            raise RecoveryError(
                f"lane {lane.number}: {lane.lock_file} is held, by a producer of the last run or a RocketMQ that has the "
                f"lane open; end it, then start again"
            )
        yield


@dataclass
class _Walked:
    """What one walk over the log found."""

    end: int = 0
    torn: Gap | None = None
    """The gap that ends the log, where there is something to take away."""
    records_after: int = 0
    corrupt: list[Gap] = field(default_factory=list)
    last_store_timestamp: int = 0
    met_dispatched: bool = False
    queues_right: bool = True


class _Recovery:
    def __init__(
        self,
        lane: LaneDirectory,
        segment_bytes: int,
        channel: FileChannel,
        report: Report,
        queue_file_bytes: int,
        store_id: str,
    ) -> None:
        self.lane, self.size, self.channel, self.report = lane, segment_bytes, channel, report
        self.quarantine = Quarantine(lane, segment_bytes, channel)
        self.queue_files = QueueFiles(lane, channel, queue_file_bytes)
        self.queue_check, self.queue_repair = QueueCheck(self.queue_files), QueueRepair(self.queue_files)
        self.positions = PositionsFile(lane, store_id, channel)
        self.findings: list[str] = []
        self.stopped_properly = not lane.abort_file.exists()
        self.last_report_ns = SYSTEM_CLOCK.monotonic_ns()

    def run(self, known_end: int) -> LaneEnd:
        self._clean_up()
        self._finish_cut()
        self._fit_sizes()
        segments = MappedFileQueue(self.lane.commitlog, self.size, self.channel)
        for path, reason in segments.findings:
            self._find(f"{path}: {reason}")
        log = LogScan(segments, self.lane.number, progress=self._progress)
        positions = self._load_positions(segments)
        self._finish_deletion(segments, positions)
        flushed = max(positions.flushed_where, self._too_old(log), self._stopped_at(segments, positions.flushed_where))
        walked, dispatched = self._walk(log, positions, max(flushed, known_end))
        for gap in walked.corrupt:
            self._note_corruption(gap)
        self._cut(log, walked)
        if walked.end > flushed:
            kept_from = flushed - flushed % _PAGE_BYTES
            write_again(self.lane, self.size, kept_from, walked.end, self.channel, self._progress)
        self.channel.sync_directory(self.lane.commitlog)
        for finding in (*self.queue_repair.cut(walked.end), *self.queue_repair.trim()):
            self._find(finding)
        self.queue_repair.finish()
        first = segments.first if segments.starts else walked.end
        return LaneEnd(
            first=first,
            end=walked.end,
            dispatched=dispatched,
            allocated=self._allocated(walked.end),
            last_store_timestamp=walked.last_store_timestamp,
            findings=tuple(self.findings),
            entries=total_of_ends(self.lane, first, dispatched, self.channel),
        )

    def _find(self, finding: str) -> None:
        finding = f"lane {self.lane.number}: {finding}"
        if finding not in self.findings:
            self.findings.append(finding)
            self.report(finding)

    def _progress(self, where: int) -> None:
        now = SYSTEM_CLOCK.monotonic_ns()
        if now - self.last_report_ns >= _PROGRESS_NS:
            self.last_report_ns = now
            self.report(f"lane {self.lane.number}: recovery is at {where / 1e6:,.0f} MB")

    # ---- before the walk ------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Segments that were being made, and copies, never had anything of the log in them."""
        self.quarantine.clean()
        for name in self.channel.list(self.lane.tmp):
            path = self.lane.tmp / name
            if path.is_dir() and not path.is_symlink():
                self._find(f"{path}: a directory that nobody here made; passed over")
            else:
                self.channel.unlink(path)

    def _finish_cut(self) -> None:
        """Goes on with a cut that a killed recovery had begun, unless somebody appended there
        since.
        """
        cut = self.quarantine.pending()
        if cut is None:
            return
        log = LogScan(MappedFileQueue(self.lane.commitlog, self.size, self.channel), self.lane.number)
        if log.holds_record(cut.end):
            self.quarantine.drop_plan(cut.note)
        else:
            self._carry_out(cut)

    def _fit_sizes(self) -> None:
        """A segment file that is too short gets zeros for what is missing; what is too much of one
        is set aside.

        So that all readers find the size that they count on; what the zeros stand for is found by
        the walk.
        """
        segments = MappedFileQueue(self.lane.commitlog, self.size, self.channel)
        sizes = set(segments.wrong_sizes.values())
        all_wrong = len(segments.wrong_sizes) == len(segments.starts)
        if len(sizes) == 1 and all_wrong and (len(segments.starts) > 1 or _is_power_of_two(*sizes)):
            raise RecoveryError(
                f"{self.lane.commitlog}: segments of {sizes.pop():,} bytes, store.json says {self.size:,}; correct "
                f"segment_bytes there"
            )
        for start, length in segments.wrong_sizes.items():
            with self.channel.opened(segments.path(start), write=True) as fd:
                if length > self.size:
                    self.quarantine.keep_surplus(start, length)
                    self.channel.truncate(fd, self.size)
                else:
                    self.channel.allocate(fd, self.size)
                self.channel.fdatasync(fd)
            self._find(f"{segments.path(start)}: was {length:,} bytes, a segment has {self.size:,}; made to fit")

    def _load_positions(self, segments: MappedFileQueue) -> Positions:
        """The recorded positions; zeros where there are none, which only means a longer walk."""
        positions = self._recorded()
        if positions is None:
            if segments.starts and segments.first == 0:
                self._note_long_walk(segments)
            return Positions(0, 0, 0, 0, 0, False)
        if segments.first > positions.first_where and segments.starts:
            reason = f"the files of [{positions.first_where:,}, {segments.first:,}) are missing"
            self._note_corruption(Gap(positions.first_where, segments.first, "", reason, False, False, 0))
        return positions

    def _finish_deletion(self, segments: MappedFileQueue, positions: Positions) -> None:
        """Retention had retired what lies below the recorded first; of the names that it removed
        then, a power cut may have brought any back. Where these leave a hole, they all go: nobody
        is told that there is damage."""
        first = positions.first_where
        retired = [start for start in segments.starts if start + self.size <= first]
        expected = range(retired[0] if retired else first, first, self.size)
        if first in segments and retired != list(expected):
            for start in retired:
                self.channel.unlink(segments.path(start))
            self.channel.sync_directory(self.lane.commitlog)
            segments.look()

    def _recorded(self) -> Positions | None:
        try:
            found = self.positions.load()
        except DamagedFile as error:
            raise RecoveryError(str(error)) from error
        for finding in self.positions.findings:
            self._find(finding)
        return found

    def _note_long_walk(self, segments: MappedFileQueue) -> None:
        if segments.end - segments.first > self.size:
            self.report(f"lane {self.lane.number}: no record of positions; its whole log is checked")

    def _too_old(self, log: LogScan) -> int:
        """What lies so many segments before the end can't have been unflushed: the pool has no more
        buffers.
        """
        for start in reversed(log.segments.starts):
            if log.holds_record(start):
                return max(start - MAX_SLOTS * self.size, 0)
        return 0

    def _stopped_at(self, segments: MappedFileQueue, recorded: int) -> int:
        """How far a lane that was stopped properly has anything but zeros; 0 for one that was
        killed.
        """
        if self.stopped_properly:
            for start in reversed(segments.starts):
                known = min(max(recorded - start, 0), self.size)
                end = segments.last_nonzero(start, known)
                if end:
                    return start + end
        return 0

    # ---- the walk -------------------------------------------------------------------------------

    def _walk(self, log: LogScan, positions: Positions, flushed: int) -> tuple[_Walked, int]:
        """Walks from the recorded `dispatched`; from the first segment where that or the consume
        queues are doubtful.

        Also gives the place up to which the queues are right: the recorded one, or the end where
        they were built here.
        """
        first, dispatched = log.segments.first, positions.dispatched_where
        known = first <= dispatched and self.queue_check.have_all_below(log, dispatched, positions.entries)
        if known and (dispatched > 0 or not log.segments.starts):
            walked = self._walk_from(log, dispatched, flushed, build=False)
            if walked.met_dispatched and walked.queues_right:
                if any(gap.end > dispatched for gap in walked.corrupt):  # a dispatcher would not get past it
                    walked = self._walk_from(log, dispatched, flushed, build=True)
                    dispatched = walked.end
                return walked, min(dispatched, walked.end)
        for finding in self.queue_check.findings:
            self._find(finding)
        self.queue_repair.begin_rebuild(first)
        walked = self._walk_from(log, first, flushed, build=True)
        return walked, walked.end

    def _walk_from(self, log: LogScan, dispatched: int, flushed: int, *, build: bool) -> _Walked:
        """`build`: places the consume queue entries of all that is kept."""
        # from the start of its segment, which proves the place; of the one before, for the last
        # record's time
        start = max((dispatched - 1) // self.size * self.size, log.segments.first)
        walked = _Walked(end=start, met_dispatched=dispatched == start)
        self.queue_repair.gaps = walked.corrupt  # what lost queue offsets are in
        for piece in log.pieces(start):
            if isinstance(piece, Gap):
                if walked.torn is None:
                    self._judge(walked, piece, flushed, log.segments)
                walked.met_dispatched |= dispatched in (piece.start, piece.end)
            elif walked.torn is not None:
                walked.records_after += len(piece)
            else:
                self._count(walked, piece, dispatched, None if build else self.queue_check)
                if build:
                    self.queue_repair.place(piece)
        walked.met_dispatched |= dispatched == walked.end
        return walked

    def _count(self, walked: _Walked, table: RecordTable, dispatched: int, check: QueueCheck | None) -> None:
        where = table.physical_offsets
        walked.last_store_timestamp = int(table.store_timestamps[-1])
        walked.met_dispatched |= bool((where == dispatched).any())
        if check is not None and walked.queues_right:
            old = int(np.searchsorted(where, dispatched))
            walked.queues_right = check.have_entries(table, old) and check.reach(table, old)

    def _judge(self, walked: _Walked, gap: Gap, flushed: int, segments: MappedFileQueue) -> None:
        """Is this gap the log's end, or damage within it?"""
        walked.end = gap.start
        below = gap.start < flushed
        unfinished = not self.stopped_properly and (
            gap.claimed_end > flushed or gap.start + RECOGNISABLE_BYTES > flushed
        )
        if below and ((gap.end <= flushed and not gap.last) or not unfinished):
            if gap.last:
                walked.torn = gap
                gap = replace(gap, end=self._resume_at(flushed, segments))
            walked.corrupt.append(gap)
            walked.end = gap.end
        elif gap.dirty or not gap.last:
            walked.torn = gap

    def _resume_at(self, flushed: int, segments: MappedFileQueue) -> int:
        """Where a log goes on that is damaged up to what was flushed: behind it, so that no offset
        is used twice.
        """
        base = flushed - flushed % self.size
        has_room = segments.find(flushed) is not None and base + self.size - flushed >= BLANK_BYTES
        return flushed if has_room or flushed == base else base + self.size

    # ---- repairs --------------------------------------------------------------------------------

    def _note_corruption(self, gap: Gap) -> None:
        reason = gap.reason or "the segment file is missing"
        self._find(self.quarantine.note_corruption(gap.file, gap.start, gap.end, reason))

    def _carry_out(self, cut: Cut) -> None:
        """Where it takes away what was recorded as flushed (a last record that seems to reach
        beyond), that is recorded first: else the next recovery would take the zeros there for
        damage, and go on behind them."""
        positions = self._recorded()
        if positions is not None and positions.flushed_where > cut.end:
            dispatched, first = (min(old, cut.end) for old in (positions.dispatched_where, positions.first_where))
            self.positions.store(
                replace(positions, flushed_where=cut.end, dispatched_where=dispatched, first_where=first, entries=-1)
            )
        self.quarantine.carry_out(cut)

    def _cut(self, log: LogScan, walked: _Walked) -> None:
        """Takes what is behind the end out of the log. Files made ahead, all zero, stay."""
        if walked.torn is None:
            return
        end, segments = walked.end, log.segments
        base = end - end % self.size
        # a file that begins at the end stays too: a log without any file would begin at 0 again
        dirty_end = base + segments.last_nonzero(base, end - base) if base in segments else end
        later = self._not_made_ahead(segments, end)
        if dirty_end == end and not later:
            return
        reason = walked.torn.reason or "nothing follows on"
        self._carry_out(self.quarantine.plan(end, dirty_end, later, reason, walked.records_after))
        lost = f", {walked.records_after:,} good records among them: possible loss" if walked.records_after else ""
        files = f" and {len(later)} segment files" if later else ""
        self._find(
            f"torn tail: {segments.path(base)} at offset {end}: {reason}; {dirty_end - end:,} bytes{files} behind the "
            f"end of the log are in {self.quarantine.path}{lost}"
        )

    def _not_made_ahead(self, segments: MappedFileQueue, end: int) -> list[int]:
        """Files behind the log's end, but for those that may stay: all zero, and following on it
        without a hole.
        """
        base = end - end % self.size
        behind = [start for start in segments.starts if start > base]
        expected = base + self.size if base in segments else base
        while behind and behind[0] == expected and not segments.last_nonzero(expected):
            expected += self.size
            del behind[0]
        return behind

    def _allocated(self, end: int) -> int:
        segments = MappedFileQueue(self.lane.commitlog, self.size, self.channel)
        where = end - end % self.size
        while where in segments:
            where += self.size
        return where


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0

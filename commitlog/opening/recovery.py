"""Recovers a lane from its files, if no pool is left.

It finds the end of the log, cuts a torn tail off, and reports damage.

    first           recorded `flushed`            end of the log           end of the last file
      ├──────────────────────┼───────────────────────────┼───────────────────────────┤
      │ a bad record is      │ kept: written again       │ torn tail: copied to      │
      │ corruption: reported │ and synced, it may have   │ quarantine/, then zeroed; │
      │ and left in place    │ been in memory only       │ later files set aside     │

Flushed bytes are never cut. So a record that readers have seen keeps its place, and its offset
never names another record later. A lane without `abort` was stopped properly, by us or by a
RocketMQ, so all of its log was flushed. The log is walked from the recorded `dispatched` on. If no
positions are recorded, it is walked from its first segment on.

Every step may be repeated. A recovery that was killed anywhere and is started again ends the same.
On a sound lane it changes no byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import FILE_BYTES
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import try_file
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import Cut, Quarantine, rewrite_log
from commitlog.disk.store_directory import LaneDirectory
from commitlog.disk.topic_ends import TopicEnds, load_ends
from commitlog.errors import DamagedFile, RecoveryError, named_faults
from commitlog.opening import Report
from commitlog.opening.lost_files import gaps_of_files
from commitlog.opening.lowered_marks import lower_marks
from commitlog.opening.noted_damage import NamedMessages, note_damage
from commitlog.opening.queue_check import QueueCheck
from commitlog.opening.queue_files import QueueFiles
from commitlog.opening.queue_repair import QueueRepair
from commitlog.reading.flushed_evidence import FlushedEvidence, flushed_by_age
from commitlog.reading.indexed_offsets import IndexedOffsets
from commitlog.reading.log_begin import begin_of_log, other_lanes_log, other_log
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.queue_bounds import total_of_ends
from commitlog.record.record_layout import BLANK_BYTES
from commitlog.record.table import RecordTable
from commitlog.shm.layout import segment_start
from commitlog.system.clock import SYSTEM_CLOCK

_PAGE_BYTES = 4096
"""Where a rewrite begins: one byte makes all of its block dirty, also where blocks are larger."""
_PROGRESS_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """The state of a lane after recovery. Offsets are bytes of the lane's log."""

    first: int
    """Start of the first segment file."""
    end: int
    """End of the valid log: a record's end, or a segment's start. All below it is durable."""
    dispatched: int
    """The consume queues are right and durable up to here: a record's start, not behind `end`."""
    allocated: int
    """Segment files exist in full size up to here; a multiple of the segment size."""
    last_store_timestamp: int
    """ms, of the last record below `end`; 0 without records."""
    findings: tuple[str, ...]
    entries: int = -1
    """The sum of the ends of all consume queues; −1 if they can't be read.

    The end of a queue is one past its last entry below `dispatched`.
    """


def recover_lane(
    lane_directory: LaneDirectory,
    segment_bytes: int,
    channel: FileChannel,
    report: Report,
    *,
    queue_file_bytes: int = FILE_BYTES,
    known_end: int = 0,
    store_id: str = "",
) -> LaneEnd:
    """Makes the lane ready to be appended to, before anybody appends or reads.

    `report` gets a line for each finding, and now and then a line of progress. `queue_file_bytes`
    is the configured size of a consume queue's files; if the lane has files of another size, that
    size counts. `known_end` is a log offset that the log is known to reach: a bad record below it
    is damage and no torn tail. `store_id` is the store whose `positions` count; see PositionsFile.

    Raises RecoveryError if the lane is in use or can't be opened without losing data, and DiskError
    if the disk refuses.
    """
    with named_faults(f"recovery of {lane_directory.path}", "it was left as it is"):
        _prepare_directories(lane_directory, channel)
        with _locked(lane_directory, channel):
            recovery = _Recovery(lane_directory, segment_bytes, channel, report, queue_file_bytes, store_id)
            try:
                return recovery.run(known_end)
            finally:
                recovery.queue_files.close()


def _prepare_directories(lane_directory: LaneDirectory, channel: FileChannel) -> None:
    for path in (lane_directory.commitlog, lane_directory.consumequeue, lane_directory.tmp):
        if os.path.lexists(path) and not path.is_dir():
            raise RecoveryError(f"{path} is not a directory; move it away, then start again")
        channel.create_directory(path, below=lane_directory.path)
    # the process that made a name may have been killed before it synced the name
    for directory in (lane_directory.path, lane_directory.path.parent):
        channel.sync_directory(directory)


@contextmanager
def _locked(lane_directory: LaneDirectory, channel: FileChannel) -> Iterator[None]:
    fd = try_file(lane_directory.lock_file, channel)
    if fd is None:
        raise RecoveryError(
            f"lane {lane_directory.number}: {lane_directory.lock_file} is held, by a producer of the last run or a "
            f"RocketMQ that has the lane open; end it, then start again"
        )
    try:
        yield
    finally:
        channel.close(fd)


@dataclass
class _Walked:
    """The findings of one walk over the log."""

    end: int = 0
    torn: Gap | None = None
    """The gap that ends the log; None if nothing must be cut off."""
    records_after: int = 0
    corrupt: list[Gap] = field(default_factory=list)
    last_store_timestamp: int = 0
    met_dispatched: bool = False
    queues_right: bool = True


class _Recovery:
    def __init__(
        self,
        lane_directory: LaneDirectory,
        segment_bytes: int,
        channel: FileChannel,
        report: Report,
        queue_file_bytes: int,
        store_id: str,
    ) -> None:
        self.lane_directory, self.size, self.channel, self.report = lane_directory, segment_bytes, channel, report
        self.lane = lane_directory.number
        self.quarantine = Quarantine(lane_directory, segment_bytes, channel)
        self.queue_files = QueueFiles(lane_directory, channel, queue_file_bytes)
        self.queue_check, self.queue_repair = QueueCheck(self.queue_files), QueueRepair(self.queue_files)
        self.store_id, self.positions = store_id, PositionsFile(lane_directory, store_id, channel)
        self.findings: list[str] = []
        self.too_short: list[int] = []
        """Starts of the segment files that were too short."""
        self.ends = TopicEnds()
        self.stopped_properly = not lane_directory.abort_file.exists()
        self.last_report_ns = SYSTEM_CLOCK.monotonic_ns()

    def run(self, known_end: int) -> LaneEnd:
        self._clean_up()
        self._finish_cut()
        self._fit_sizes()
        segments = MappedFileQueue(self.lane_directory.commitlog, self.size, self.channel)
        for path, reason in segments.findings:
            self._find(f"{path}: {reason}")
        if other := other_lanes_log(segments, self.lane_directory):
            raise RecoveryError(other)
        log = LogScan(segments, self.lane, progress=self._progress)
        recorded = self._recorded()
        if recorded is not None:
            if other := other_log(segments, self.lane_directory, recorded.dispatched_where):
                raise RecoveryError(f"{self.lane_directory.commitlog}: {other}")
            self._finish_deletion(segments, recorded)
        positions = self._positions_of(log, recorded, known_end)
        flushed = max(positions.flushed_where, flushed_by_age(log), self._stopped_at(segments, positions.flushed_where))
        self.durable = flushed  # the log behind it may be in memory only
        has_positions, whole = recorded is not None, flushed if self.stopped_properly else 0
        self.evidence = FlushedEvidence(
            self.lane_directory, log, self.channel, has_positions, max(flushed, known_end), max(whole, known_end)
        )
        if not has_positions:
            self.evidence.look()
        self._load_ends()
        walked, dispatched = self._walk(log, positions)
        walked_from = segment_start(max(positions.dispatched_where - 1, 0), self.size)
        gaps = [
            replace(gap, end=self._resume_at(segments)) if gap.last else gap
            for gap in gaps_of_files(log, positions.first_where, walked_from, self.too_short)
        ] + walked.corrupt
        self._cut(log, walked)
        self._make_durable(walked.end)
        self.channel.sync_directory(self.lane_directory.commitlog)
        first, counted = positions.first_where, (positions.dispatched_where, positions.entries)
        limit = self.evidence.flushed if self.stopped_properly else walked.end
        messages = NamedMessages(self.lane_directory, first, walked.end, self.channel, *counted, self.ends, limit)
        notes = note_damage(gaps, messages, self.quarantine, anew=self.queue_repair.is_rebuild)
        for finding in (*self.queue_repair.cut(walked.end), *self.queue_repair.trim(), *notes):
            self._find(finding)
        self.queue_repair.finish()
        if walked.end < self.ends.end:  # the log may come to this place again, with other messages
            self.channel.remove_file(self.lane_directory.ends_file)
        offsets = IndexedOffsets(self.lane_directory, self.size, walked.end, -1, self.channel, self.store_id)
        for finding in lower_marks(offsets, first, dispatched):
            self._find(finding)
        return LaneEnd(
            first=first,
            end=walked.end,
            dispatched=dispatched,
            allocated=self._allocated(walked.end),
            last_store_timestamp=walked.last_store_timestamp,
            findings=tuple(self.findings),
            entries=total_of_ends(self.lane_directory, first, dispatched, self.channel),
        )

    def _find(self, said: str) -> None:
        if (finding := f"lane {self.lane}: {said}") not in self.findings:
            self.findings.append(finding)
            self.report(finding)

    def _progress(self, where: int) -> None:
        now = SYSTEM_CLOCK.monotonic_ns()
        if now - self.last_report_ns >= _PROGRESS_NS:
            self.last_report_ns = now
            self.report(f"lane {self.lane}: recovery is at {where / 1e6:,.0f} MB")

    # ---- before the walk ------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Removes segments and copies that were being made: they were never a part of the log."""
        self.quarantine.clean()
        for name in self.channel.list(self.lane_directory.tmp):
            path = self.lane_directory.tmp / name
            if path.is_dir() and not path.is_symlink():
                self._find(f"{path}: a directory that nobody here made; passed over")
            else:
                self.channel.unlink(path)

    def _finish_cut(self) -> None:
        """Finishes a cut that a killed recovery or rejoin had begun.

        If somebody has appended since the cut was planned, a torn tail is not cut.
        """
        cut = self.quarantine.pending()
        if cut is None:
            return
        log = LogScan(MappedFileQueue(self.lane_directory.commitlog, self.size, self.channel), self.lane)
        if not cut.log_end and log.holds_record(cut.end):
            self.quarantine.drop_plan(cut.note)
        else:
            self._carry_out(cut)

    def _fit_sizes(self) -> None:
        """Gives every segment file the size that readers count on.

        The walk decides what the zeros mean that a file gets that is too short.
        """
        segments = MappedFileQueue(self.lane_directory.commitlog, self.size, self.channel)
        sizes = set(segments.wrong_sizes.values())
        all_wrong = len(segments.wrong_sizes) == len(segments.starts)
        if len(sizes) == 1 and all_wrong and (len(segments.starts) > 1 or _is_power_of_two(*sizes)):
            raise RecoveryError(
                f"{self.lane_directory.commitlog}: segments of {sizes.pop():,} bytes, store.json says {self.size:,}; correct "
                f"segment_bytes there"
            )
        self.too_short = [start for start, length in segments.wrong_sizes.items() if length < self.size]
        for start, length in segments.wrong_sizes.items():
            self._find(self.quarantine.fit(start, length))

    def _positions_of(self, log: LogScan, recorded: Positions | None, known_end: int) -> Positions:
        """Returns the recorded positions, with the begin of the log.

        Without recorded positions, all of them are the log's begin, which only means a longer walk.
        """
        first = begin_of_log(log, self.lane_directory, recorded.first_where if recorded else None, known_end)
        if recorded is not None:
            return replace(recorded, first_where=first)
        segments = log.segments
        if segments.end - segments.first > self.size:
            self.report(f"lane {self.lane}: no record of positions; its whole log is checked")
        flushed = segments.first if segments.starts else 0  # what comes before the first file was durable before it
        return Positions(0, max(flushed, first), first, first, 0, False)

    def _finish_deletion(self, segments: MappedFileQueue, positions: Positions) -> None:
        """Removes deleted segments again that came back after a power cut with a hole among them.

        Retention had deleted segments below the recorded first offset. A power cut may have brought
        some of these files back. If they leave a hole, all of them are removed, and no damage is
        reported.
        """
        first = positions.first_where
        retired = [start for start in segments.starts if start + self.size <= first]
        expected = range(retired[0] if retired else first, first, self.size)
        if first in segments and retired != list(expected):
            for start in retired:
                self.channel.unlink(segments.segment_path(start))
            self.channel.sync_directory(self.lane_directory.commitlog)
            segments.refresh()

    def _recorded(self) -> Positions | None:
        try:
            found = self.positions.load()
        except DamagedFile as error:
            raise RecoveryError(str(error)) from error
        for finding in self.positions.findings:
            self._find(finding)
        return found

    def _load_ends(self) -> None:
        try:
            self.ends = load_ends(self.lane_directory, self.store_id, self.channel)
        except DamagedFile as error:
            self._find(str(error))

    def _stopped_at(self, segments: MappedFileQueue, recorded: int) -> int:
        """The end of the last byte that is not zero, in a lane that was stopped properly.

        It is 0 for a lane that was killed.
        """
        if self.stopped_properly:
            for start in reversed(segments.starts):
                known = min(max(recorded - start, 0), self.size)
                end = segments.last_nonzero(start, known)
                if end:
                    return start + end
        return 0

    # ---- the walk -------------------------------------------------------------------------------

    def _walk(self, log: LogScan, positions: Positions) -> tuple[_Walked, int]:
        """Walks the log, and returns what it found and how far the consume queues are right.

        The walk begins at the recorded `dispatched`. If that offset or the queues are doubtful, it
        begins at the first segment, and builds the queues.
        """
        first, dispatched = positions.first_where, positions.dispatched_where
        known_ends = self.ends.topics if self.ends.end <= dispatched else {}
        known = first <= dispatched and self.queue_check.have_all_below(log, dispatched, positions.entries, known_ends)
        if known and (dispatched > 0 or not log.segments.starts):
            walked = self._walk_from(log, positions, build=False)
            if walked.met_dispatched and walked.queues_right:
                if any(gap.end > dispatched for gap in walked.corrupt):  # a dispatcher would not get past it
                    walked = self._walk_from(log, positions, build=True)
                    dispatched = walked.end
                return walked, min(dispatched, walked.end)
        for finding in self.queue_check.findings:
            self._find(finding)
        self.queue_repair.begin_rebuild(first)
        walked = self._walk_from(log, replace(positions, dispatched_where=first), build=True)
        for finding in self.queue_repair.reach(self.ends.topics if self.ends.end <= walked.end else {}):
            self._find(finding)
        return walked, walked.end

    def _walk_from(self, log: LogScan, positions: Positions, *, build: bool) -> _Walked:
        """Walks the log from the recorded `dispatched` on, and judges every gap.

        `build` places the consume queue entries of all records that are kept.
        """
        # The walk begins with a segment, which proves the place. Where `dispatched` is a segment's
        # start, the walk begins with the segment before it, to find the time of the last record.
        dispatched = positions.dispatched_where
        start = max(segment_start(dispatched - 1, self.size), positions.first_where)
        walked = _Walked(end=start, met_dispatched=dispatched == start)
        self.queue_repair.gaps = walked.corrupt  # lost queue offsets get entries that name these ranges
        for piece in log.pieces(start):
            if isinstance(piece, Gap):
                if walked.torn is None:
                    self._judge(walked, piece, log)
                walked.met_dispatched |= dispatched in (piece.start, piece.end)
            elif walked.torn is not None:
                walked.records_after += len(piece)
            else:
                self._count(walked, piece, dispatched, None if build else self.queue_check)
                if build:
                    self._make_durable(piece.buffer_start + piece.stop_position)
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

    def _judge(self, walked: _Walked, gap: Gap, log: LogScan) -> None:
        """Decides whether a gap is the log's end, or damage within it."""
        walked.end = gap.start
        evidence = self.evidence
        if gap.end > evidence.flushed or gap.last:
            evidence.look_at(gap)
        if evidence.is_damage(gap) or (gap.end <= evidence.flushed and not gap.last):
            if gap.last:
                walked.torn = gap
                gap = replace(gap, end=self._resume_at(log.segments))
            walked.corrupt.append(gap)
            walked.end = gap.end
        elif gap.dirty or not gap.last:
            walked.torn = gap

    def _resume_at(self, segments: MappedFileQueue) -> int:
        """Returns the offset at which a log goes on that is damaged up to `flushed`.

        The offset is behind the damage, so that no log offset is used twice.
        """
        flushed = self.evidence.flushed
        start = segment_start(flushed, self.size)
        has_room = segments.find(flushed) is not None and start + self.size - flushed >= BLANK_BYTES
        return flushed if has_room or flushed == start else start + self.size

    # ---- repairs --------------------------------------------------------------------------------

    def _make_durable(self, end: int) -> None:
        """Writes the log below `end` again and syncs it, as far as it may be in memory only.

        This comes before entries are placed: an entry proves that its record was flushed.
        """
        if end > self.durable:
            self.channel.sync_directory(self.lane_directory.commitlog)
            begin = self.durable - self.durable % _PAGE_BYTES
            rewrite_log(self.lane_directory, self.size, begin, end, self.channel, self._progress)
            self.durable = end

    def _carry_out(self, cut: Cut) -> None:
        """Carries a cut out.

        The cut may take away bytes that were recorded as flushed, if the last record seems to reach
        beyond the end. In that case the new end is recorded first. Otherwise the next recovery
        would take the zeros there for damage, and would go on behind them.
        """
        positions = self._recorded()
        if positions is not None and positions.flushed_where > cut.end:
            dispatched, first = (min(old, cut.end) for old in (positions.dispatched_where, positions.first_where))
            self.positions.store(
                replace(positions, flushed_where=cut.end, dispatched_where=dispatched, first_where=first, entries=-1)
            )
        self.quarantine.carry_out(cut)

    def _cut(self, log: LogScan, walked: _Walked) -> None:
        """Takes everything behind the end out of the log.

        Only files stay that were made ahead and are all zero.
        """
        if walked.torn is None:
            return
        end, segments = walked.end, log.segments
        start = segment_start(end, self.size)
        # a file that begins at the end stays too: a log without any file would begin at 0 again
        dirty_end = start + segments.last_nonzero(start, end - start) if start in segments else end
        later = self._not_made_ahead(segments, end)
        if dirty_end == end and not later:
            return
        reason = walked.torn.reason or "nothing follows on"
        self._carry_out(self.quarantine.plan(end, dirty_end, later, reason, walked.records_after))
        lost = f", {walked.records_after:,} good records among them: possible loss" if walked.records_after else ""
        files = f" and {len(later)} segment files" if later else ""
        self._find(
            f"torn tail: {segments.segment_path(start)} at offset {end}: {reason}; {dirty_end - end:,} bytes{files} behind "
            f"the end of the log are in {self.quarantine.path}{lost}"
        )

    def _not_made_ahead(self, segments: MappedFileQueue, end: int) -> list[int]:
        """Starts of the files behind the log's end, but for files of zeros that follow on."""
        last = segment_start(end, self.size)
        behind = [start for start in segments.starts if start > last]
        expected = last + self.size if last in segments else last
        while behind and behind[0] == expected and not segments.last_nonzero(expected):
            expected += self.size
            del behind[0]
        return behind

    def _allocated(self, end: int) -> int:
        segments = MappedFileQueue(self.lane_directory.commitlog, self.size, self.channel)
        for misplaced in segments.misplaced:
            if misplaced >= end:
                self._find(self.quarantine.set_misplaced_aside(misplaced))
        start = segment_start(end, self.size)
        while start in segments:
            start += self.size
        return start


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0

"""Checks logs and consume queues byte by byte, and says what is damaged and where.

It changes nothing. A record is good if its CRC is correct, if it is at its place, and if it has the
consume queue entry that belongs to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.consume_queue import ENTRY, ENTRY_BYTES, ConsumeQueue, queue_directories
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.open_queues import OpenQueues
from commitlog.disk.quarantine import corruption_notes, read_corruption_note
from commitlog.disk.queue_entries import by_topic, entries_of, runs
from commitlog.disk.store_directory import STORE_FILE, LaneDirectory, StoreDirectory, segment_name
from commitlog.disk.topic_ends import load_ends
from commitlog.disk.trim_marks import TrimMarks
from commitlog.errors import DamagedFile
from commitlog.inspecting.log_root import LogRoot, find_roots
from commitlog.inspecting.state_files import acknowledged_by_copy, damaged_state_files
from commitlog.reading.flushed_evidence import FlushedEvidence
from commitlog.reading.log_begin import begin_of_log, other_log
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.queue_order import LogOrder
from commitlog.record.byte_ranges import Ints
from commitlog.record.table import RecordTable
from commitlog.shm.layout import segment_start

NOT_A_DIRECTORY = "not a directory; move it away, or put back the directory that was there"
_FINDINGS_MOST = 1000
"""How many findings of one log are listed. Further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with its file and offset.

    The offset counts bytes: of the log for a segment, of the file for any other.
    """

    file: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What one log holds up to its end: its recorded end, else the end of its records.

    `lane` is None for a log of RocketMQ's; `records_bytes` are those of good records. Bytes behind
    the recorded end were left by a store that was killed, or by a RocketMQ that had the lane open.
    The next start of the store takes them in, or sets them aside.
    """

    path: str
    lane: int | None
    first: int
    end: int
    records: int
    records_bytes: int
    entries: int
    findings: tuple[Finding, ...]
    findings_more: int
    """How many findings there are beyond those listed."""
    records_behind: int
    """Good records behind the recorded end, which nobody reads yet."""
    bytes_behind: int
    """How many bytes these records have."""

    @property
    def good(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class StoreReport:
    """All logs at a path; `findings` are about files around them, such as `store.json`."""

    path: str
    lanes: tuple[LaneReport, ...]
    findings: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.findings and all(lane.good for lane in self.lanes)


def verify_store(
    path: str | os.PathLike[str], channel: FileChannel = DISK, progress: Callable[[int], None] = lambda where: None
) -> StoreReport:
    """Checks a store of ours, one of its lanes, or a RocketMQ store root.

    Of a running store it checks what is flushed. `progress` is called with log offsets. Raises
    StoreNotFound, StoreTooNew, StoreRefused.
    """
    directory = StoreDirectory(path, channel)
    acknowledged = acknowledged_by_copy(directory)  # before the logs, which may grow meanwhile
    roots, findings = find_roots(path, channel)
    lanes = tuple(
        verify_lane(root, channel, progress, 0 if root.lane is None else acknowledged.pop(root.lane, 0))
        for root in roots
    )
    around = damaged_state_files(directory) if (directory.path / STORE_FILE).exists() else []
    lost = [
        f"lane {lane} is missing: this copy had acknowledged {end:,} bytes of it" for lane, end in acknowledged.items()
    ]
    return StoreReport(str(directory.path), lanes, (*findings, *lost, *around))


def verify_lane(
    root: LogRoot,
    channel: FileChannel = DISK,
    progress: Callable[[int], None] = lambda where: None,
    acknowledged: int = 0,
) -> LaneReport:
    """Checks one log: each record, then what its consume queues say. Raises OSError.

    `acknowledged` is how far a copy of a store had it once, as it has said.
    """
    return _Check(root, channel, acknowledged).run(progress)


@dataclass
class _Check:
    root: LogRoot
    channel: FileChannel
    acknowledged: int = 0
    findings: list[Finding] = field(default_factory=list)
    more: int = 0
    records: int = 0
    records_bytes: int = 0
    records_behind: int = 0
    bytes_behind: int = 0
    entries: int = 0
    queues: OpenQueues = field(init=False)
    order: LogOrder = field(init=False)
    evidence: FlushedEvidence | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.queues, self.order = OpenQueues(self.channel), LogOrder(lambda _topic: None)

    def run(self, progress: Callable[[int], None]) -> LaneReport:
        scan = self.root.scan(self.channel)
        scan.progress = progress
        segments = scan.segments
        for path, reason in segments.findings:
            self._add_finding(path, 0, reason)
        first = end = segments.first
        self._check_begin(scan)
        try:
            for piece in scan.pieces(segments.first):
                if isinstance(piece, Gap):
                    self._check_gap(piece, segments)
                    self.order.pass_hole()
                    end = piece.start if piece.last else piece.end
                else:
                    if int(piece.physical_offsets[0]) > end + -end % segments.size:
                        self.order.pass_hole()  # retention has deleted what was between
                    end = self._count(piece)
                if self.root.limit is not None and end >= self.root.limit:
                    end = self.root.limit
                    break
            self._check_directories()
            self._check_ends(end)
            self._check_small_files()
            self._check_acknowledged(end, segments)
        finally:
            self.queues.close()
        return LaneReport(
            path=str(self.root.path),
            lane=self.root.lane,
            first=first,
            end=end if self.root.flushed is None else min(end, self.root.flushed),
            records=self.records,
            records_bytes=self.records_bytes,
            entries=self.entries,
            findings=tuple(self.findings),
            findings_more=self.more,
            records_behind=self.records_behind,
            bytes_behind=self.bytes_behind,
        )

    def _add_finding(self, file: Path, offset: int, reason: str) -> None:
        if len(self.findings) < _FINDINGS_MOST:
            self.findings.append(Finding(str(file), offset, reason))
        else:
            self.more += 1

    def _check_acknowledged(self, end: int, segments: MappedFileQueue) -> None:
        """Reports how much a copy lacks at its end that it had acknowledged."""
        end = max(end, self.root.flushed or 0)  # what is missing below that was reported
        if end < self.acknowledged:
            path = segments.segment_path(segment_start(end, segments.size))
            self._add_finding(
                path,
                end,
                f"this copy had acknowledged the log up to {self.acknowledged:,}: it lacks {self.acknowledged - end:,} "
                f"bytes, which `commitlog replica` asks its store for",
            )

    # ---- the log --------------------------------------------------------------------------------

    def _check_begin(self, scan: LogScan) -> None:
        """Reports what is missing before the first file, and was not deleted by retention.

        It also reports a log that is another's. The positions are read after the files were listed:
        they say what is deleted before it goes.
        """
        if self.root.lane is None:
            return
        segments, lane_directory = scan.segments, LaneDirectory(self.root.path, self.root.lane)
        known = PositionsFile(lane_directory, "", self.channel).load()
        begin = begin_of_log(scan, lane_directory, None if known is None else known.first_where)
        trims = TrimMarks(lane_directory, self.channel)
        with contextlib.suppress(DamagedFile, OSError):  # `_check_small_files` reports it
            trims.refresh("")
        if begin == segments.first == 0:  # nothing was deleted: each topic begins at 0, or where its mark may be
            self.order = LogOrder(lambda topic: None if topic in trims.marks else 0)
        if begin < segments.first and segments.starts:
            path = segments.segment_path(segment_start(begin, segments.size))
            reason = f"the files of [{begin:,}, {segments.first:,}) are missing"
            unknown = ", or were deleted: no `positions` are there to tell" if known is None else ""
            self._add_finding(path, begin, reason + unknown)
        if other := other_log(segments, lane_directory, self.root.dispatched):
            self._add_finding(lane_directory.commitlog, self.root.dispatched, other)

    def _check_gap(self, gap: Gap, segments: MappedFileQueue) -> None:
        limit = self.root.limit
        file, flushed = Path(gap.file), self.root.flushed
        besides = self._flushed_besides(gap)
        is_whole = self.root.ends_whole or gap.start < besides
        is_cut = gap.last and flushed is not None and not is_whole and gap.is_unfinished(flushed)
        if limit is not None and (gap.start >= limit or is_cut):
            return  # more of the record is flushed soon
        if not gap.last and flushed is not None and gap.start >= max(flushed, besides):
            self._add_finding(
                file, gap.start, f"{gap.reason}; a torn tail: the next start of the store cuts the log here"
            )
        elif not gap.last:
            self._add_finding(file, gap.start, f"{gap.reason}; {gap.end - gap.start:,} bytes hold no record")
        elif gap.start < max(flushed or 0, besides) and not (is_cut and gap.dirty):
            reason = gap.reason or "the file is missing"
            self._add_finding(file, gap.start, f"{reason}; flushed was {max(flushed or 0, besides):,}")
        elif gap.dirty:
            self._add_finding(file, gap.start, f"{gap.reason}; a torn tail: the next start of the store sets it aside")

    def _flushed_besides(self, gap: Gap) -> int:
        """The offset up to which the log was flushed, by the consume queues.

        It may be behind the recorded end.
        """
        if self.root.lane is None or self.root.limit is not None:
            return 0
        evidence = copy(self._evidence(self.root.lane))
        evidence.look_at(gap)
        return evidence.flushed

    def _evidence(self, lane: int) -> FlushedEvidence:
        """What the consume queues tell. They are read once, and each gap goes on from there."""
        if self.evidence is None:
            directory, log = LaneDirectory(self.root.path, lane), self.root.scan(self.channel)
            self.evidence = FlushedEvidence(directory, log, self.channel, has_positions=True, flushed=0, whole=0)
            self.evidence.look()
        return self.evidence

    def _count(self, table: RecordTable) -> int:
        """Counts the records of a table. Returns its end as a log offset."""
        count, end = len(table), self.root.flushed
        if end is not None:
            count = int(np.searchsorted(table.physical_offsets + table.sizes, end, side="right"))
        self.records += count
        self.records_bytes += int(table.sizes[:count].sum())
        if self.root.limit is None:
            self.records_behind += len(table) - count
            self.bytes_behind += int(table.sizes[count:].sum())
        if self.root.lane is not None:  # a log of RocketMQ's has the queues of many lanes
            for where, reason in self.order.faults(table, count):
                self._add_finding(self.root.path / "commitlog" / segment_name(table.buffer_start), where, reason)
        for topic, rows in by_topic(table, count):
            for queue_id in np.unique(table.queue_ids[rows]).tolist():
                self._check_entries(table, topic, int(queue_id), rows[table.queue_ids[rows] == queue_id])
        return table.buffer_start + table.stop_position

    # ---- consume queues -------------------------------------------------------------------------

    def _check_entries(self, table: RecordTable, topic: str, queue_id: int, rows: Ints) -> None:
        """Compares the entries of some records of one queue.

        Entries above `dispatched` need not be there yet.
        """
        queue = self.queues.get(self.root.path / "consumequeue" / topic / str(queue_id))
        for begin, end in runs(table.queue_offsets[rows]):
            some = rows[begin:end]
            first = int(table.queue_offsets[some[0]])
            expected, actual = entries_of(table, some), np.zeros(len(some), ENTRY)
            try:
                found = queue.entries(first, len(some))
                actual[: len(found)] = found
            except (DamagedFile, OSError, OverflowError, ValueError) as error:
                if not self._is_retired(table):
                    self._add_finding(queue.directory, max(first, 0) * ENTRY_BYTES, f"unreadable: {error}")
                continue
            there = actual["size"] != 0
            self.entries += int(there.sum())
            needed = table.physical_offsets[some] < self.root.dispatched
            wrong = np.flatnonzero((actual != expected) & (there | needed))
            if len(wrong) and not self._is_retired(table):
                place = first + int(wrong[0])
                where = int(table.physical_offsets[some[wrong[0]]])
                kind = "wrong" if there[wrong[0]] else "missing"
                reason = f"{len(wrong):,} entries are {kind}, the first is {place} of the record at {where}"
                self._add_finding(queue.directory, place * ENTRY_BYTES, reason)

    def _is_retired(self, table: RecordTable) -> bool:
        """Whether retention has removed the segment since; it may remove entries too.

        That is no damage.
        """
        return not (self.root.path / "commitlog" / segment_name(table.buffer_start)).exists()

    def _check_directories(self) -> None:
        """Reports what is in the place of a directory of a lane of ours."""
        if self.root.lane is not None:
            for path in LaneDirectory(self.root.path, self.root.lane).misplaced():
                self._add_finding(path, 0, NOT_A_DIRECTORY)

    def _check_small_files(self) -> None:
        """Checks that the JSON files of a lane of ours can be read."""
        if self.root.lane is None:
            return
        lane_directory = LaneDirectory(self.root.path, self.root.lane)
        try:
            TrimMarks(lane_directory, self.channel).refresh("")
        except (DamagedFile, OSError) as error:
            self._add_finding(lane_directory.trimmed_file, 0, f"unreadable: {error}")
        try:
            load_ends(lane_directory, "", self.channel)
        except (DamagedFile, OSError) as error:
            self._add_finding(lane_directory.ends_file, 0, f"unreadable: {error}")
        if not lane_directory.quarantine.is_dir():
            return
        for _, note in corruption_notes(lane_directory, self.channel):
            try:
                read_corruption_note(note, self.channel)
            except (DamagedFile, OSError) as error:
                self._add_finding(note, 0, f"unreadable: {error}")

    def _check_ends(self, end: int) -> None:
        """Reports queues that name a record past the log's end."""
        queues = self.root.path / "consumequeue"
        if self.root.limit is not None or not queues.is_dir():
            return
        for directory in queue_directories(queues, self.channel):
            try:
                self._check_end(self.queues.get(directory), end)
            except (DamagedFile, OSError) as error:
                self._add_finding(directory, 0, f"unreadable: {error}")

    def _check_end(self, queue: ConsumeQueue, end: int) -> None:
        count = queue.end()
        last = queue.entries(count - 1, 1) if count else np.empty(0, ENTRY)
        if len(last) and int(last["physical_offset"][0]) >= end:
            place = (count - 1) * ENTRY_BYTES
            self._add_finding(queue.directory, place, f"entry {count - 1} names a record past the log's end, {end}")

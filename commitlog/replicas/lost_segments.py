"""Whether a copy is whole: which segments of its lanes are lost, and how they come back.

A lane of a copy is a chain of segments, from the first one that retention keeps to where it was
durable. A segment may be lost, or be damaged, while nobody looks: a disk, a restore, a user. So the
chain is looked at before the recovery, which would take a lost part for damage that the store has
too. If the end of a lane is lost, its positions are lowered, and that part comes again like new
data. Lost segments before the end are asked for one by one. Each is checked before it gets its
name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.new_segment import NewSegment
from commitlog.disk.quarantine import Quarantine, corruption_notes, is_noted, read_corruption_note
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.errors import CorruptRecord, DamagedFile, RecoveryError, ReplicaRefused, ReplicationRefused, named_faults
from commitlog.opening.lost_files import gaps_of_files
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.queue_repair import cut_queues
from commitlog.reading.flushed_evidence import flushed_by_queues
from commitlog.reading.log_begin import begin_of_log
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.replicas.segment_sums import SegmentSums
from commitlog.replicas.wire import WANTED_MOST, Frame, Kind
from commitlog.shm.layout import segment_start


@dataclass(frozen=True)
class LaneChain:
    """The segments of one lane. Offsets are bytes of its log."""

    lane: int
    first: int
    end: int
    """How far it was durable, at least: as its positions, consume queues and segments say.

    Without positions: as `replica.json` says.
    """
    lost: tuple[int, ...]
    """Starts of the segments in [first, end) that are missing or damaged."""
    size: int
    positions: Positions | None
    noted: Mapping[int, int] = field(default_factory=dict)
    """Those of the lost ones in which only this copy has noted damage → where that begins."""

    @property
    def whole_end(self) -> int:
        """The end of the last segment that is there; `end` where that is within it.

        Of one with damage it is where the damage begins.
        """
        start, lost = (self.end - 1) // self.size * self.size, {*self.lost}
        while start >= self.first and start in lost:
            if self.first < self.noted.get(start, 0) < self.end:
                return self.noted[start]
            start -= self.size
        return max(min(start + self.size, self.end), self.first)

    @property
    def wanted(self) -> tuple[int, ...]:
        """The lost segments before one that is there."""
        return tuple(start for start in self.lost if start + self.size <= self.whole_end)

    @property
    def lost_bytes(self) -> int:
        return sum(min(start + self.size, self.end) - start for start in self.lost)


def look_at_lanes(
    directory: StoreDirectory,
    facts: StoreFacts,
    acknowledged: Mapping[int, int],
    noted: Mapping[int, Mapping[int, int]] = MappingProxyType({}),
    *,
    verify_all: bool,
    by_sums: bool = False,
) -> list[LaneChain]:
    """The chains of all lanes that are there, or that were once: `acknowledged` knows them.

    `noted` has the segments by lane in which only this copy has noted damage (`own_notes`): they
    count as lost.
    Each segment has to be there in its size, and to begin with a record. With `by_sums` it has to
    have the checksum that the copy has noted, and with `verify_all` each record of it is checked.
    Raises RecoveryError, DiskError.
    """
    with named_faults(f"{directory.path}: looking whether the copy is whole", "it was left as it is"):
        numbers = sorted({*directory.lane_numbers(), *acknowledged})
        return [
            _look(directory, facts, lane, acknowledged.get(lane, 0), noted.get(lane, {}), verify_all, by_sums)
            for lane in numbers
        ]


def _look(
    directory: StoreDirectory,
    facts: StoreFacts,
    number: int,
    acknowledged: int,
    noted: Mapping[int, int],
    verify_all: bool,
    by_sums: bool,
) -> LaneChain:
    lane, size, channel = directory.lane_directory(number), facts.segment_bytes, directory.channel
    try:
        positions = PositionsFile(lane, facts.id, channel).load()
    except DamagedFile as error:
        raise RecoveryError(str(error)) from error
    segments = MappedFileQueue(lane.commitlog, size, channel)
    log = LogScan(segments, number)
    first = begin_of_log(log, lane, positions.first_where if positions else None)

    def is_bad(start: int) -> bool:
        if start not in segments or start in segments.wrong_sizes:
            return True
        return not log.holds_record(start) and not is_noted(lane, start)

    end = max(positions.flushed_where if positions else acknowledged, flushed_by_queues(lane, log, channel), first)
    # positions are recorded once in a second, and a segment is begun when all before it are durable
    last = next((start for start in reversed(segments.starts) if _has_data(segments, start)), first)
    if last >= end:
        is_torn = acknowledged <= last and not log.holds_record_between(last, last + size)
        end = last + size if is_bad(last) and not is_torn else last
    starts = range(first, end, size)
    lost = {start for start in starts if start in noted or is_bad(start)}
    if by_sums:
        sums = SegmentSums(lane, facts.id, size, channel)
        verify_all |= bool(sums.load(first, end))
        lost |= {*sums.changed()}
    if verify_all:
        for gap in gaps_of_files(log, first, end - end % size, starts):
            if not is_noted(lane, gap.start):
                lost |= {*range(gap.start - gap.start % size, min(gap.end, end), size)}
    segments.let_go()
    return LaneChain(number, first, end, tuple(sorted(lost)), size, positions, noted)


def _has_data(segments: MappedFileQueue, start: int) -> bool:
    return start in segments.wrong_sizes or segments.last_nonzero(start, segments.size) > 0


def own_notes(directory: StoreDirectory, lane: int, first: int, size: int, named: Collection[str]) -> dict[int, int]:
    """The segments from `first` on in which this copy has noted damage, and its store has not.

    Each has the log offset where that begins. `named` has the names of the store's notes. Recovery
    has made the others, of damage that only this copy has. Raises DamagedFile, OSError.
    """
    found = dict[int, int]()
    for at, note in corruption_notes(directory.lane_directory(lane), directory.channel):
        if at >= first and str(note.relative_to(directory.path)) not in named:
            _, end = read_corruption_note(note, directory.channel)
            for start in range(at - at % size, max(end, at + 1), size):
                found[start] = min(max(at, start), found.get(start, start + size))
    return found


def shorten(directory: StoreDirectory, facts: StoreFacts, chain: LaneChain) -> None:
    """Takes what is lost at the end of a lane off its positions.

    Raises RecoveryError, DiskError.
    """
    if chain.whole_end < chain.end:
        with named_faults(f"{directory.path}: taking off what the copy has lost", "the next run goes on from there"):
            lane = directory.lane_directory(chain.lane)
            for at, note in list(corruption_notes(lane, directory.channel)):
                if at >= chain.whole_end:  # the store sends those that it has
                    directory.channel.unlink(note)
            cut_queues(lane, chain.whole_end, directory.channel, queue_file_bytes(facts))
        _store_positions(directory, facts, chain, chain.first, chain.whole_end)
        if chain.whole_end % chain.size:
            with named_faults(f"{directory.path}: setting aside what is behind damage", "the next run does it again"):
                _set_aside(directory, chain)


def _set_aside(directory: StoreDirectory, chain: LaneChain) -> None:
    """Moves what is behind `whole_end` to the quarantine of the lane: it comes again."""
    lane, end, size = directory.lane_directory(chain.lane), chain.whole_end, chain.size
    segments = MappedFileQueue(lane.commitlog, size, directory.channel)
    quarantine, start = Quarantine(lane, size, directory.channel), segment_start(end, size)
    messages = sum(len(piece) for piece in LogScan(segments, lane.number).pieces(end) if not isinstance(piece, Gap))
    dirty_end = start + segments.last_nonzero(start, end - start)
    reason = f"behind damage that {directory.path} alone had"
    quarantine.carry_out(quarantine.plan(end, dirty_end, segments.after(start), reason, messages, chain.end))
    segments.let_go()


def _store_positions(directory: StoreDirectory, facts: StoreFacts, chain: LaneChain, first: int, end: int) -> None:
    lane, channel = directory.lane_directory(chain.lane), directory.channel
    known = chain.positions or Positions(facts.generation, end, first, first, 0, False)
    dispatched = max(min(known.dispatched_where, end), first)
    with named_faults(f"{lane.path}: noting what the copy has lost", "it was left as it is"):
        channel.create_directory(lane.path, below=directory.path)
        channel.replace_file(lane.abort_file, str(os.getpid()).encode())
        PositionsFile(lane, facts.id, channel).store(
            replace(known, flushed_where=end, dispatched_where=dispatched, first_where=first, drained=False, entries=-1)
        )


class Mending:
    """Takes the segments that a copy has asked its store for.

    It looks to a connection as Incoming does. A segment is durable before it gets its name.
    """

    unsynced, is_complete = 0, False

    def __init__(self, directory: StoreDirectory, facts: StoreFacts, chains: Iterable[LaneChain]) -> None:
        self._directory, self._facts, self._channel = directory, facts, directory.channel
        self._chains = {chain.lane: chain for chain in chains if chain.wanted}
        self._at = (-1, -1)
        """The lane, and the log offset, of the next bytes."""
        self._segment: NewSegment | None = None
        self.is_over, self.mended = False, 0

    @property
    def wanted(self) -> dict[int, tuple[int, ...]]:
        return {lane: chain.wanted[:WANTED_MOST] for lane, chain in self._chains.items()}

    def expect(self, ends: Mapping[int, int]) -> None:
        """Does nothing: a Mending need not know how far the lanes are."""

    def note_behind(self, now_ms: int) -> None:
        """Does nothing: a Mending need not know how far the copy is behind."""

    def sync(self, *, beside: bool = False) -> bytes:
        """Acknowledges nothing: the copy does not count before it is whole."""
        return b""

    def take(self, frame: Frame) -> None:
        """Does what a frame says. Raises ReplicationRefused, ReplicaRefused, DiskError."""
        with named_faults(f"{self._directory.path}: putting lost segments back", "the next run goes on from there"):
            match frame.kind:
                case Kind.SEGMENT:
                    self._take_bytes(frame)
                case Kind.FIRST:
                    self._take_first(frame.lane, frame.offset)
                case Kind.COMPLETE:
                    self.is_over = True
                case Kind.DATA:
                    raise ReplicationRefused(
                        "the store sends its log, and was asked for lost segments: its package is older and does not know "
                        "that; install the same version of the package on both machines, or begin anew with "
                        "`commitlog replica … --again`"
                    )

    def _take_first(self, number: int, first: int) -> None:
        """Notes which segments retention has deleted in the store: they are not lost."""
        chain = self._chains.get(number)
        if chain is not None and chain.first < first <= chain.whole_end and not first % chain.size:
            _store_positions(self._directory, self._facts, chain, first, chain.whole_end)
            self._chains[number] = replace(chain, first=first)
            self.mended += 1

    def _take_bytes(self, frame: Frame) -> None:
        chain = self._chains.get(frame.lane)
        size = self._facts.segment_bytes
        if (frame.lane, frame.offset) != self._at and (chain is None or frame.offset not in chain.wanted):
            raise ReplicationRefused(f"lane {frame.lane}: a segment from {frame.offset:,} on, which was not asked for")
        lane, start = self._directory.lane_directory(frame.lane), frame.offset - frame.offset % size
        if frame.offset + len(frame.body) > start + size:
            raise ReplicationRefused(f"lane {frame.lane}: data at offset {frame.offset:,} goes over its segment's end")
        if frame.offset == start:
            self.close()
            for path in (lane.tmp, lane.commitlog):
                self._channel.create_directory(path, below=self._directory.path)
            self._segment = NewSegment(lane, start, size, self._channel)
        assert self._segment is not None
        self._channel.pwrite(self._segment.fd, frame.body, frame.offset - start)
        self._at = frame.lane, frame.offset + len(frame.body)
        if self._at[1] == start + size:
            self._segment.sync()
            self._check(lane, start)
            self._segment.publish()
            self.close()
            self._forget_sum(lane, start)
            if chain is not None and start in chain.noted:
                self._index_from(chain, start)
            self.mended += 1

    def _index_from(self, chain: LaneChain, start: int) -> None:
        """Has all from `start` on indexed again. To place an entry again changes nothing."""
        if (known := chain.positions) is not None and known.dispatched_where > start:
            chain = replace(chain, positions=replace(known, dispatched_where=start))
            self._chains[chain.lane] = chain
            _store_positions(self._directory, self._facts, chain, chain.first, known.flushed_where)

    def _forget_sum(self, lane: LaneDirectory, start: int) -> None:
        """Has each record of the segment checked again, before it gets a checksum."""
        sums = SegmentSums(lane, self._facts.id, self._facts.segment_bytes, self._channel)
        sums.load(0, sys.maxsize)
        sums.forget(start)

    def _check(self, lane: LaneDirectory, start: int) -> None:
        """Raises ReplicaRefused if the segment has damage that no note of the copy names.

        It also removes the copy's notes of damage that the segment does not have. Such a note may
        come from a promotion of this copy that was killed.
        """
        size = self._facts.segment_bytes
        log = LogScan(MappedFileQueue(lane.tmp, size, self._channel), lane.number)
        damaged = [gap for gap in gaps_of_files(log, start, start + size, [start]) if gap.start < start + size]
        for gap in damaged:
            if not is_noted(lane, gap.start):
                raise ReplicaRefused(
                    f"{CorruptRecord(gap.reason, gap.start, gap.file)}, as the store sends it to replace a lost segment: "
                    f"`commitlog verify` on the store says whether it is damaged there, too"
                )
        for at, note in list(corruption_notes(lane, self._channel)):
            if start <= at < start + size and not any(gap.start <= at < gap.end for gap in damaged):
                self._channel.unlink(note)

    def close(self) -> None:
        """Closes what it has open."""
        segment, self._segment, self._at = self._segment, None, (-1, -1)
        if segment is not None:
            segment.close()

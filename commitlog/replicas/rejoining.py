"""Makes an old primary a replica of the store that went on (`commitlog rejoin`).

The histories of both say where they parted: a replica was promoted, or a backup was started. What
only the old one has behind the ends that its lanes had then goes to the quarantine of its lane, and
is counted. That includes what a killed store has left in its pool. Then the directory is a replica,
which `commitlog replica` brings up to date.

From the first step on the directory is marked, as superseded or as a replica, so nobody opens what
is half done. If this is killed, the next run goes on, and counts all of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from commitlog.client.store import drain
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.epochs import epochs_from_json, epochs_to_json, parted_at, shared_epochs
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import Quarantine, corruption_notes
from commitlog.disk.replica_files import ReplicaFiles, known_replicas
from commitlog.disk.replica_mark import ReplicaMark, load_mark, mark_superseded, save_mark
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.errors import ReplicaRefused, ReplicationRefused, refusal
from commitlog.opening import Report
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.queue_repair import cut_queues
from commitlog.opening.stray_pools import unknown_pool
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.replicas.copy_place import take_lock
from commitlog.replicas.greeting import ask_epoch
from commitlog.replicas.promotion import recover_all
from commitlog.replicas.tls import Credentials
from commitlog.replicas.wire import Welcome
from commitlog.shm.layout import segment_start


@dataclass(frozen=True)
class SetAside:
    """What only the old primary had of a lane, behind the log offset `end`."""

    lane: int
    end: int
    messages: int
    bytes: int


def rejoin(
    path: str | os.PathLike[str],
    source: str,
    credentials: Credentials,
    name: str,
    report: Report = lambda line: None,
    channel: FileChannel = DISK,
) -> list[SetAside]:
    """Makes a directory a replica of the store at `source`. Returns what only the directory had.

    Raises:
    - ReplicaRefused: `source` is another store, or was not promoted since
    - ReplicationRefused: `source` does not answer, or the certificates do not fit
    - StoreRunning: the store, or its `commitlog replica`, runs
    - StoreNotFound, StoreRefused, StoreDamaged, RecoveryError, DiskError
    """
    directory = StoreDirectory(path, channel)
    try:
        facts = directory.load()
        directory.check_owner()
        welcome = _ask(source, credentials, facts, directory)
        if load_mark(directory) is None:
            _drain(directory, facts, welcome, source)
        lock = take_lock(directory)
        try:
            return _Rejoining(directory, source, welcome, report).run(ReplicaMark(source, name))
        finally:
            channel.close(lock)
    except OSError as error:
        raise refusal(error, directory.path, "making it a copy") from error


def _ask(source: str, credentials: Credentials, facts: StoreFacts, directory: StoreDirectory) -> Welcome:
    try:
        welcome = ask_epoch(source, credentials, facts)
    except (OSError, EOFError) as error:
        raise ReplicationRefused(f"{source} does not answer ({error}): start the promoted store there first") from error
    if (welcome.store, welcome.segment_bytes) != (facts.id, facts.segment_bytes):
        raise ReplicaRefused(f"{directory.path} is of store {facts.id}, and {source} has store {welcome.store}")
    if welcome.epoch <= facts.epoch:
        raise ReplicaRefused(
            f"{source} has epoch {welcome.epoch}, and {directory.path} has {facts.epoch}: it was not promoted since, so "
            f"nothing has to be taken out; give the address of the store that was promoted"
        )
    return welcome


def _drain(directory: StoreDirectory, facts: StoreFacts, welcome: Welcome, source: str) -> None:
    """Brings to the disk what a killed store has left in its pool: it is counted, too.

    For this it has to run for a moment, by itself and without its replicas. It is marked before, so
    that no producer comes to it, and nobody else starts it.
    """
    mark_superseded(directory, welcome.epoch, source)
    if facts.pool is None and unknown_pool(directory.path, facts) is None:
        return
    report = drain(directory.path, {**facts.config, "replication": {}})
    if not report.drained:
        raise ReplicaRefused(
            f"{directory.path}: what its pool has is not all on the disk yet ({'; '.join(report.kept)}): end who holds a "
            f"lane, then rejoin again"
        )


class _Rejoining:
    """One run, with the lock of the directory held."""

    def __init__(self, directory: StoreDirectory, source: str, welcome: Welcome, report: Report) -> None:
        self._directory, self._source, self._welcome, self._report = directory, source, welcome, report
        self._channel, self._facts = directory.channel, directory.load()
        self._reason = f"not in epoch {welcome.epoch}"

    def run(self, mark: ReplicaMark) -> list[SetAside]:
        directory = self._directory
        found = recover_all(directory, self._facts, self._report)
        ends = {lane: end.end for lane, end in sorted(found.items())}
        own = epochs_from_json(self._facts.epochs)
        shared = {lane: parted_at(own, self._welcome.epochs, lane) for lane in ends}
        for lane, end in shared.items():
            self._refuse_lost(directory.lane_directory(lane), end, ends[lane])
        self._tell_acknowledged(shared, ends)
        for lane in ends:  # a promotion that was killed has left them
            self._channel.remove_file(directory.lane_directory(lane).sums_file)
        save_mark(directory, mark)
        facts = replace(self._facts, pool=None, lanes={})  # what was flushed here is not all in the store that went on
        directory.save(facts)
        with contextlib.suppress(FileNotFoundError):
            self._channel.unlink(directory.superseded_file)
            self._channel.sync_directory(directory.path)
        for lane, end in shared.items():
            if ends[lane] > end:
                self._cut(directory.lane_directory(lane), end, ends[lane])
            self._set_notes_aside(directory.lane_directory(lane), end)
        recover_all(directory, self._facts, self._report)  # empties what the consume queues have of it
        self._forget_replicas()
        both = shared_epochs(own, self._welcome.epochs)  # last, because a run that goes on after a kill needs its own
        directory.save(replace(facts, epoch=both[-1].epoch if both else 0, epochs=epochs_to_json(both)))
        return [made for lane in shared for made in self._made(directory.lane_directory(lane))]

    def _tell_acknowledged(self, shared: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Says which replicas had acknowledged more than the store that went on has.

        If one of them was promoted, it has lost that, or it is an older copy that was put back.
        """
        for state in known_replicas(self._directory):
            for lane, end in shared.items():
                had = min(state.acknowledged.get(lane, 0), ends[lane])
                if state.kind == "replica" and had > end:
                    self._report(
                        f"lane {lane}: replica {state.name} had acknowledged it up to {had:,}, and {self._source} has it "
                        f"up to {end:,}: if that is the one that was promoted, it has lost {had - end:,} bytes, or it was "
                        f"an older copy; they are set aside here"
                    )

    def _forget_replicas(self) -> None:
        """Removes the files of the replicas that have followed it: nobody follows a replica."""
        for name in (files := ReplicaFiles(self._directory)).names():
            files.remove(name)

    def _refuse_lost(self, lane: LaneDirectory, end: int, had: int) -> None:
        """Raises ReplicaRefused where retention has deleted here what both stores share."""
        first = self._segments(lane).first
        if had > end and first > end:
            raise ReplicaRefused(
                f"lane {lane.number} begins at {first:,} here, and both stores have it only up to {end:,} in common: "
                f"rename {self._directory.path}, and begin anew with `commitlog replica`"
            )

    def _segments(self, lane: LaneDirectory) -> MappedFileQueue:
        return MappedFileQueue(lane.commitlog, self._facts.segment_bytes, self._channel)

    def _cut(self, lane: LaneDirectory, end: int, had: int) -> None:
        """Moves what is behind `end` to the quarantine of the lane. The positions say so before."""
        segments, size = self._segments(lane), self._facts.segment_bytes
        messages = self._count(lane, end)
        cut_queues(lane, end, self._channel, queue_file_bytes(self._facts))
        positions = PositionsFile(lane, self._facts.id, self._channel)
        if (known := positions.load()) is not None:
            dispatched, first = min(known.dispatched_where, end), min(known.first_where, end)
            positions.store(
                replace(
                    known, flushed_where=end, dispatched_where=dispatched, first_where=first, drained=False, entries=-1
                )
            )
        self._channel.replace_file(lane.abort_file, str(os.getpid()).encode())
        start = segment_start(end, size)
        dirty_end = start + segments.last_nonzero(start, end - start) if start in segments else end
        quarantine = self._quarantine(lane)
        quarantine.carry_out(quarantine.plan(end, dirty_end, segments.after(start), self._reason, messages, had))

    def _set_notes_aside(self, lane: LaneDirectory, end: int) -> None:
        """Renames the notes of damage behind `end`: the promoted store has other bytes there."""
        for at, note in list(corruption_notes(lane, self._channel)):
            if at >= end:
                self._channel.rename(note, note.with_name(f"superseded-{self._facts.epoch}-{note.name}"))

    def _made(self, lane: LaneDirectory) -> list[SetAside]:
        """What was set aside of a lane, by this run or by earlier ones that were killed."""
        return [
            SetAside(lane.number, cut.end, cut.records_after, cut.log_end - cut.end)
            for cut in self._quarantine(lane).cuts()
            if cut.reason == self._reason
        ]

    def _quarantine(self, lane: LaneDirectory) -> Quarantine:
        return Quarantine(lane, self._facts.segment_bytes, self._channel)

    def _count(self, lane: LaneDirectory, end: int) -> int:
        pieces = LogScan(self._segments(lane), lane.number).pieces(end)
        return sum(len(piece) for piece in pieces if not isinstance(piece, Gap))

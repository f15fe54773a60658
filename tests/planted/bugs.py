"""Mistakes that somebody could make, one at a time.

They are subclasses of the stages, and patches of what producers use.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from commitlog.disk.locks import Lock
from commitlog.record.layout import Buffer
from commitlog.shm.layout import Lane
from commitlog.shm.pool import WriteBuffers
from commitlog.stages.allocator import AllocateMappedFileService
from commitlog.stages.committer import CommitRealTimeService
from commitlog.stages.dispatcher import ReputMessageService
from commitlog.stages.flusher import FlushRealTimeService, SyncOrder
from commitlog.stages.service_thread import ServiceThread
from tests.faults.channel import FaultyChannel
from tests.planted import checks


class AcknowledgesBeforeTheSync(FlushRealTimeService):
    def _order(self, lane: int) -> SyncOrder:
        order = super()._order(lane)
        self.words[self.control.lane_base(lane) + Lane.FLUSHED] = order.target
        return order

    def _sync(self, order: SyncOrder) -> tuple[int, int]:
        return 0, 0


class CountsWhatCameDuringTheSync(FlushRealTimeService):
    """After a sync counts what is committed at its end, not what was committed at its begin."""

    def _finish(self, order: SyncOrder, result: tuple[int, int]) -> int:
        base = self.control.lane_base(order.lane)
        self.words[base + Lane.COMMITTED] = self.words[base + Lane.WROTE]  # as the committer does meanwhile
        target = min(self.words[base + Lane.COMMITTED], order.start + self.words[base + Lane.SEGMENT_SIZE])
        return super()._finish(SyncOrder(order.lane, order.flushed, target, order.start, target, order.fd), result)


class SyncsAgainAfterAFailedSync(FlushRealTimeService):
    def _finish(self, order: SyncOrder, result: tuple[int, int]) -> int:
        if result[0]:
            return 0
        return super()._finish(order, result)


class TrustsItsPredecessor(FlushRealTimeService):
    def on_start(self) -> None:
        words = self.words
        for lane in range(len(self.lanes)):
            words[self.control.lane_base(lane) + Lane.OPENED] = 0
            self._open_segments(lane)


class RecordsCommittedAsFlushed(FlushRealTimeService):
    def record_positions(self) -> None:
        real, at = self.words, self.control.lane_base(0)
        words = real.tolist()
        words[at + Lane.FLUSHED] = words[at + Lane.COMMITTED]
        self.words = words  # type: ignore[assignment]
        try:
            super().record_positions()
        finally:
            self.words = real


class CommitsBeforeItWrites(CommitRealTimeService):
    def _commit(self, lane: int, base: int) -> bool:
        try:
            return super()._commit(lane, base)
        except OSError:
            self.words[base + Lane.COMMITTED] = self.words[base + Lane.WROTE]
            raise


class RewritesNothing(CommitRealTimeService):
    def _rewrite(self, lane: int, base: int) -> None:
        pass


class CommitsIntoUnopenedSegments(CommitRealTimeService):
    def _commit(self, lane: int, base: int) -> bool:
        words = self.words
        opened, words[base + Lane.OPENED] = words[base + Lane.OPENED], words[base + Lane.ALLOCATED]
        try:
            return super()._commit(lane, base)
        finally:
            words[base + Lane.OPENED] = opened


class CommitsWholeSlots(CommitRealTimeService):
    """Copies a segment to its end, with what is behind its BLANK."""

    def _data_end(self, base: int, start: int, size: int, wrote: int) -> int:
        return min(wrote, start + size)


class LeavesWithoutDraining(CommitRealTimeService):
    def _drain(self) -> None:
        pass


class SleepsThroughNews(CommitRealTimeService):
    def wait_for_running(self, interval_ms: int, seen: int) -> None:
        super().wait_for_running(interval_ms, self.news())


class HasNoLock(CommitRealTimeService):
    def _take_lock(self) -> int:
        return self.channel.open(self.directory.stage_lock_file(self.name), write=True, create=True)

    def _take_pool_lock(self) -> int:
        return self.channel.open(self.control.region.path, write=True)


class ForgetsTheDirectory(AllocateMappedFileService):
    def _make(self, lane: int, start: int, size: int) -> None:
        self.channel.sync_directory = lambda path: None  # type: ignore[method-assign]
        super()._make(lane, start, size)


class SkipsWhatItCouldNotPlace(ReputMessageService):
    def _dispatch(self, lane: int) -> int:
        try:
            return super()._dispatch(lane)
        except OSError:
            base = self.control.lane_base(lane)
            self.words[base + Lane.DISPATCHED] = self.words[base + Lane.FLUSHED]
            self.set_fault(lane, errno.ENOSPC)
            return 1


class SyncsQueuesAgain(ReputMessageService):
    """After the failed sync of a consume queue just tries the next one."""

    def _sync(self) -> None:
        before = {lane: self.words[self.control.lane_base(lane) + Lane.DISPATCHED] for lane in self._state}
        super()._sync()
        for lane, dispatched in before.items():
            self.words[self.control.lane_base(lane) + Lane.DISPATCHED] = dispatched


class IgnoresShortWrites(FaultyChannel):
    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        self.write_once(fd, data, offset)


def publish_before_the_bytes(patch: pytest.MonkeyPatch) -> None:
    """Publishes bytes first, and stores them at the next occasion."""
    real = WriteBuffers.writer

    def late_writer(self: WriteBuffers, segment: int, position: int) -> Callable[[bytes], object]:
        write, late = real(self, segment, position), list[bytes]()

        def store(data: bytes) -> None:
            for earlier in late:
                write(earlier)
            late[:] = [data]

        return store

    patch.setattr(WriteBuffers, "writer", late_writer)


def return_buffers_at_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commitlog.appending.write_place.slot_is_free", lambda segment, flushed, size, slots: True)


def lease_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    real = Lock.try_take
    patch.setattr(Lock, "try_take", lambda lock, path, at=None: real(lock, path, at) or True)


def adopt_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commitlog.opening.adoption._agrees", lambda *_: True)
    patch.setattr("commitlog.opening.adoption._check_end", lambda *_: None)


def leave_what_was_not_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commitlog.stages.supervising.stopping.clear_unpublished", lambda *_: False)


def unlink_when_retired(patch: pytest.MonkeyPatch) -> None:
    """Unlinks as if `positions` always had what shared memory has."""
    patch.setattr(Lane, "FIRST_RECORDED", Lane.FIRST)


@dataclass(frozen=True)
class Bug:
    """One mistake, and the check that has to catch it."""

    name: str
    caught_by: Callable[[checks.Build, Path], None]
    stages: tuple[type[ServiceThread], ...] = ()
    channel: type[FaultyChannel] = FaultyChannel
    patch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None


BUGS = [
    Bug(
        "leave what was not published",
        checks.a_stop_leaves_nothing_unpublished,
        patch=leave_what_was_not_published,
    ),
    Bug(
        "unlink as soon as it is retired",
        checks.a_retired_segment_stays_until_positions_say_so,
        patch=unlink_when_retired,
    ),
    Bug("adopt a pool without a look", checks.a_pool_that_differs_is_not_adopted, patch=adopt_without_a_look),
    Bug("acknowledge before the sync", checks.flushed_is_durable, (AcknowledgesBeforeTheSync,)),
    Bug("count what came during the sync", checks.flushed_is_durable, (CountsWhatCameDuringTheSync,)),
    Bug("after a failed sync just sync again", checks.a_failed_sync_is_repaired, (SyncsAgainAfterAFailedSync,)),
    Bug("say that it is rewritten and do nothing", checks.a_failed_sync_is_repaired, (RewritesNothing,)),
    Bug("trust what a killed flusher left", checks.a_new_flusher_trusts_nothing, (TrustsItsPredecessor,)),
    Bug("return the buffer before the flush", checks.buffers_return_when_flushed, patch=return_buffers_at_commit),
    Bug("ignore a short write", checks.short_writes_are_continued, channel=IgnoresShortWrites),
    Bug("advance committed past a failed write", checks.committed_is_in_the_file, (CommitsBeforeItWrites,)),
    Bug("drop the stage's lock", checks.one_of_each_stage, (HasNoLock,)),
    Bug("drop the lane's lock", checks.one_writer_of_each_lane, patch=lease_without_a_lock),
    Bug("forget the directory sync", checks.names_are_durable_before_use, (ForgetsTheDirectory,)),
    Bug(
        "write before the flusher has it open",
        checks.segments_are_open_first,
        (CommitsIntoUnopenedSegments,),
    ),
    Bug("skip the drain", checks.a_stop_drains, (LeavesWithoutDraining,)),
    Bug("publish wrote before the bytes", checks.published_bytes_are_there, patch=publish_before_the_bytes),
    Bug("commit what is behind a BLANK", checks.a_blank_ends_what_is_committed, (CommitsWholeSlots,)),
    Bug("dispatch past what was not placed", checks.every_record_is_placed, (SkipsWhatItCouldNotPlace,)),
    Bug("sync a queue again without placing again", checks.lost_entries_are_placed_again, (SyncsQueuesAgain,)),
    Bug("record committed as flushed", checks.positions_say_what_is_durable, (RecordsCommittedAsFlushed,)),
    Bug("sleep without a second look", checks.news_before_a_sleep_is_seen, (SleepsThroughNews,)),
]

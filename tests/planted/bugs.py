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
from commitlog.record.record_layout import Buffer
from commitlog.shm.layout import Lane
from commitlog.shm.write_buffers import WriteBuffers
from commitlog.stages.allocator import Allocator
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.committer import Committer
from commitlog.stages.dispatcher import Dispatcher
from commitlog.stages.flusher import Flusher, SyncOrder
from tests.faults.channel import FaultyChannel
from tests.planted import checks


class AcknowledgesBeforeTheSync(Flusher):
    def _order(self, lane: int) -> SyncOrder:
        order = super()._order(lane)
        self.control.row(lane)[Lane.FLUSHED] = order.target
        return order

    def _sync(self, order: SyncOrder) -> tuple[int, int]:
        return 0, 0


class CountsWhatCameDuringTheSync(Flusher):
    """After a sync counts what is committed at its end, not what was committed at its begin."""

    def _finish(self, order: SyncOrder, result: tuple[int, int]) -> int:
        row = self.control.row(order.lane)
        row[Lane.COMMITTED] = row[Lane.WROTE]  # as the committer does meanwhile
        target = min(row[Lane.COMMITTED], order.start + row[Lane.SEGMENT_SIZE])
        return super()._finish(SyncOrder(order.lane, order.flushed, target, order.start, target, order.fd), result)


class SyncsAgainAfterAFailedSync(Flusher):
    def _finish(self, order: SyncOrder, result: tuple[int, int]) -> int:
        if result[0]:
            return 0
        return super()._finish(order, result)


class TrustsItsPredecessor(Flusher):
    def on_start(self) -> None:
        for lane in range(len(self.lanes)):
            self.control.row(lane)[Lane.OPENED] = 0
            self._open_segments(lane)


class RecordsCommittedAsFlushed(Flusher):
    def record_positions(self) -> None:
        real = self.control.row

        def row(lane: int) -> list[int]:
            words = real(lane).tolist()
            words[Lane.FLUSHED] = words[Lane.COMMITTED]
            return words

        self.control.row = row  # type: ignore[assignment, method-assign]
        try:
            super().record_positions()
        finally:
            del self.control.row


class CommitsBeforeItWrites(Committer):
    def _commit(self, lane: int, row: memoryview) -> bool:
        try:
            return super()._commit(lane, row)
        except OSError:
            row[Lane.COMMITTED] = row[Lane.WROTE]
            raise


class RewritesNothing(Committer):
    def _rewrite(self, lane: int, row: memoryview) -> None:
        pass


class CommitsIntoUnopenedSegments(Committer):
    def _commit(self, lane: int, row: memoryview) -> bool:
        opened, row[Lane.OPENED] = row[Lane.OPENED], row[Lane.ALLOCATED]
        try:
            return super()._commit(lane, row)
        finally:
            row[Lane.OPENED] = opened


class CommitsWholeSlots(Committer):
    """Copies a segment to its end, with what is behind its BLANK."""

    def _data_end(self, row: memoryview, start: int, size: int, wrote: int) -> int:
        return min(wrote, start + size)


class LeavesWithoutDraining(Committer):
    def _drain(self) -> None:
        pass


class SleepsThroughNews(Committer):
    def wait_for_running(self, interval_ms: int, seen: int) -> None:
        super().wait_for_running(interval_ms, self.news())


class HasNoLock(Committer):
    def _take_lock(self) -> int:
        return self.channel.open(self.directory.stage_lock_file(self.name), write=True, create=True)

    def _take_pool_lock(self) -> int:
        return self.channel.open(self.control.region.path, write=True)


class ForgetsTheDirectory(Allocator):
    def _make(self, lane: int, start: int, size: int) -> None:
        self.channel.sync_directory = lambda path: None  # type: ignore[method-assign]
        super()._make(lane, start, size)


class SkipsWhatItCouldNotPlace(Dispatcher):
    def _dispatch(self, lane: int) -> int:
        try:
            return super()._dispatch(lane)
        except OSError:
            row = self.control.row(lane)
            row[Lane.DISPATCHED] = row[Lane.FLUSHED]
            self.set_fault(lane, errno.ENOSPC)
            return 1


class SyncsQueuesAgain(Dispatcher):
    """After the failed sync of a consume queue just tries the next one."""

    def _sync(self) -> None:
        before = {lane: self.control.row(lane)[Lane.DISPATCHED] for lane in self._state}
        super()._sync()
        for lane, dispatched in before.items():
            self.control.row(lane)[Lane.DISPATCHED] = dispatched


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
    patch.setattr("commitlog.stages.supervising.store_closing.clear_unpublished", lambda *_: False)


def unlink_when_retired(patch: pytest.MonkeyPatch) -> None:
    """Unlinks as if `positions` always had what shared memory has."""
    patch.setattr(Lane, "FIRST_RECORDED", Lane.FIRST)


@dataclass(frozen=True)
class Bug:
    """One mistake, and the check that has to catch it."""

    name: str
    caught_by: Callable[[checks.Build, Path], None]
    stages: tuple[type[BaseStage], ...] = ()
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

"""Deletes old segments: RocketMQ's CleanCommitLogService and CleanConsumeQueueService.

There are four reasons to delete a segment: its age (the store timestamp of its last message), the
store's total size, a disk that is too full, and somebody who asks for it (`commitlog trim`). The
last segment with data in it is never deleted, nor one that is not flushed and indexed. A segment
that a named reader or a replica still needs is deleted only if the disk is too full, or on demand
(`--force`), and the log says so.

A segment is deleted in two steps. First it is *retired*: the lane's `first` is raised, so that
readers look elsewhere. Then the lane's `positions` file has to say so durably (the flusher stores
FIRST_RECORDED when it does). After that the segment is *unlinked*, together with the consume queue
files that lie wholly below. So a recovery never misses a file that its positions name, not even
after a power cut. An allocator that is killed in between leaves files that the next one unlinks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from commitlog.config import Config, RetentionConfig
from commitlog.disk.consume_queue import unlink_below
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, is_segment_name
from commitlog.disk.trim_request import TrimRequest
from commitlog.errors import CommitLogError, DamagedFile
from commitlog.reading.segment_ages import SegmentAges
from commitlog.shm.control_region import ControlRegion, first_kept, set_first
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.layout import LANE_ROWS, Header, Lane, segment_start
from commitlog.shm.memory_order import observe
from commitlog.stages.allocating.clock_jumps import TOLERANCE_MS, ClockJumps
from commitlog.stages.allocating.reader_needs import ReaderNeeds
from commitlog.stages.allocating.replica_needs import ReplicaNeeds
from commitlog.system.clock import Clock

log = logging.getLogger(__name__)

Reason = Literal["its age", "the store's size", "the disk's sake", "a trim"]


@dataclass(frozen=True, slots=True)
class Disk:
    """How full the disk is, in bytes."""

    used: int
    available: int
    """Bytes that we may still use."""
    enough: int
    """If this many bytes are available, the percentages don't count; 0: they always count."""

    @property
    def total(self) -> int:
        """All bytes of the disk that we can use, with those that are used."""
        return self.used + self.available

    def excess(self, percent: int) -> int:
        """How many bytes have to be deleted until the disk is no fuller than `percent`.

        It is 0 or less if the disk is not fuller, or has enough bytes available.
        """
        over = self.used - self.total * percent // 100
        return min(over, self.enough - self.available) if self.enough else over


@dataclass(frozen=True, slots=True)
class OldSegment:
    """The oldest segment of a lane that may be deleted."""

    lane: int
    start: int
    end: int
    """The end of the lane's log, as far as it is durable."""
    needed_by: str | None
    """The reader or replica that needs the segment, with its name."""


class Retention:
    """Retires old segments of a store, and unlinks them. Only the allocator uses it.

    `is_damaged` says whether a lane's words are damaged: nothing of it is deleted then.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        facts: StoreFacts,
        config: RetentionConfig,
        control: ControlRegion,
        is_damaged: Callable[[int], bool],
        clock: Clock,
    ) -> None:
        self._is_damaged = is_damaged
        self.directory, self.config, self.control, self.clock = directory, config, control, clock
        self.channel: FileChannel = directory.channel
        self._size, self._store_id = facts.segment_bytes, facts.id
        self._pool = control.region.path.parent
        self._words = control.words
        self._needs = ReaderNeeds(directory, facts.id)
        keep_bytes = Config.from_json(facts.config).replication.keep_bytes
        self._replicas = ReplicaNeeds(directory, facts.id, control, keep_bytes)
        self._ages = SegmentAges(directory, facts.segment_bytes)
        self._first = [first_kept(control.row(lane)) for lane in range(LANE_ROWS)]  # as only this process raises it
        self._unlinked: dict[int, int] = {}  # lane → the offset below which its old files are unlinked
        self._retired: dict[int, int] = {}  # lane → bytes that are retired and not unlinked yet
        known = sum(RetentionFlag)  # a killed allocator has left its own, which may be over by now
        self._flags = RetentionFlag(self._words[Header.RETENTION_FLAGS] & known)
        self._request: TrimRequest | None = None
        self._request_is_done = False
        self._complaint = ""  # what was said of a request that can't be read or removed
        self._clock_jumps = ClockJumps(control, clock)

    # ---- the disk -------------------------------------------------------------------------------

    def _disk(self) -> Disk:
        used, available = self.channel.space(self.directory.lanes_directory)
        return Disk(used, available, self.config.disk_enough_bytes)

    def refuses(self) -> bool:
        """Whether the disk is too full for another segment."""
        is_full = self._disk().excess(self.config.disk_refuse_percent) > 0
        self._say(
            RetentionFlag.DISK_REFUSES,
            is_full,
            f"the disk is more than {self.config.disk_refuse_percent} % full: no segment is made until there is space "
            f"(retention.disk_refuse_percent, disk_enough_bytes)",
        )
        return is_full

    def look_again(self) -> None:
        """Looks whether a disk that was too full has room again. Raises OSError."""
        if self._flags & RetentionFlag.DISK_REFUSES:
            self.refuses()

    def _say(self, flag: RetentionFlag, is_set: bool, text: str, level: int = logging.ERROR) -> None:
        """Sets a flag in the control region, and logs when it begins and ends."""
        if bool(self._flags & flag) == is_set:
            return
        self._flags ^= flag
        self._words[Header.RETENTION_FLAGS] = int(self._flags)
        log.log(level if is_set else logging.INFO, text if is_set else f"over: {text}")

    # ---- choosing -------------------------------------------------------------------------------

    def retire(self) -> bool:
        """Retires segments that have to be deleted, one batch at most. True: there may be more.

        Raises OSError.
        """
        self._read_request()
        disk = self._disk()
        self._words[Header.DISK_USED_PERMILLE] = disk.used * 1000 // max(disk.total, 1)
        self._needs.refresh()
        self._replicas.refresh()
        high = disk.excess(self.config.disk_max_used_percent) > 0
        excess = disk.excess(self.config.disk_clean_forcibly_percent) - sum(self._retired.values())
        by_age = self._goes_by_age(high)
        self._say(
            RetentionFlag.DISK_HIGH,
            high,
            f"the disk is more than {self.config.disk_max_used_percent} % full (retention.disk_max_used_percent)",
            logging.WARNING,
        )
        self._say(
            RetentionFlag.DISK_FORCES,
            excess > 0,
            f"the disk is more than {self.config.disk_clean_forcibly_percent} % full: the oldest segments are deleted before "
            f"their time (retention.disk_clean_forcibly_percent)",
        )
        held: set[str] = set()
        for count in range(self.config.delete_batch_max):
            chosen = self._choose(by_age, excess - count * self._size, held)
            if chosen is None:
                break
            self._retire_segment(*chosen)
        else:
            return True
        self._request_is_done = self._request is not None
        self._say(
            RetentionFlag.HELD_BY_READER,
            bool(held),
            f"segments that could go are kept for named readers or replicas ({', '.join(sorted(held))})",
            logging.WARNING,
        )
        return False

    def _goes_by_age(self, disk_is_high: bool) -> bool:
        """Whether segments may be deleted for their age now."""
        drift = self._clock_jumps.drift_ms()
        jumped = abs(drift) > TOLERANCE_MS
        self._say(
            RetentionFlag.CLOCK_JUMPED,
            jumped,
            f"the machine's clock has jumped by {drift / 1000:,.1f} s since the store was started: nothing is deleted for "
            f"its age until it is right again or the store is started again",
        )
        hour = time.localtime(self.clock.wall_ms() / 1000).tm_hour
        in_time = disk_is_high or hour in self.config.delete_hours
        return self.config.reserved_hours > 0 and not jumped and in_time

    def _choose(self, by_age: bool, excess: int, held: set[str]) -> tuple[OldSegment, Reason] | None:
        """The segment that has to be deleted next, and why. None when all may stay.

        Adds readers and replicas that keep a segment from being deleted to `held`.
        """
        candidates = list(self._candidates())
        asked = self._asked_for(candidates, held)
        if asked is not None:
            return asked, "a trim"
        if by_age:
            horizon = self.clock.wall_ms() - self.config.reserved_hours * 3_600_000
            for segment in candidates:
                if self._is_older(segment, horizon):
                    if segment.needed_by is None:
                        return segment, "its age"
                    held.add(segment.needed_by)
        if self.config.max_bytes and self._total_bytes() > self.config.max_bytes:
            free = [segment for segment in candidates if segment.needed_by is None]
            if free:
                return min(free, key=self._newest), "the store's size"
            held.update(segment.needed_by for segment in candidates if segment.needed_by)
        if excess > 0 and candidates:
            return min(candidates, key=self._newest), "the disk's sake"
        return None

    def _asked_for(self, candidates: list[OldSegment], held: set[str]) -> OldSegment | None:
        """The next segment that `commitlog trim` asks for; None when all of these are gone."""
        request = self._request
        if request is None:
            return None
        is_too_large = request.keep_bytes is not None and self._total_bytes() > request.keep_bytes
        for segment in sorted(candidates, key=self._newest):
            is_old = request.before_ms is not None and self._is_older(segment, request.before_ms)
            if (is_old or is_too_large) and (segment.needed_by is None or request.force):
                return segment
            if (is_old or is_too_large) and segment.needed_by is not None:
                held.add(segment.needed_by)
        return None

    def is_asked(self) -> bool:
        """Whether `commitlog trim` waits, with a request that can be read."""
        return not self._complaint and TrimRequest.file(self.directory, self._pool) is not None

    def _read_request(self) -> None:
        """Reads what `commitlog trim` asks for. A file that is no request is removed.

        A request is removed, too, if its command does not wait any more: somebody has killed the
        command, maybe long ago. If the file can't be read, old segments are deleted all the same.
        """
        self._request, self._request_is_done = None, False
        try:
            self._request = TrimRequest.load(self.directory, self._pool, self._store_id)
            if self._request and not self.directory.channel.is_locked(self.directory.trim_lock_file):
                self._request = None
                raise DamagedFile(f"{self.directory.trim_file.name}: the command that asked for it has ended")
        except DamagedFile as error:
            if self._remove_request():
                log.warning("%s: it is removed", error)
        except OSError as error:
            self._complain(error)
        else:
            self._complaint = self._complaint if self._request else ""

    def _remove_request(self) -> bool:
        """Removes the request. If that fails, it says so once, and returns False."""
        try:
            TrimRequest.remove(self.directory, self._pool)
        except OSError as error:
            self._complain(error)
            return False
        self._complaint = ""
        return True

    def _complain(self, error: OSError) -> None:
        """Logs once what is wrong with the request.

        Until that is over, the request is looked at only together with old segments, not in each
        round.
        """
        text = f"{self.directory.trim_file}: {error.strerror}"
        if text != self._complaint:
            log.warning("%s: a request of `commitlog trim` can't be read or removed; fix it, or remove it", text)
        self._complaint = text

    def _newest(self, segment: OldSegment) -> int:
        return self._ages.newest(segment.lane, segment.start, segment.end)

    def _is_older(self, segment: OldSegment, horizon: int) -> bool:
        """Whether all of a segment was stored before a time.

        In most cases the first message decides, and the rest is not read.
        """
        first = self._ages.oldest(segment.lane, segment.start, segment.end)
        return first < horizon and self._newest(segment) < horizon

    def _candidates(self) -> Iterator[OldSegment]:
        """The oldest segment of each lane, where it may be deleted."""
        for lane in self.directory.lane_numbers():
            if self._is_damaged(lane):
                continue
            row = self.control.row(lane)
            start = self._first_of(lane)
            durable = min(observe(row, Lane.FLUSHED), observe(row, Lane.DISPATCH_SYNCED))
            last = segment_start(max(durable - 1, 0), self._size)  # the last segment with data in it stays
            if start + self._size <= last:
                end = start + self._size
                reader = self._needs.holder(lane, end)
                needed_by = self._replicas.holder(lane, end) if reader is None else f"reader {reader}"
                yield OldSegment(lane, start, durable, needed_by)

    def _total_bytes(self) -> int:
        """The bytes of all segment files, by the words in shared memory."""
        rows = [self.control.row(lane) for lane in range(LANE_ROWS) if not self._is_damaged(lane)]
        return sum(observe(row, Lane.ALLOCATED) - first_kept(row) for row in rows)

    # ---- deleting -------------------------------------------------------------------------------

    def _retire_segment(self, segment: OldSegment, reason: Reason) -> None:
        """Raises the lane's first offset past a segment, counts it, and logs why it is deleted."""
        words = self._words
        path = self.directory.lane_directory(segment.lane).segment_path(segment.start)
        row, self._first[segment.lane] = self.control.row(segment.lane), segment.start + self._size
        set_first(row, self._first[segment.lane])
        self._retired[segment.lane] = self._retired.get(segment.lane, 0) + self._size
        words[Header.DELETED_SEGMENTS] += 1
        words[Header.DELETED_BYTES] += self._size
        if reason == "the disk's sake":
            words[Header.FORCED_SEGMENTS] += 1
            loss = f"; {segment.needed_by} does not have it yet" if segment.needed_by else ""
            log.error("%s is deleted before its time for the disk's sake%s", path, loss)
        else:
            loss = f"; {segment.needed_by} does not have it yet" if segment.needed_by else ""
            log.info("%s is deleted for %s%s", path, reason, loss)
        for name in self._replicas.lacking(segment.lane, segment.start + self._size):
            log.warning("replica %s is too far behind: it lacks %s, and has to be made anew", name, path)

    def unlink_retired(self) -> None:
        """Unlinks retired segments, as far as each lane's `positions` durably says that they are.

        It costs little where there is nothing to unlink. Raises OSError where the lanes can't be
        listed.
        """
        failed: list[str] = []
        for lane in self.directory.lane_numbers():
            if self._is_damaged(lane):
                continue
            first = self._first_of(lane)
            below = min(first, observe(self.control.row(lane), Lane.FIRST_RECORDED))
            if below > self._unlinked.get(lane, 0):
                try:
                    self._unlink_in(lane, below)
                    self._unlinked[lane] = below
                except OSError as error:
                    failed.append(f"lane {lane}: {error}")
            if below:  # 0: this start has recorded nothing yet
                self._retired[lane] = first - self._unlinked.get(lane, 0)
        self._say(RetentionFlag.NOT_DELETED, bool(failed), f"old segments can't be deleted: {', '.join(failed)}")
        if self._request_is_done and not any(self._retired.values()):
            self._remove_request()
            self._request, self._request_is_done = None, False

    def _first_of(self, lane: int) -> int:
        """The first offset of a lane's log.

        If somebody else has written over the word, the right offset is put back. Otherwise segments
        would be unlinked that nobody retired.
        """
        row, first = self.control.row(lane), self._first[lane]
        if (observe(row, Lane.FIRST), observe(row, Lane.RETIRED)) != (first, first):
            text = "lane %d: its words in %s are damaged: first is %d, and %d; it is set to %d again, and nothing is deleted"
            log.error(text, lane, self.control.region.path, observe(row, Lane.FIRST), observe(row, Lane.RETIRED), first)
            set_first(row, first)
        return first

    def _unlink_in(self, lane: int, below: int) -> None:
        """Unlinks the files of a lane that lie wholly below a log offset. Raises OSError."""
        lane_directory = self.directory.lane_directory(lane)
        names = [name for name in self.channel.list(lane_directory.commitlog) if is_segment_name(name)]
        are_removed = False
        for name in names:
            path = lane_directory.commitlog / name
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                # a directory in a segment's place keeps no other
                if int(name) + self._size <= below and not stat.S_ISDIR(os.lstat(path).st_mode):
                    are_removed = True
                    self.channel.unlink(path)
        if are_removed:
            self.channel.sync_directory(lane_directory.commitlog)
        for topic in self.channel.list(lane_directory.consumequeue):
            try:
                unlink_below(lane_directory.queue_path(topic), below, self.channel)
            except (OSError, CommitLogError) as error:  # the other queues' files are deleted all the same
                log.warning("lane %d, topic %s: old consume queue files can't be deleted: %s", lane, topic, error)

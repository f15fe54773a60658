"""Deletes old segments: RocketMQ's CleanCommitLogService and CleanConsumeQueueService.

A segment goes for its age (the store timestamp of its last message), for the store's total size, or
for the disk's sake. Never the last one with data in it, never one that is not flushed and indexed;
and what a registered reader still needs only for the disk's sake, which is reported.

It goes in two steps. It is *retired*: the lane's `first` is raised, so that readers look elsewhere.
Once the lane's `positions` file says so too, durably (the flusher stores FIRST_RECORDED then), it
is *unlinked*, and the consume queue files wholly below with it. So a recovery never misses a file
that it was told of, also after a power cut, and whoever is killed in between leaves files that the
next turn unlinks.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from commitlog.clock import Clock
from commitlog.config import RetentionConfig
from commitlog.disk.consume_queue import unlink_below
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, is_segment_name
from commitlog.errors import CommitLogError
from commitlog.shm.layout import LANE_ROWS, Header, Lane
from commitlog.shm.positions import ControlRegion
from commitlog.shm.statistics import RetentionFlag
from commitlog.stages.allocating.reader_needs import ReaderNeeds
from commitlog.stages.allocating.segment_ages import SegmentAges

_CLOCK_TOLERANCE_MS = 1_000

log = logging.getLogger(__name__)

Reason = Literal["its age", "the store's size", "the disk's sake"]


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes in use, bytes that we may still use, and how many of these are enough whatever the
    percentages say.
    """

    used: int
    available: int
    enough: int

    @property
    def total(self) -> int:
        """Bytes there are for us."""
        return self.used + self.available

    def excess(self, percent: int) -> int:
        """How many bytes would have to go until it is no fuller than that, or has enough free; 0 or
        less where it is so.
        """
        over = self.used - self.total * percent // 100
        return min(over, self.enough - self.available) if self.enough else over


@dataclass(frozen=True, slots=True)
class OldSegment:
    """The oldest segment of a lane, which may go. `end` is the end of the lane's log; `needed_by` a
    registered reader.
    """

    lane: int
    start: int
    end: int
    needed_by: str | None


class Retention:
    """`look` every now and then; `unlink_retired` as often as one likes. Both are the allocator's."""

    def __init__(
        self,
        directory: StoreDirectory,
        facts: StoreFacts,
        config: RetentionConfig,
        control: ControlRegion,
        clock: Clock,
    ) -> None:
        self.directory, self.config, self.control, self.clock = directory, config, control, clock
        self.channel: FileChannel = directory.channel
        self._size = facts.segment_bytes
        self._words = control.words
        self._needs = ReaderNeeds(directory, facts.id)
        self._ages = SegmentAges(directory, facts.segment_bytes)
        self._unlinked: dict[int, int] = {}  # lane → up to where its old files are gone
        self._retired: dict[int, int] = {}  # lane → bytes that are retired and not gone yet
        self._flags = RetentionFlag(0)
        self._note_clocks()

    def _note_clocks(self) -> None:
        """Both clocks at the store's start; a later allocator of the same start goes by the first
        one's.
        """
        words = self._words
        if words[Header.CLOCK_GENERATION] != self.control.generation:
            words[Header.CLOCK_WALL_MS] = self.clock.wall_ms()
            words[Header.CLOCK_BOOT_MS] = self.clock.boot_ns() // 1_000_000
            words[Header.CLOCK_GENERATION] = self.control.generation

    # ---- what it is up against ------------------------------------------------------------------

    def clock_drift_ms(self) -> int:
        """How far wall time has come apart from the time that passed since the store's start."""
        wall = self.clock.wall_ms() - self._words[Header.CLOCK_WALL_MS]
        return wall - (self.clock.boot_ns() // 1_000_000 - self._words[Header.CLOCK_BOOT_MS])

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

    def _say(self, flag: RetentionFlag, is_set: bool, text: str, level: int = logging.ERROR) -> None:
        """Keeps a flag in the control region, and logs when it comes and goes."""
        if bool(self._flags & flag) == is_set:
            return
        self._flags ^= flag
        self._words[Header.RETENTION_FLAGS] = int(self._flags)
        log.log(level if is_set else logging.INFO, text if is_set else f"over: {text}")

    # ---- choosing -------------------------------------------------------------------------------

    def look(self) -> bool:
        """Retires what has to go, at most a batch. True when the batch was full: there may be more."""
        disk = self._disk()
        self._words[Header.DISK_USED_PERMILLE] = disk.used * 1000 // max(disk.total, 1)
        self._needs.refresh()
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
            self._retire(*chosen)
        else:
            return True
        self._say(
            RetentionFlag.HELD_BY_READER,
            bool(held),
            f"segments that could go are kept for registered readers ({', '.join(sorted(held))})",
            logging.WARNING,
        )
        return False

    def _goes_by_age(self, disk_is_high: bool) -> bool:
        """Whether segments may be deleted for their age now."""
        drift = self.clock_drift_ms()
        jumped = abs(drift) > _CLOCK_TOLERANCE_MS
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
        """The segment that has to go next and why; None when all may stay. Notes in `held` who
        keeps one from going.
        """
        candidates = list(self._candidates())
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

    def _newest(self, segment: OldSegment) -> int:
        return self._ages.newest(segment.lane, segment.start, segment.end)

    def _is_older(self, segment: OldSegment, horizon: int) -> bool:
        """Whether all of it was stored before a time. Its first message mostly tells without
        reading the rest.
        """
        first = self._ages.oldest(segment.lane, segment.start, segment.end)
        return first < horizon and self._newest(segment) < horizon

    def _candidates(self) -> Iterator[OldSegment]:
        """The oldest segment of each lane that has one which may go."""
        for lane in self.directory.lane_numbers():
            if lane >= LANE_ROWS:
                continue
            base = self.control.lane_base(lane)
            start = self._words[base + Lane.FIRST]
            durable = min(self._words[base + Lane.FLUSHED], self._words[base + Lane.DISPATCH_SYNCED])
            last = max(durable - 1, 0) // self._size * self._size  # the last segment with data in it stays
            if start + self._size <= last:
                yield OldSegment(lane, start, durable, self._needs.holder(lane, start + self._size))

    def _total_bytes(self) -> int:
        words, lanes = self._words, (self.control.lane_base(lane) for lane in range(LANE_ROWS))
        return sum(words[base + Lane.ALLOCATED] - words[base + Lane.FIRST] for base in lanes)

    # ---- deleting -------------------------------------------------------------------------------

    def _retire(self, segment: OldSegment, reason: Reason) -> None:
        words = self._words
        path = self.directory.lane(segment.lane).segment(segment.start)
        words[self.control.lane_base(segment.lane) + Lane.FIRST] = segment.start + self._size
        self._retired[segment.lane] = self._retired.get(segment.lane, 0) + self._size
        words[Header.DELETED_SEGMENTS] += 1
        words[Header.DELETED_BYTES] += self._size
        if reason == "the disk's sake":
            words[Header.FORCED_SEGMENTS] += 1
            loss = f"; reader {segment.needed_by} has not read it" if segment.needed_by else ""
            log.error("%s is deleted before its time for the disk's sake%s", path, loss)
        else:
            log.info("%s is deleted for %s", path, reason)

    def unlink_retired(self) -> None:
        """Unlinks what lies below each lane's first offset, as far as `positions` has it durably."""
        for lane in self.directory.lane_numbers():
            if lane >= LANE_ROWS:
                continue
            base = self.control.lane_base(lane)
            first = self._words[base + Lane.FIRST]
            below = min(first, self._words[base + Lane.FIRST_RECORDED])
            if below > self._unlinked.get(lane, 0):
                try:
                    self._unlink_in(lane, below)
                    self._unlinked[lane] = below
                except OSError as error:
                    log.warning("lane %d: old segments can't be deleted: %s", lane, error)
            if below:  # 0: this start has not recorded anything yet
                self._retired[lane] = first - self._unlinked.get(lane, 0)

    def _unlink_in(self, lane: int, below: int) -> None:
        place = self.directory.lane(lane)
        names = [name for name in self.channel.list(place.commitlog) if is_segment_name(name)]
        old = [name for name in names if int(name) + self._size <= below]
        for name in old:
            with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
                self.channel.unlink(place.commitlog / name)
        if old:
            self.channel.sync_directory(place.commitlog)
        for topic in self.channel.list(place.consumequeue):
            try:
                unlink_below(place.queue(topic), below, self.channel)
            except (OSError, CommitLogError) as error:  # the other queues' files go all the same
                log.warning("lane %d, topic %s: old consume queue files can't be deleted: %s", lane, topic, error)

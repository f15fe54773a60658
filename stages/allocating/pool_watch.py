"""Watches the write buffers of all lanes: locks them into memory, and warns when they run short."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitlog.shm.layout import Lane
from commitlog.shm.memory_lock import lock_limit, lock_memory
from commitlog.shm.pool import WriteBuffers, available_buffers
from commitlog.shm.region import RegionError

log = logging.getLogger(__name__)


class PoolWatch:
    """The allocator calls `update` and `lock_one` every now and then.

    `lanes` is the live table of lane rows. A lane may be without a free buffer for `low_water_ms`.
    """

    def __init__(self, pool: Path, lanes: npt.NDArray[np.uint64], low_water_ms: int, locks_memory: bool) -> None:
        self._pool, self._lanes = pool, lanes
        self.low_water_ms, self._locks_memory = low_water_ms, locks_memory
        self._empty_since: dict[int, int] = {}
        self._warned: set[int] = set()
        self._locked: dict[int, tuple[int, WriteBuffers | None]] = {}  # lane → its BUFFERS sequence, the mapping
        self._said_not_locked = False
        lanes[:, Lane.LOCKED_BYTES] = 0  # buffers that a killed allocator had locked were unlocked with its end

    def update(self, now: int) -> None:
        """Warns of lanes that have had no free buffer for long, and unmaps returned buffers.

        The memory of buffers is free only when the last mapping goes. `now` is in monotonic ns.
        """
        lanes = self._with_buffers()
        for lane in lanes:
            self._watch_level(lane, now)
        for lane, (sequence, _) in list(self._locked.items()):
            if sequence != int(self._lanes[lane][Lane.BUFFERS]):
                self._let_go(lane)

    def _with_buffers(self) -> list[int]:
        has_buffers = (self._lanes[:, Lane.BUFFERS] & np.uint64(1)).astype(bool) & (self._lanes[:, Lane.SLOTS] > 0)
        lanes: list[int] = np.flatnonzero(has_buffers).tolist()
        return lanes

    def _watch_level(self, lane: int, now: int) -> None:
        row = self._lanes[lane]
        wrote, flushed = int(row[Lane.WROTE]), int(row[Lane.FLUSHED])
        if available_buffers(wrote, flushed, int(row[Lane.SEGMENT_SIZE]), int(row[Lane.SLOTS])) > 0:
            self._empty_since.pop(lane, None)
            if lane in self._warned:
                self._warned.remove(lane)
                log.info("lane %d: write buffers are free again", lane)
        elif (
            now - self._empty_since.setdefault(lane, now) >= self.low_water_ms * 1_000_000 and lane not in self._warned
        ):
            self._warned.add(lane)
            row[Lane.LOW_WATER] += 1
            log.warning(
                "lane %d: no write buffer has been free for %d ms, the disk does not keep up: %d bytes are not flushed",
                lane,
                (now - self._empty_since[lane]) // 1_000_000,
                wrote - flushed,
            )

    # ---- locked into memory ---------------------------------------------------------------------

    def lock_one(self) -> None:
        """Locks the new buffers of one lane, which takes some 25 ms."""
        if not self._locks_memory:
            return
        lane = next((lane for lane in self._with_buffers() if lane not in self._locked), None)
        if lane is not None:
            self._locked[lane] = int(self._lanes[lane][Lane.BUFFERS]), self._map_locked(lane)

    def _map_locked(self, lane: int) -> WriteBuffers | None:
        row = self._lanes[lane]
        size, slots = int(row[Lane.SEGMENT_SIZE]), int(row[Lane.SLOTS])
        try:
            buffers = WriteBuffers.attach(self._pool, lane, size, slots, writable=False)
        except (FileNotFoundError, RegionError) as error:
            log.warning("lane %d: its write buffers are not locked into memory: %s", lane, error)
            return None
        code = lock_memory(buffers.region.bytes)
        if code:
            buffers.close()
            if self._said_not_locked:  # it is the same for each lane and lease; the statistics have locked_bytes
                return None
            self._said_not_locked = True
            log.warning(
                "lane %d: its write buffers are not locked into memory (%s): they take %d bytes, RLIMIT_MEMLOCK is %d; raise "
                "it (LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for a container), or set store.lock_memory = false",
                lane,
                errno.errorcode.get(code, code),
                size * slots,
                lock_limit(),
            )
            return None
        row[Lane.LOCKED_BYTES] = size * slots
        return buffers

    def _let_go(self, lane: int) -> None:
        _, buffers = self._locked.pop(lane, (0, None))
        self._lanes[lane][Lane.LOCKED_BYTES] = 0
        if buffers is not None:
            buffers.close()

    def close(self) -> None:
        for lane in list(self._locked):
            self._let_go(lane)
        del self._lanes

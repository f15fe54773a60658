"""The write buffers of all lanes, mapped by the committer, and locked into memory.

A lane's buffers are mapped when the committer needs them, until they are given back. It reads every
page that was written, so the pages are locked as they are used. To lock them all beforehand takes
120 ms of a core for each producer, also for one that sends little.
"""

from __future__ import annotations

import contextlib
import errno
import logging

import numpy as np
import numpy.typing as npt

from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.memory_lock import lock_limit, lock_memory_on_use
from commitlog.shm.memory_order import observe
from commitlog.shm.region import RegionError
from commitlog.shm.write_buffers import WriteBuffers

log = logging.getLogger(__name__)


class LaneBuffers:
    """The mapped buffers of all lanes, kept in step with each row's BUFFERS sequence."""

    def __init__(self, control: ControlRegion, lanes: npt.NDArray[np.uint64], *, locks_memory: bool) -> None:
        self._control, self._locks_memory = control, locks_memory
        self._said_not_locked = False
        lanes[:, Lane.LOCKED_BYTES] = 0  # what a killed committer had locked was unlocked with its end
        self._sequences = lanes[:, Lane.BUFFERS]
        self._slots = lanes[:, Lane.SLOTS]
        self._mapped: dict[int, tuple[int, WriteBuffers]] = {}

    def get(self, lane: int) -> WriteBuffers:
        """The lane's buffers.

        Raises FileNotFoundError where somebody has unlinked them, RegionError where something else
        is in their place, and OSError where they can't be mapped now.
        """
        row = self._control.row(lane)
        sequence = observe(row, Lane.BUFFERS)
        known = self._mapped.get(lane)
        if known and known[0] == sequence:
            return known[1]
        self._drop(lane)
        pool, size, slots = self._control.region.path.parent, row[Lane.SEGMENT_SIZE], row[Lane.SLOTS]
        buffers = WriteBuffers.attach(pool, lane, size, slots, writable=False)
        self._mapped[lane] = sequence, buffers
        if self._locks_memory:
            self._lock(lane, buffers)
        return buffers

    def _lock(self, lane: int, buffers: WriteBuffers) -> None:
        size = len(buffers.region.bytes)
        code = lock_memory_on_use(buffers.region.bytes)
        if not code:
            self._control.row(lane)[Lane.LOCKED_BYTES] = size
        elif not self._said_not_locked:  # it is the same for each lane and lease; the statistics have locked_bytes
            self._said_not_locked = True
            log.warning(
                "lane %d: its write buffers are not locked into memory (%s): they take %d bytes, RLIMIT_MEMLOCK is %d; raise "
                "it (LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for a container), or set store.lock_memory = false",
                lane,
                errno.errorcode.get(code, code),
                size,
                lock_limit(),
            )

    def follow(self) -> None:
        """Maps new buffers, and unmaps buffers that were given back.

        Mapped buffers stay readable after an unlink. The memory of buffers is free only when the
        last mapping goes.
        """
        has_buffers = (self._sequences & np.uint64(1)).astype(bool) & (self._slots > 0)
        for lane in np.flatnonzero(has_buffers).tolist():
            with contextlib.suppress(OSError, RegionError):  # unlinked already: the commit that needs them reports it
                self.get(lane)
        for lane, (sequence, _) in list(self._mapped.items()):
            if observe(self._control.row(lane), Lane.BUFFERS) != sequence:
                self._drop(lane)

    def _drop(self, lane: int) -> None:
        known = self._mapped.pop(lane, None)
        if known:
            self._control.row(lane)[Lane.LOCKED_BYTES] = 0
            known[1].close()

    def close(self) -> None:
        for lane in list(self._mapped):
            self._drop(lane)
        del self._sequences, self._slots

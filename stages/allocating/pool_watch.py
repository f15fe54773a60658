"""Watches the write buffers of all lanes, and warns when they run short."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe
from commitlog.shm.write_buffers import available_buffers

log = logging.getLogger(__name__)


class PoolWatch:
    """Counts and warns of lanes without free buffers. The allocator calls `update` now and then.

    `lanes` is the live table of lane rows. A lane may be without a free buffer for `low_water_ms`.
    Buffers have `segment_bytes`.
    """

    def __init__(self, lanes: npt.NDArray[np.uint64], segment_bytes: int, low_water_ms: int) -> None:
        self._lanes, self._segment_bytes, self.low_water_ms = lanes, segment_bytes, low_water_ms
        self._empty_since: dict[int, int] = {}
        self._warned: set[int] = set()

    def update(self, leased: Iterable[int], now: int) -> None:
        """Warns of leased lanes that have had no free buffer for long. `now` is in monotonic ns."""
        for lane in leased:
            if self._lanes[lane, Lane.SLOTS]:
                self._watch_level(lane, now)

    def _watch_level(self, lane: int, now: int) -> None:
        row = self._lanes[lane]
        wrote, flushed = int(observe(row, Lane.WROTE)), int(observe(row, Lane.FLUSHED))
        if available_buffers(wrote, flushed, self._segment_bytes, int(row[Lane.SLOTS])) > 0:
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
                "lane %d: no write buffer has been free for %d ms: %d bytes are not flushed",
                lane,
                (now - self._empty_since[lane]) // 1_000_000,
                wrote - flushed,
            )

    def close(self) -> None:
        del self._lanes

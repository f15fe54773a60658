"""The write buffers of all lanes, mapped by a stage.

A lane's buffers are mapped when the stage needs them, until they are given back.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitlog.shm.layout import Lane
from commitlog.shm.pool import WriteBuffers


class LaneBuffers:
    """The mapped buffers of all lanes, kept in step with each row's BUFFERS sequence."""

    def __init__(self, pool: Path, lanes: npt.NDArray[np.uint64]) -> None:
        self._pool = pool
        self._sequences = lanes[:, Lane.BUFFERS]
        self._lanes = lanes
        self._mapped: dict[int, tuple[int, WriteBuffers]] = {}

    def get(self, lane: int) -> WriteBuffers:
        """The lane's buffers. Raises FileNotFoundError where somebody has unlinked them."""
        sequence = int(self._sequences[lane])
        known = self._mapped.get(lane)
        if known and known[0] == sequence:
            return known[1]
        self._drop(lane)
        row = self._lanes[lane]
        size, slots = int(row[Lane.SEGMENT_SIZE]), int(row[Lane.SLOTS])
        buffers = WriteBuffers.attach(self._pool, lane, size, slots, writable=False)
        self._mapped[lane] = sequence, buffers
        return buffers

    def follow(self) -> None:
        """Maps new buffers, and unmaps buffers that were given back.

        Mapped buffers stay readable after an unlink. The memory of buffers is free only when the
        last mapping goes.
        """
        has_buffers = (self._sequences & np.uint64(1)).astype(bool) & (self._lanes[:, Lane.SLOTS] > 0)
        for lane in np.flatnonzero(has_buffers).tolist():
            with contextlib.suppress(FileNotFoundError):  # unlinked already: the commit that needs them reports it
                self.get(lane)
        for lane, (sequence, _) in list(self._mapped.items()):
            if int(self._sequences[lane]) != sequence:
                self._drop(lane)

    def _drop(self, lane: int) -> None:
        known = self._mapped.pop(lane, None)
        if known:
            known[1].close()

    def close(self) -> None:
        for lane in list(self._mapped):
            self._drop(lane)
        del self._sequences, self._lanes

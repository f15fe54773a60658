"""Watches whether a running store still has its memory and its directory, and may go on.

Somebody may remove either of them while the store runs, or promote a replica of it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from commitlog.disk.replica_mark import superseded
from commitlog.disk.store_directory import StoreDirectory, store_moved
from commitlog.errors import PoolUnlinked
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import confirm, observe
from commitlog.shm.row_check import check_row
from commitlog.shm.write_buffers import buffers_path

log = logging.getLogger(__name__)


class StoreWatch:
    """The supervisor calls it every now and then."""

    def __init__(self, directory: StoreDirectory, control: ControlRegion, segment_bytes: int) -> None:
        self.directory, self.control, self._segment_bytes = directory, control, segment_bytes
        self.pool = control.region.path.parent
        self._damaged: set[int] = set()
        self._only_drains = os.path.lexists(directory.superseded_file)  # else it would not have started

    def check(self) -> None:
        """Raises StoreMoved, PoolUnlinked, StoreSuperseded. Logs lanes with impossible words."""
        self.check_place()
        self._check_rows()
        if not self._only_drains and os.path.lexists(self.directory.superseded_file):
            # the HAService has met the store that was promoted
            raise superseded(self.directory)
        gone = self.pool if self.control.region.is_unlinked() else self._unlinked_buffers()
        if gone:
            raise PoolUnlinked(
                f"the pool {gone} was removed under the running store (systemd's RemoveIPC at "
                f"logout, or a cleaner of /dev/shm): what was accepted is written to disk, then the store stops"
            )

    def check_place(self) -> None:
        """Raises StoreMoved where the store's path leads to another directory than at its start.

        Files that are written at that path would not belong to the store.
        """
        if not self.control.is_at(self.directory.path):
            raise store_moved(self.directory.path, self.pool)

    def _check_rows(self) -> None:
        for lane in np.flatnonzero(self.control.lane_table()[:, Lane.WROTE]).tolist():
            wrong = check_row(self.control.row(lane), self._segment_bytes)
            if wrong and lane not in self._damaged:
                log.error("lane %d: its positions in %s are damaged: %s", lane, self.control.region.path, wrong)
                self._damaged.add(lane)

    def _unlinked_buffers(self) -> Path | None:
        """The path of a lane's buffers that have no name any more; None where all have one.

        Another committer would not find them. Mapped buffers stay: the stages drain them, and the
        store stops.
        """
        for lane in np.flatnonzero(self.control.lane_table()[:, Lane.SLOTS]).tolist():
            row, path = self.control.row(lane), buffers_path(self.pool, lane)
            sequence = observe(row, Lane.BUFFERS)
            is_missing = sequence & 1 and row[Lane.SLOTS] and not path.exists()
            if is_missing and confirm(row, Lane.BUFFERS) == sequence:  # they were not given back meanwhile
                return path
        return None

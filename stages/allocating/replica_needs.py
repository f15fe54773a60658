"""Finds the part of each lane that replicas still lack.

Retention keeps it, even while they are gone.
"""

from __future__ import annotations

import logging

from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DamagedFile
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe

log = logging.getLogger(__name__)


class ReplicaNeeds:
    """The needs of the replicas that have a file. `refresh` reads how far they are.

    `keep_bytes` is how much of a lane is kept for them at most.
    """

    def __init__(self, directory: StoreDirectory, store_id: str, control: ControlRegion, keep_bytes: int) -> None:
        self._files, self._store_id, self._control, self._keep_bytes = (
            ReplicaFiles(directory),
            store_id,
            control,
            keep_bytes,
        )
        self._states: list[ReplicaState] = []
        self._complaint = ""

    def refresh(self) -> None:
        """Reads all replicas. For one that can't be read all is kept, and it is named."""
        states, complaint = [], ""
        try:
            names = self._files.names()
        except OSError as error:
            names, complaint = [], str(error)
        for name in names:
            try:
                state = self._files.load(name)
            except FileNotFoundError:  # it was just forgotten
                continue
            except (OSError, DamagedFile) as error:
                complaint = str(error)
                state = ReplicaState(name, "replica", self._store_id)
            if state.store_id == self._store_id:
                states.append(state)
        if complaint and complaint != self._complaint:
            log.warning("a replica's needs are not known, and all is kept for it: %s", complaint)
        self._states, self._complaint = states, complaint

    def holder(self, lane: int, end: int) -> str | None:
        """Names a replica ("replica <name>") for which the log below `end` must be kept."""
        kept_from = observe(self._control.row(lane), Lane.FLUSHED) - self._keep_bytes
        return next((f"replica {name}" for name in self.lacking(lane, end) if end > kept_from), None)

    def lacking(self, lane: int, end: int) -> list[str]:
        """The names of the replicas that lack something below `end`."""
        return [
            state.name
            for state in self._states
            if (state.kind == "replica" or lane in state.acknowledged) and state.acknowledged.get(lane, 0) < end
        ]

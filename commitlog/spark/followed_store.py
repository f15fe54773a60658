"""Tells the stages of a store that somebody follows its log, for as long as a query does."""

from __future__ import annotations

from pathlib import Path

import zmq

from commitlog.appending.wakeups import FollowedSender
from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.threads import Background

_TELL_SECONDS = 0.5
"""Shorter than a stage believes it (stages/base_stage.py)."""


class FollowedStore:
    """Says twice a second that the store is followed, in a thread of its own."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._wanted: tuple[Path, tuple[str, ...]] | None = None
        self._thread: Background | None = None

    def follow(self, pool: Path | None, stages: tuple[str, ...]) -> None:
        """Tells these stages of a pool from now on; nobody if there is no pool."""
        self._wanted = None if pool is None or not stages else (pool, stages)
        if self._wanted is not None and self._thread is None:
            self._thread = Background(self._tell, "commitlog-followed-store")

    def _tell(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        told: tuple[Path, tuple[str, ...]] | None = None
        sender: FollowedSender | None = None
        while True:
            if self._wanted != told:
                if sender is not None:
                    sender.close()
                told = self._wanted
                sender = None if told is None else FollowedSender(context, *told)
            if sender is not None:
                sender.tell()
            self._clock.sleep(_TELL_SECONDS)

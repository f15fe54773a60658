"""Finds by a store's health whether and why it can't take the messages of a run."""

from __future__ import annotations

import time
from pathlib import Path

from commitlog.errors import CommitLogError
from commitlog.watching.health import health, unreadable
from commitlog.watching.snapshot import StoreWatch

PATIENCE_SECONDS = 5.0
"""Trouble may heal by itself for this long, as that of a stage which is started again."""
_LOOK_SECONDS = 1.0
_STOPS_MESSAGES = {"unreadable", "stopped", "killed", "stage-fault", "disk-refuses"}


class StoreTrouble:
    """Looks at the health of a store once a second, while somebody asks."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._looked_at = self._good_at = time.monotonic()
        self._said = ""
        self._progress: object = None

    def said(self, progress: object = None) -> str:
        """The trouble that keeps messages from the disk for longer than the patience; else "".

        `progress` changes as long as something moves. Then the trouble keeps nothing.
        """
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._good_at = progress, now
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._said = self._look()
            if not self._said:
                self._good_at = now
        return self._said if now - self._good_at > PATIENCE_SECONDS else ""

    def _look(self) -> str:
        try:
            with StoreWatch(self._store, only_health=True) as watch:
                found = health(watch.snapshot())
        except (CommitLogError, OSError) as error:
            found = unreadable(error, self._store)
        return "; ".join(reason.said for reason in found.reasons if reason.code in _STOPS_MESSAGES)

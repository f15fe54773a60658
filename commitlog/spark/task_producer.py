"""The producer of a sink's task. A module of its own: it needs ZeroMQ, which readers do without."""

from __future__ import annotations

import os

from commitlog.producer import Producer


class TaskProducer(Producer):
    """Waits for no flush by itself, also in a store with SYNC_FLUSH: a task flushes once, at its
    end. `wait=False` would do as much and leave a property of its own in every record.
    """

    __slots__ = ()

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._sync = False

"""The producer for a stream of batches, from a task of Spark's sink or from a server's client.

It has a module of its own because it needs ZeroMQ, and readers do not.
"""

from __future__ import annotations

import os

from commitlog.client.producer import Producer
from commitlog.errors import ReplicaNotAvailable
from commitlog.receipt import Level
from commitlog.system.clock import SYSTEM_CLOCK

PATIENCE_SECONDS = 60.0
"""So long a stream waits at its end for replicas that are away. Its sender waits longer."""
_LOOK_SECONDS = 0.1


class StreamProducer(Producer):
    """A producer whose `send` never waits for a flush, also in a store with SYNC_FLUSH.

    A stream is flushed when its sender asks for it, and at its end. `wait=False` would have the
    same effect, but it would add a property to every record.

    Attribute `level`: what a stream's rows must have reached before its sender may forget them. It
    is "replicated" in a store with SYNC_MASTER, and "flushed" in others.
    """

    __slots__ = ("level",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._sync = False
        self.level: Level = "replicated" if self._progress.promised == "replicated" else "flushed"

    def finish(self) -> None:
        """Returns when everything that was sent has reached the level.

        Raises what `flush` does; ReplicaNotAvailable only if replicas stay away for a minute.
        """
        self.flush()
        deadline = SYSTEM_CLOCK.monotonic_ns() + int(PATIENCE_SECONDS * 1e9)
        while True:
            left = (deadline - SYSTEM_CLOCK.monotonic_ns()) / 1e9
            try:
                return self.flush(self.level, max(left, _LOOK_SECONDS))
            except ReplicaNotAvailable:
                if left <= 0:
                    raise
                self._progress.check()
                SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

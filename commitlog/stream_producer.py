"""The producer for a stream of batches, from a task of Spark's sink or from a server's client.

It has a module of its own because it needs ZeroMQ, and readers do not.
"""

from __future__ import annotations

import os

from commitlog.producer import Producer


class StreamProducer(Producer):
    """A producer whose `send` never waits for a flush, also in a store with SYNC_FLUSH.

    A stream is flushed when its sender asks for it, and at its end. `wait=False` would have the
    same effect, but it would add a property to every record.
    """

    __slots__ = ()

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._sync = False

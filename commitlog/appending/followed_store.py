"""Tells the stages of a store that somebody follows its log, for as long as somebody does."""

from __future__ import annotations

import logging
from pathlib import Path

import zmq

from commitlog.appending.wakeups import FollowedSender, new_context
from commitlog.disk.descriptors import check_free
from commitlog.errors import CommitLogError
from commitlog.system.clock import SignalEvent
from commitlog.system.threads import Background

_TELL_SECONDS = 0.5
"""Shorter than a stage believes it (stages/base_stage.py)."""
_DESCRIPTORS = 16
"""libzmq ends the process if it can't get the descriptors that it needs for a context."""
_STAGES: dict[str, tuple[str, ...]] = {
    "flushed": ("committer", "flusher"),
    "committed": ("committer",),
    "accepted": (),
}
"""How far a log is followed → the stages that each message waits for."""

log = logging.getLogger(__name__)


class FollowedStore:
    """Says twice a second that the store is followed, in a thread of its own, until `close`.

    A frame is a hint: where none can be sent, the stages keep their own pace.
    """

    def __init__(self, isolation: str) -> None:
        self._stages = _STAGES[isolation]
        self._pool: Path | None = None
        self._thread: Background | None = None
        self._closed = SignalEvent()

    def follow(self, pool: Path | None) -> None:
        """Tells the stages of this pool from now on; nobody if there is no pool."""
        self._pool = pool
        if pool is not None and self._stages and self._thread is None:
            self._thread = Background(self._tell, "commitlog-followed-store")

    def _tell(self) -> None:
        told: Path | None = None
        sender: FollowedSender | None = None
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        try:
            check_free(_DESCRIPTORS, "ZeroMQ")
            context = new_context()
            while not self._closed.is_set():
                if self._pool != told:
                    if sender is not None:
                        sender.close()
                    told, sender = self._pool, None
                    if told is not None:
                        sender = FollowedSender(context, told, self._stages)
                if sender is not None:
                    sender.tell()
                self._closed.wait(_TELL_SECONDS)
        except (CommitLogError, zmq.ZMQError) as error:
            log.info("%s: the stages can't be told that somebody follows: %s", self._pool, error)
        finally:
            if sender is not None:
                sender.close()
            if context is not None:
                context.destroy(linger=0)

    def close(self) -> None:
        """Ends the thread. It may be called anywhere, and does not wait."""
        self._closed.set()

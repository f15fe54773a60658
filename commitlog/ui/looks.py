"""Looks at a store, a second apart: what the page plots.

One thread takes them, however many pages are open. The last ten minutes are kept, so that a page
that is opened later begins with them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from commitlog.disk.replica_files import ReplicaState
from commitlog.errors import CommitLogError
from commitlog.watching.health import health
from commitlog.watching.rates import rates
from commitlog.watching.snapshot import StoreSnapshot, StoreWatch

log = logging.getLogger(__name__)

KEPT = 600
"""How many looks are kept."""
INTERVAL_SECONDS = 1.0
FIRST_SECONDS = 0.25
"""Before the first look: it needs something to compare with."""


class Looks:
    """Takes looks until it is closed. Use it as a context manager.

    A look is a plain dict: `number`, `time_ms`, the `store`, its `health`, its `space`, its
    `replicas` and `forwarders`, and the rates of `commitlog.watching.rates`. Where the store can't
    be looked at, it has an `error` in their place, and the next look is taken all the same.

    Raises StoreNotFound, StoreDamaged, StoreTooNew, StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._watch = StoreWatch(path)
        try:
            self._first = self._watch.snapshot()
        except BaseException:
            self._watch.close()
            raise
        self._looks: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._taken = 0
        self._changed, self._ends = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._watch.close()

    def after(self, number: int, timeout: float) -> list[dict[str, Any]]:
        """The looks behind the one of this number. Waits for one, up to `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken > number or self._ends.is_set(), timeout)
            return [look for look in self._looks if look["number"] > number]

    def status(self) -> str:
        """How the store was at the last look: good, degraded or down; `…` before the first."""
        with self._changed:
            last = self._looks[-1] if self._looks else None
        if last is None:
            return "…"
        return "down" if "error" in last else str(last["health"]["status"])

    def _run(self) -> None:
        earlier, told = self._first, ""
        while not self._ends.wait(INTERVAL_SECONDS if self._taken else FIRST_SECONDS):
            try:
                now = self._watch.snapshot()
                look, earlier = _look(now, earlier), now
            except (CommitLogError, OSError) as error:
                look = self._failed(f"{error} [{type(error).__name__}]")
            except Exception as error:
                text = (
                    f"looking failed, and goes on: {error} [{type(error).__name__}]; the log of `commitlog ui` has more"
                )
                look = self._failed(text)
                if text != told:
                    log.exception("looking at the store has failed")
                told = text
            with self._changed:
                self._taken += 1
                self._looks.append({"number": self._taken, **look})
                self._changed.notify_all()

    def _failed(self, text: str) -> dict[str, Any]:
        return {"time_ms": self._watch.clock.wall_ms(), "error": text}


def _replica(replica: ReplicaState, now_ms: int) -> dict[str, Any]:
    return {
        "name": replica.name,
        "state": replica.state,
        "lanes": len(replica.acknowledged),
        "in_sync": len(replica.in_sync),
        "behind_bytes": replica.behind_bytes,
        "behind_ms": replica.behind_ms(now_ms),
        "bytes_per_second": replica.sent_bytes_per_second,
    }


def _look(now: StoreSnapshot, earlier: StoreSnapshot) -> dict[str, Any]:
    facts, verdict = now.statistics, health(now)
    return {
        "time_ms": now.time_ms,
        "store": {
            "path": facts.path,
            "id": facts.store_id,
            "state": facts.state,
            "generation": facts.generation,
            "segment_bytes": facts.segment_bytes,
        },
        "health": asdict(verdict),
        "space": asdict(now.space),
        "replicas": [_replica(replica, now.time_ms) for replica in now.replicas],
        "forwarders": [asdict(forwarder) for forwarder in now.forwarders],
        **asdict(rates(now, earlier)),
    }

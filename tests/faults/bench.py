"""A store whose stages live in the test's own process and move only when told.

So a test can try every order of events, without delay. The locks, the pool, the files and the words
are the real ones; only the processes, and the time between rounds, are not.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commitlog
from commitlog.config import Config
from commitlog.config_file import load_config
from commitlog.errors import CommitLogError
from commitlog.shm.layout import LANE_ROWS, LANES_AT, Header, Lane, Stage
from commitlog.shm.row_check import check_row
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.supervising.starting import StoreOpening
from commitlog.stages.supervising.store_closing import close_store
from commitlog.status import StopReport
from commitlog.system.clock import Clock
from tests.fake_clock import SteppingClock
from tests.faults.channel import FaultsDirectory, FaultyChannel
from tests.faults.disk import durable_bodies
from tests.faults.stage import KINDS

SEGMENT_BYTES = 1 << 16
SETTINGS: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": SEGMENT_BYTES, "max_lanes": 3},
    "producer": {"buffer_wait_ms": 30, "segment_wait_ms": 30, "lane_wait_ms": 30},
    "dispatcher": {"queue_file_entries": 1000},
    "supervisor": {"start_wait_ms": 30},
}


class Bench:
    """A store and its stages, for a test to turn.

    `kinds` are stage classes to use instead of the real ones, by name; `channel` is the class of
    the stages' channels. Attributes: `words` (the control region's), `faults`, `clock`, `stages` by
    name, `warnings`; `supervisor` is the running store as the supervisor has it.
    """

    def __init__(
        self,
        path: Path,
        kinds: dict[str, Any] | None = None,
        channel: Any = FaultyChannel,
        clock: SteppingClock | None = None,
        **settings: dict[str, Any],
    ) -> None:
        self.path, self.clock, self.faults = path, clock or SteppingClock(), FaultsDirectory(path)
        config: Config = load_config(
            {k: {**SETTINGS.get(k, {}), **settings.get(k, {})} for k in {*SETTINGS, *settings}}
        )
        self._kinds, self._channel = {**KINDS, **(kinds or {})}, channel
        self.warnings: list[str] = []
        self._opening = StoreOpening(path, config, report=self.warnings.append)
        try:
            self.supervisor = self._opening.run()
        except CommitLogError:
            self._opening.locks.close()
            raise
        self.control, self.words = self.supervisor.control, self.supervisor.control.words
        self.stages: dict[str, Any] = {}
        self.producers: list[commitlog.Producer] = []
        for name in ("allocator", "flusher", "committer", "dispatcher"):
            self.start(name)

    def start(self, name: str) -> Any:
        """A stage as it is just before its first round."""
        stage = self.stages[name] = self._kinds[name](self.path, self._channel(self.path, name), self.clock)
        stage.beat()
        stage.on_start()
        return stage

    def crash(self, name: str) -> None:
        """Leaves of a stage what kill -9 leaves: its words, without its descriptors and lock."""
        stage = self.stages.pop(name)
        lanes = self.control.region.bytes[LANES_AT * 8 :]
        before = bytes(lanes)
        with contextlib.suppress(OSError):
            for fd in list(stage.channel._paths):
                if fd not in (stage._lock_fd, stage._pool_lock_fd):
                    stage.channel.close(fd)
        for held in ("_flusher", "_allocator", "_committer", "_dispatcher", "_notices"):
            if held in vars(stage):
                getattr(stage, held).close()
        if "_syncs" in vars(stage):
            stage._syncs.shutdown()
        stage.let_go()
        assert lanes == before
        lanes.release()

    def producer(self) -> commitlog.Producer:
        self.words[Header.SUPERVISOR_HEARTBEAT] = Clock().monotonic_ns()
        producer = commitlog.Producer(self.path)
        self.producers.append(producer)
        return producer

    def lane(self, word: int, lane: int = 0) -> int:
        return self.control.row(lane)[word]

    def turn(self, *names: str) -> bool:
        """One round of each named stage (default: all). True when something moved."""
        moved = [
            bool(self.stages[n].work()) for n in names or ("allocator", "flusher", "committer", "flusher", "dispatcher")
        ]
        self.check_rows()
        return any(moved)

    def check_rows(self) -> None:
        """Fails for words that no lane can have: see `check_row`."""
        for lane in range(LANE_ROWS):
            assert not check_row(self.control.row(lane), self.supervisor.facts.segment_bytes)

    def settle(self, rounds: int = 200) -> None:
        """Turns until nothing is left, with the time that retries need; fails after `rounds`."""
        for _ in range(rounds):
            if not self.turn() and not any(stage.left() for stage in self.stages.values()):
                return
            self.clock.step(1)
        left = {name: stage.left() for name, stage in self.stages.items() if stage.left()}
        raise AssertionError(f"not settled after {rounds} rounds, left: {left}")

    def durable_bodies(self, lane: int = 0) -> list[bytes]:
        """The bodies below `flushed` that a power cut would leave.

        AssertionError where anything below it is not whole.
        """
        return durable_bodies(self.supervisor.directory, self.faults, lane, self.lane(Lane.FLUSHED, lane))

    def stop(self) -> StopReport:
        """Stops as the supervisor does: closing, drains in order, last positions."""
        for producer in self.producers:
            producer.close()
        self.producers.clear()
        self.words[Header.CLOSING] = 1
        for name in ("committer", "flusher", "dispatcher", "allocator"):
            stage = self.stages.pop(name, None)
            if stage:
                stage.stopping = True
                stage._poll = lambda milliseconds: self.clock.step(milliseconds / 1000)
                stage._drain()
                stage.on_stop()
                stage.let_go()
        report = close_store(self.supervisor.directory, self.supervisor.facts, self.control, self.supervisor.channel)
        self._let_go()
        return report

    def abandon(self) -> None:
        """Leaves the store as if all processes had been killed, producers too."""
        for producer in self.producers:
            producer.close()
        self.producers.clear()
        for name in list(self.stages):
            self.crash(name)
        self._let_go()

    def _let_go(self) -> None:
        self._opening.locks.close()
        self.control.close()


@contextlib.contextmanager
def bench(
    path: Path,
    kinds: dict[str, Any] | None = None,
    channel: Any = FaultyChannel,
    clock: SteppingClock | None = None,
    **settings: Any,
) -> Iterator[Bench]:
    """A bench that leaves nothing, however the test ends.

    A pool that is not drained is removed too.
    """
    with _quiet():
        made = Bench(path, kinds, channel, clock, **settings)
        pool = made.control.region.path.parent
        try:
            yield made
        finally:
            if made.stages:
                made.abandon()
            for file in pool.glob("*"):
                file.unlink()
            if pool.exists():
                pool.rmdir()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences what stages log of a fault.

    It would fill the report. A log record of an error also keeps its frames, which keep the pool.
    """
    logger = logging.getLogger("commitlog.stages")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


__all__ = ["SEGMENT_BYTES", "BaseStage", "Bench", "Stage", "bench"]

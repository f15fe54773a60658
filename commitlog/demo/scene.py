"""The processes of the demo: a store with its stages, and producers. Each of them can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from commitlog.client.scan import read
from commitlog.client.store import Store
from commitlog.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    import polars

TOPIC = "sales"
SCHEMA = "producer INT NOT NULL, sequence BIGINT NOT NULL, fruit STRING NOT NULL, price DOUBLE NOT NULL"
PRODUCERS = 3
STAGES = ("committer", "flusher", "dispatcher", "allocator")
CONFIG = {
    "store": {"segment_bytes": 16 << 20},  # a tenth of what three producers would take of /dev/shm
    "supervisor": {"restarts_max": 1_000},  # no service would be killed as often as this one
}
END_SECONDS = 30.0
_FOUND_SECONDS = 10.0
"""How long what a killed producer had sent may take to the disk. It takes some milliseconds."""


class SalesProducer:
    """A producer process, and how many rows it says were accepted."""

    def __init__(self, number: int, store: Path, folder: Path, log: IO[bytes]) -> None:
        self.number = number
        self._said = folder / f"producer-{number}"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "commitlog.demo.producing", str(store), str(number), str(self._said)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the demo alone
        )

    @property
    def accepted(self) -> int:
        try:
            return int(self._said.read_bytes() or 0)
        except FileNotFoundError:
            return 0

    def let_end(self) -> None:
        """Tells it to flush and to end; `end` waits."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> None:
        self.let_end()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Sent:
    """What the log has of one producer."""

    rows: int
    different: int
    end: int
    """One more than the largest sequence number."""

    def fits(self, accepted: int, *, killed: bool) -> bool:
        """Whether each row is there once.

        A producer that was killed may have had a call accepted and not said so.
        """
        is_whole = self.rows == self.different == self.end
        return is_whole and (self.rows >= accepted if killed else self.rows == accepted)


NOTHING = Sent(0, 0, 0)


@dataclass(frozen=True)
class _KilledStage:
    name: str
    pid: int
    at_ns: int
    accepted: int


class Scene:
    """A store, its producers, and what is known of those that were killed.

    `events` are lines for the user. `close` ends what runs; `with` does it, too.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self._folder = path, folder
        self.events: list[str] = []
        self.kills = self._made = 0
        self.is_good = True
        self._killed_stages: list[_KilledStage] = []
        self._unproven: dict[SalesProducer, int] = {}
        """Killed producers → until when (ns) the log must have what they had said."""
        self._gone: list[SalesProducer] = []
        with contextlib.ExitStack() as stack:
            self.store = stack.enter_context(Store.open(path, CONFIG))
            self.store.create_topic(TOPIC, SCHEMA)
            self._log = stack.enter_context((folder / "producers.log").open("ab"))
            self.producers: list[SalesProducer] = []
            stack.callback(self._end_producers)
            for _ in range(PRODUCERS):
                self.producers.append(self._new_producer())
            self._stack = stack.pop_all()

    def _new_producer(self) -> SalesProducer:
        self._made += 1
        return SalesProducer(self._made, self.path, self._folder, self._log)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def _end_producers(self) -> None:
        for producer in self.producers:
            producer.let_end()
        for producer in self.producers:
            producer.end()

    # ---- kills ---------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """The stages and their processes; 0 where there is none now."""
        return {one.stage: one.pid for one in self.store.statistics().stages if one.stage in STAGES}

    @property
    def accepted(self) -> int:
        return sum(producer.accepted for producer in [*self.producers, *self._gone])

    def kill_stage(self, name: str) -> None:
        """Kills a stage with SIGKILL, unless it is dead already."""
        pid = self.pids()[name]
        if pid:
            with contextlib.suppress(ProcessLookupError):  # it has just died by itself
                os.kill(pid, signal.SIGKILL)
            self.kills += 1
            self._killed_stages.append(_KilledStage(name, pid, SYSTEM_CLOCK.monotonic_ns(), self.accepted))

    def kill_producer(self, place: int) -> None:
        """Kills the producer at a place with SIGKILL. Another one takes its place."""
        killed = self.producers[place]
        killed.process.kill()
        killed.end()
        self.kills += 1
        self._gone.append(killed)
        self._unproven[killed] = SYSTEM_CLOCK.monotonic_ns() + int(_FOUND_SECONDS * 1e9)
        self.producers[place] = self._new_producer()

    @property
    def waits(self) -> bool:
        """Whether a killed stage has not come back yet."""
        return bool(self._killed_stages)

    def look(self, found: dict[int, Sent]) -> None:
        """Notes what has become of those that were killed. `found` is what the log has."""
        pids = self.pids() if self._killed_stages else {}
        for killed in list(self._killed_stages):
            if pids[killed.name] not in (0, killed.pid):
                self._killed_stages.remove(killed)
                took_ms = (SYSTEM_CLOCK.monotonic_ns() - killed.at_ns) / 1e6
                self.events.append(
                    f"killed the {killed.name} (pid {killed.pid}): pid {pids[killed.name]} went on after {took_ms:,.0f} ms, "
                    f"and {self.accepted - killed.accepted:,} rows were accepted meanwhile"
                )
        for producer, until in list(self._unproven.items()):
            if self._is_there(producer, found) or SYSTEM_CLOCK.monotonic_ns() > until:
                self._note_kill(producer, found)
        for place, producer in enumerate(self.producers):
            code = producer.process.poll()
            if code is not None:
                self.is_good = False
                self.events.append(f"producer {producer.number} has ended ({code}): see {self._log.name}")
                self._gone.append(producer)
                self.producers[place] = self._new_producer()

    def _note_kill(self, producer: SalesProducer, found: dict[int, Sent]) -> None:
        del self._unproven[producer]
        is_there = self._is_there(producer, found)
        self.is_good = self.is_good and is_there
        verdict = "nothing is lost" if is_there else "ROWS ARE LOST OR DOUBLE"
        self.events.append(
            f"killed producer {producer.number} (pid {producer.process.pid}): {producer.accepted:,} rows were accepted, the "
            f"log has {found.get(producer.number, NOTHING).rows:,}: {verdict}"
        )

    def finish(self) -> dict[int, Sent]:
        """Ends the producers, and compares each with the log."""
        self._end_producers()
        found = by_producer(sales(self.path))
        for producer in [*self._unproven]:
            self._note_kill(producer, found)
        for producer in [*self.producers, *self._gone]:
            if not self._is_there(producer, found):
                self.is_good = False
                self.events.append(
                    f"producer {producer.number}: {producer.accepted:,} rows were accepted, others are there"
                )
        return found

    def _is_there(self, producer: SalesProducer, found: dict[int, Sent]) -> bool:
        return found.get(producer.number, NOTHING).fits(producer.accepted, killed=producer in self._gone)


# ---- what Polars reads from the log ------------------------------------------------------------


def sales(path: Path) -> polars.DataFrame:
    """All rows that are there now."""
    return read(path, TOPIC).to_polars()


def totals(rows: polars.DataFrame) -> dict[str, tuple[int, float]]:
    """Fruit → rows and revenue."""
    import polars as pl

    sums = rows.group_by("fruit").agg(rows=pl.len(), revenue=pl.col("price").sum())
    return {fruit: (count, revenue) for fruit, count, revenue in sums.iter_rows()}


def by_producer(rows: polars.DataFrame) -> dict[int, Sent]:
    """What the log has of each producer."""
    import polars as pl

    sequence = pl.col("sequence")
    sent = rows.group_by("producer").agg(rows=pl.len(), different=sequence.n_unique(), end=sequence.max() + 1)
    return {number: Sent(*counts) for number, *counts in sent.iter_rows()}


def lines_of_totals(counted: dict[str, tuple[int, float]], by_spark: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of the table of fruit: what Polars has counted, and what Spark has."""
    for fruit in sorted({*counted, *by_spark}):
        yield (fruit, *_shown(counted.get(fruit)), *_shown(by_spark.get(fruit)))


def _shown(found: Any) -> tuple[str, str]:
    return ("", "") if found is None else (f"{found[0]:,}", f"{found[1]:,.2f}")

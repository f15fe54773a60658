"""Chaos at random: `scripts/torture --kills 1000 --seed 7`, or `--seconds 600`.

`--power-cuts 2000` cuts the power instead (power_cut.py), `--damage 5000` damages files
(damage_hunt.py), and `--switch-overs 500` has copies take over (tests/replicas/switch_overs.py).

Stores follow one another, with some 60 kills each. They are written in each of the ways in turn, by
programs of every kind: plain ones, threads, forked and spawned children, asyncio. Processes are
killed alone, in groups and all at once, or stopped for a while (SIGSTOP). Where all were killed, a
consume queue or a lane's positions may be damaged before the next start. Every second store deletes
old segments all the time; every third is on a disk of its own that is full now and then. Each store
ends with the account. A seed repeats the plan, though never the exact moments.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from commitlog.shm.layout import STAGES
from tests.crash.accounts import retired_below
from tests.crash.damage import damage
from tests.crash.damage_hunt import hunt
from tests.crash.power_cut import Counts, record, replay
from tests.crash.scene import WAYS, Scene, pid_of
from tests.crash.writer import KINDS
from tests.namespaces import with_tmpfs
from tests.replicas.switch_overs import switch_overs
from tests.waiting import wait_until

KILLS_A_STORE = 60
CUTS_A_RECORD = 200
DISK_BYTES = 64 << 20
DELETING: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16},
    "retention": {"max_bytes": 4 << 20, "interval_ms": 20},
    "flusher": {"positions_interval_ms": 20},
}
"""Old segments are deleted all the time."""
ON_A_SMALL_DISK: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16},
    "dispatcher": {"queue_file_entries": 10_000},
    "retention": {
        "max_bytes": 8 << 20,
        "interval_ms": 20,
        "disk_max_used_percent": 100,
        "disk_clean_forcibly_percent": 100,
        "disk_refuse_percent": 100,
    },
    "flusher": {"positions_interval_ms": 20},
}
"""The disk refuses, and not retention; nothing but the test fills it."""


def merged(*layers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {name for layer in layers for name in layer}
    return {name: {key: value for layer in layers for key, value in layer.get(name, {}).items()} for name in names}


@dataclass
class Chaos:
    """One store under chaos.

    `events` counts what was done besides kills. `disk` is a directory on a small disk of its own.
    With `damages` files of the store are damaged before a start.
    """

    scene: Scene
    chance: random.Random
    disk: Path | None = None
    damages: bool = True
    events: Counter[str] = field(default_factory=Counter)

    def turn(self) -> None:
        """Does one thing, at random."""
        self.scene.goes_on(self.chance.randrange(1, 60))
        what = self.chance.random()
        if what < 0.45:
            self.scene.kill_stages(self.chance.sample(STAGES, self.chance.choice((1, 1, 2, 3, 4))))
        elif what < 0.6:
            self.scene.kill_writer()
        elif what < 0.7:
            self.scene.kill_supervisor(self.chance.sample((*STAGES, "producer"), self.chance.choice((0, 1, 1, 2))))
        elif what < 0.8:
            self.scene.kill_everything(self._damage)
        elif what < 0.9 or self.disk is None:
            self.stop_some()
        else:
            self.fill_the_disk()

    def _damage(self) -> None:
        """Damages a consume queue or a lane's positions, half the time.

        The start has the memory and the log to repair it.
        """
        if self.damages and self.chance.random() < 0.5 and (what := damage(self.scene.path, self.chance)):
            self.events[what] += 1

    def stop_some(self) -> None:
        """Stops some processes for a moment; one of the stopped stages may be killed."""
        names = self.chance.sample(("supervisor", "producer", *STAGES), self.chance.choice((1, 1, 2, 3)))
        pids = {name: self._pid(name) for name in names}
        with self._stopped(pids):
            time.sleep(self.chance.random() / 2)  # no sign shows that a process waits for a stopped one
            stages = [name for name in names if name in STAGES]
            if stages and "supervisor" not in names and self.chance.random() < 0.3:
                self.scene.kill_stages(stages[:1])

    def _pid(self, name: str) -> int:
        if name == "producer":
            return self.scene.some_writer()
        return pid_of(self.scene.path, "" if name == "supervisor" else name)

    @contextlib.contextmanager
    def _stopped(self, pids: dict[str, int]) -> Iterator[None]:
        for name, pid in pids.items():
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self.events[f"SIGSTOP {name}"] += 1
        try:
            yield
        finally:
            for pid in pids.values():
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    def fill_the_disk(self) -> None:
        """Leaves no byte on the disk, until a stage complains."""
        assert self.disk is not None
        ballast = self.disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
        wait_until(self._is_refused, "a stage to be refused")
        self.events["full disk"] += 1
        if self.chance.random() < 0.3:
            self.scene.kill_writer()
        ballast.unlink()

    def _is_refused(self) -> bool:
        """Whether writers wait in vain for segments, or a stage has a fault."""
        return any(lane.faults for lane in self.scene.store.statistics().lanes)


@dataclass
class Totals:
    """The sums over all stores."""

    kills: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    stores: int = 0

    def add(self, kills: Counter[str], events: Counter[str], messages: int) -> None:
        self.kills += kills
        self.events += events
        self.messages += messages
        self.stores += 1


def one_store(
    directory: Path,
    chance: random.Random,
    kills: int,
    way: str,
    kinds: Sequence[str] = (),
    *,
    deletes: bool = False,
    disk: Path | None = None,
    damages: bool = True,
) -> tuple[Counter[str], Counter[str], int]:
    """Runs a store with at least that many kills, then makes the account.

    Returns what was killed, what else was done, and the number of messages at the end. `kinds` are
    those of the writers, else any.
    """
    kinds = kinds or chance.choices(KINDS, k=chance.choice((1, 2, 3)))
    more = merged(
        {"store": {"max_lanes": 12}, "producer": {"lane_wait_ms": 10_000}},
        DELETING if deletes else {},
        ON_A_SMALL_DISK if disk else {},
    )
    with Scene(directory, chance, way, kinds, disk, more) as scene:
        chaos = Chaos(scene, chance, disk, damages)
        chaos.events.update(f"writer: {kind}" for kind in kinds)
        if disk:
            scene.goes_on()
            chaos.fill_the_disk()
        while scene.kills.total() < kills:
            chaos.turn()
        scene.goes_on()
        messages = scene.finish()
        chaos.events["segments deleted"] += sum(retired_below(scene.path).values()) // scene.store.segment_bytes
        return scene.kills, +chaos.events, messages


def on_a_small_disk(
    directory: Path, chance: random.Random, kills: int, way: str, damages: bool = True
) -> tuple[Counter[str], Counter[str], int]:
    """`one_store` on a disk of its own.

    Raises pytest's skip where no such disk can be made.
    """
    disk, said = directory / "disk", directory / "counts"
    disk.mkdir(parents=True, mode=0o700)

    def run() -> None:
        counts = one_store(directory / "scene", chance, kills, way, deletes=True, disk=disk, damages=damages)
        said.write_bytes(orjson.dumps(counts))

    with_tmpfs(disk, DISK_BYTES, run)
    killed, events, messages = orjson.loads(said.read_bytes())
    return Counter(killed), Counter(events), messages


def chaos_of(base: Path, seed: int, kills: int, seconds: float, damages: bool = True) -> Totals:
    """Stores one after another, until there were that many kills, or the seconds are over.

    0 seconds mean no limit. `damages`: see Chaos.
    """
    chance, totals, began = random.Random(seed), Totals(), time.monotonic()
    while totals.kills.total() < kills and (not seconds or time.monotonic() - began < seconds):
        directory, number = base / str(totals.stores), totals.stores
        wanted, way = min(KILLS_A_STORE, kills - totals.kills.total()), tuple(WAYS)[number % len(WAYS)]
        try:
            if number % 3 == 2:
                try:
                    totals.add(*on_a_small_disk(directory, chance, wanted, way, damages))
                except pytest.skip.Exception as reason:
                    print(f"no small disk: {reason}", flush=True)
                    totals.add(*one_store(directory / "large", chance, wanted, way, damages=damages))
            else:
                totals.add(*one_store(directory, chance, wanted, way, deletes=number % 2 == 1, damages=damages))
        except BaseException as error:
            print(f"\nstore {number} of seed {seed}, kept in {directory}: {error}", file=sys.stderr, flush=True)
            raise
        kills_so_far = totals.kills.total()
        print(f"store {totals.stores}: {kills_so_far} kills, {totals.messages:,} messages, all there", flush=True)
        shutil.rmtree(directory)
    return totals


def power_cuts(base: Path, seed: int, count: int) -> Counts:
    """`count` power cuts, in runs that are recorded one after another."""
    total, number = Counts(), 0
    while total.states < count:
        directory = base / f"record-{number}"
        directory.mkdir()
        recorded = record(directory, seed + number, tuple(WAYS)[number % len(WAYS)])
        counts = replay(recorded, directory / "states", min(CUTS_A_RECORD, count - total.states), seed + number)
        total.take(counts)
        print(f"record {number + 1}: {total}", flush=True)
        shutil.rmtree(directory)
        number += 1
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, help="the least number (default: 300, or as many as the seconds allow)")
    parser.add_argument("--seconds", type=float, default=0, help="no new store after this time")
    parser.add_argument("--power-cuts", type=int, default=0, help="number of power cuts, instead of kills")
    parser.add_argument("--damage", type=int, default=0, help="number of damaged stores, instead of kills")
    parser.add_argument("--switch-overs", type=int, default=0, help="number of copies that take over, instead of kills")
    parser.add_argument("--case", type=int, default=0, help="number of the first damaged store, to repeat one")
    parser.add_argument("--no-damage", action="store_true", help="leave files alone between a kill and the next start")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(1 << 32), help="of the plan (default: a new seed)"
    )
    arguments = parser.parse_args()
    logging.getLogger("commitlog").setLevel(logging.ERROR)  # deaths are intended here
    memory = "/dev/shm" if arguments.damage else None  # files are damaged, not the disk: nothing waits for one
    base, began = Path(tempfile.mkdtemp(prefix="commitlog-torture-", dir=memory)), time.monotonic()
    if arguments.damage:
        _damage(base, arguments.seed, arguments.damage, arguments.case)
    elif arguments.switch_overs:
        _switch_overs(base, arguments.seed, arguments.switch_overs)
    elif arguments.power_cuts:
        print(f"seed {arguments.seed}, {arguments.power_cuts} power cuts", flush=True)
        counts = power_cuts(base, arguments.seed, arguments.power_cuts)
        print(f"{counts} in {time.monotonic() - began:.0f} s; nothing that was flushed was lost")
        _bound(counts.states, "power cuts")
    else:
        kills = arguments.kills or (1 << 31 if arguments.seconds else 300)
        print(
            f"seed {arguments.seed}, {kills if arguments.kills or not arguments.seconds else 'all'} kills", flush=True
        )
        totals = chaos_of(base, arguments.seed, kills, arguments.seconds, not arguments.no_damage)
        print(f"{totals.kills.total()} kills ({_listed(totals.kills)}) in {time.monotonic() - began:.0f} s")
        print(f"besides: {_listed(totals.events)}")
        print(f"{totals.messages:,} messages in {totals.stores} stores, none lost or doubled")
        _bound(totals.kills.total(), "kills")
    base.rmdir()


def _damage(base: Path, seed: int, count: int, first: int) -> None:
    began = time.monotonic()
    print(f"seed {seed}, {count} damaged stores", flush=True)
    found = hunt(base, seed, count, first, shows=count == 1)
    print(found)
    print(f"{found.cases:,} damaged stores in {time.monotonic() - began:.0f} s, {len(found.failures)} failed")
    if found.failures:
        base.rmdir()
        sys.exit(1)
    _bound(found.cases, "damaged stores")


def _switch_overs(base: Path, seed: int, count: int) -> None:
    began = time.monotonic()
    print(f"seed {seed}, {count} switch-overs", flush=True)
    made = switch_overs(base, seed, count, lambda line: print(line, flush=True))
    kills = f"{made.kills.total()} kills ({_listed(made.kills)})"
    print(f"{made.switch_overs} switch-overs, {kills} in {time.monotonic() - began:.0f} s")
    print(f"besides: {_listed(made.events)}")
    print(
        f"{made.accepted:,} messages accepted, {made.replicated:,} of them replicated, none lost in silence or doubled"
    )
    _bound(made.switch_overs, "switch-overs")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _bound(count: int, what: str) -> None:
    print(f"bound: with 95 % confidence fewer than {3 / count:.2%} of {what} lose anything (3/n, n = {count})")


if __name__ == "__main__":
    main()

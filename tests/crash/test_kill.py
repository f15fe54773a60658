"""kill -9: nothing that was accepted is ever lost, doubled, changed or out of order.

Some 100 kills by default.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import commitlog
from commitlog.shm.layout import STAGES
from tests.builders.package_tree import package_tree
from tests.crash.accounts import check, read_notes, read_store
from tests.crash.dying_writer import FAILPOINTS, TURNS
from tests.crash.scene import WAYS, Scene, kill, pid_of
from tests.faults.channel import Rule
from tests.faults.test_disk import CONFIG, faulty_store
from tests.nightly import with_nightly
from tests.waiting import wait_until

all_ways = pytest.mark.parametrize("way", with_nightly(["pool"], ["write_direct", "direct"]))
assert set(WAYS) == {"pool", "write_direct", "direct"}


_PAIRS = [(a, b) for i, a in enumerate(STAGES) for b in STAGES[i + 1 :]]
_ALONE = [(stage,) for stage in STAGES]


@pytest.mark.parametrize(
    ("way", "victims_in_turn"),
    [
        pytest.param("pool", [*_ALONE, *_PAIRS], id="pool"),
        pytest.param("direct", _ALONE, id="direct", marks=pytest.mark.nightly),
        pytest.param("write_direct", _ALONE, id="write_direct", marks=pytest.mark.nightly),
        pytest.param("direct", _PAIRS, id="direct, pairs", marks=pytest.mark.nightly),
        pytest.param("write_direct", _PAIRS, id="write_direct, pairs", marks=pytest.mark.nightly),
    ],
)
def test_stages_killed_alone_and_in_pairs(way: str, victims_in_turn: list[tuple[str, ...]], tmp_path: Path) -> None:
    """Every stage and every pair, under two writers, in any order; now and then a writer too."""
    chance = random.Random(1)
    turns = list(victims_in_turn)
    chance.shuffle(turns)
    with Scene(tmp_path, chance, way) as scene:
        for number, victims in enumerate(turns):
            scene.goes_on()
            if number % 3 == 0:
                scene.kill_writer()
            scene.kill_stages(victims)
        scene.goes_on()
        assert (scene.direct_segments() > 0) is (way == "write_direct")
        assert scene.finish() > 50
        assert sum(scene.kills.values()) >= sum(map(len, turns)) + (len(turns) + 2) // 3 + 2


@pytest.mark.leaves_pools
@all_ways
def test_everything_killed_at_once_comes_back_whole(way: str, tmp_path: Path) -> None:
    """Supervisor, stages and writers together, twice; the next start adopts the pool."""
    with Scene(tmp_path, random.Random(2), way) as scene:
        for _ in range(2):
            scene.goes_on()
            scene.kill_everything()
        scene.goes_on()
        assert scene.finish() > 50
        # a stage whose supervisor is killed first may be gone before its turn comes
        assert 2 * 3 + 2 <= sum(scene.kills.values()) <= 2 * 7 + 2


POINTS = [
    Rule("pwrite", dies="before", stage="committer"),
    Rule("pwrite", dies="after", stage="committer"),
    Rule("pwrite", dies="after", stage="committer", short=100),
    Rule("fdatasync", dies="before", stage="flusher"),
    Rule("fdatasync", dies="after", stage="flusher"),
    Rule("fdatasync", dies="after", stage="flusher", error=errno.EIO),
    Rule("open", dies="after", stage="flusher"),
    Rule("pwrite", where="/positions/", dies="before"),
    Rule("pwrite", where="/positions/", dies="after", short=20),
    Rule("fdatasync", where="/positions/", dies="before"),
    Rule("allocate", where="/tmp/", dies="before"),
    Rule("allocate", where="/tmp/", dies="after"),
    Rule("fdatasync", where="/tmp/", dies="before"),
    Rule("rename", dies="before", stage="allocator"),
    Rule("rename", dies="after", stage="allocator"),
    Rule("sync_directory", dies="after", stage="allocator"),
    Rule("pwrite", where="/consumequeue/", dies="before"),
    Rule("pwrite", where="/consumequeue/", dies="after", short=7),
    Rule("fdatasync", where="/consumequeue/", dies="before"),
    Rule("fdatasync", where="/consumequeue/", dies="after", error=errno.EIO),
]


@pytest.mark.nightly
def test_stages_killed_at_named_points(tmp_path: Path) -> None:
    """Before and after each write, sync and rename, and half-way: each once, on one store."""
    with faulty_store(tmp_path / "store") as sender:
        for point in POINTS:
            sender.faults.set(Rule(**{**vars(point), "times": 1}))
            while not sender.faults.hits():
                sender.send(3000).wait("committed", timeout=60)
            receipt = sender.send()
            wait_until(lambda receipt=receipt: receipt.done("flushed"), f"life after {point}")  # type: ignore[misc]
            sender.looks_durable()
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


def _killed_in_send(path: Path, write_path: str, way: str, environment: dict[str, str]) -> int:
    """How many producers died in `send`; what they left is checked."""
    settings = {**CONFIG, "store": {**CONFIG["store"], "write_path": write_path}}
    notes = path / "notes"
    with commitlog.Store.open(path / "store", settings):
        command = [sys.executable, "-P", "-m", "tests.crash.dying_writer", str(path / "store"), str(notes), way]
        deaths = int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    account = read_store(path / "store")
    check(read_notes([notes]), account, deaths)
    assert {place[0] for place in account.places} == {0}
    return deaths


@pytest.mark.nightly
@pytest.mark.parametrize("write_path", ["pool", "direct"])
def test_producers_killed_at_every_line_of_send(write_path: str, tmp_path: Path) -> None:
    """Every third line of four sends, one of them across segments; heirs go on without a gap.

    The lines are Python's: nothing can trace the native core.
    """
    environment = package_tree(tmp_path, None) | {"COMMITLOG_NATIVE": "off"}
    assert _killed_in_send(tmp_path, write_path, "lines", environment) > 20


def test_producers_killed_inside_the_native_send(failpoints_core: Path, tmp_path: Path) -> None:
    """Between any two steps that others can see; heirs go on without a gap."""
    environment = package_tree(tmp_path, failpoints_core) | {"COMMITLOG_NATIVE": "on"}
    assert _killed_in_send(tmp_path, "pool", "points", environment) == len(FAILPOINTS) * len(TURNS)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(["", "producer"], id="some"),
        pytest.param(["", *STAGES, "producer"], id="all", marks=pytest.mark.nightly),
    ],
)
def test_stages_whose_supervisor_is_killed_drain_and_leave(others: list[str], tmp_path: Path) -> None:
    """The supervisor alone, and with each of the others, under writers that never pause.

    No orphan stays. A start beside orphans that still drain waits for them, and goes on with what a
    killed stage left.
    """
    with Scene(tmp_path, random.Random(3)) as scene:
        for also in others:
            scene.goes_on()
            scene.kill_supervisor((also,) if also else ())
        scene.goes_on()
        assert scene.finish() > 100
        assert scene.kills["supervisor"] == len(others)


@pytest.mark.parametrize("victims", with_nightly([("committer", "flusher")], [(("committer",),), (("flusher",),)]))
def test_a_stage_that_dies_before_the_stop_is_no_reason_not_to_drain(victims: tuple[str, ...], tmp_path: Path) -> None:
    """Killed in the same moment: everything accepted is in the files when `close` returns."""
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        producer = store.producer()
        for pid in (pids := [pid_of(store.path, name) for name in victims]):
            os.kill(pid, signal.SIGSTOP)
        for number in range(60):
            producer.send("t", b"%d" % number * 300)
        for pid in pids:
            kill(pid)
        assert store.close().drained
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.offset for message in reader] == list(range(60))

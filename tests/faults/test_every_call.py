"""Every call, every error, every role.

A process that is refused goes on when the fault heals, or ends with an error that has a name.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, ReadingWarning
from commitlog.shm.layout import STAGES
from tests.children import in_child
from tests.crash.accounts import Place, check, read_store
from tests.faults.bench import Bench, bench
from tests.faults.channel import Rule
from tests.faults.roles import (
    CALLS,
    ERRORS,
    MADE_BY,
    SETTINGS,
    SHORT,
    FaultySocket,
    Matrix,
    own_disk,
    rule_of,
    tried,
)
from tests.nightly import with_nightly


def errors_of(*quick: str, all_errors: tuple[str, ...] = ERRORS) -> pytest.MarkDecorator:
    """A test for each error: those named always, the others nightly."""
    marked = [error if error in quick else pytest.param(error, marks=pytest.mark.nightly) for error in all_errors]
    return pytest.mark.parametrize("error", marked)


@errors_of("EIO", all_errors=(*ERRORS, SHORT))
def test_stages_in_their_rounds(error: str, tmp_path: Path) -> None:
    """No stage dies, and each of their calls was struck."""
    with bench(tmp_path / "store", **SETTINGS) as made:
        matrix = Matrix(made)
        for _ in range(5):  # until segments are deleted
            matrix.send()
        for role in STAGES:
            for call in sorted(MADE_BY[role]):
                if error != SHORT or call == "pwrite":
                    matrix.strike(role, call, error)
        matrix.account()
    assert not matrix.deaths, f"of {matrix.tried} faults: {dict(matrix.deaths)}"
    assert not matrix.never, matrix.never


@errors_of("EMFILE")
def test_stages_that_can_ring_nobody(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wakeup and a notice are hints: a stage that can't send one goes on."""
    monkeypatch.setattr(zmq.Context, "_socket_class", FaultySocket)
    with bench(tmp_path / "store", **SETTINGS) as made:
        matrix = Matrix(made)
        matrix.strike_sockets(error)
        matrix.account()
    assert not matrix.deaths, dict(matrix.deaths)
    assert not matrix.never


@pytest.mark.parametrize(
    "errors", with_nightly([list(ERRORS[::3])], [list(ERRORS[1::3]), list(ERRORS[2::3])]), ids=",".join
)
@pytest.mark.parametrize("stage", with_nightly(STAGES[:1], STAGES[1:]))
def test_stages_at_their_start(stage: str, errors: list[str], tmp_path: Path) -> None:
    """Whichever call fails, the next start works."""
    with bench(tmp_path / "store", **SETTINGS) as made:
        matrix = Matrix(made)
        matrix.send()
        for call in CALLS:
            for error in errors:
                matrix.starts_again(stage, call, error)
        matrix.account()
    assert not matrix.deaths, dict(matrix.deaths)


@pytest.mark.parametrize("errors", with_nightly([list(ERRORS[:2])], [list(ERRORS[2:])]), ids=",".join)
@pytest.mark.parametrize("write_path", with_nightly(["pool"], ["direct"]))
def test_producers(write_path: str, errors: list[str], tmp_path: Path) -> None:
    """Making a producer and sending: an error of ours, or none.

    When the fault heals all lanes are there, and nothing is doubled.
    """
    settings = {**SETTINGS, "store": {**SETTINGS["store"], "write_path": write_path, "max_lanes": 1}, "retention": {}}
    named: dict[str, str] = {}
    with bench(tmp_path / "store", **settings) as made:
        matrix = Matrix(made)
        matrix.send(3)
        for call in CALLS:
            for error in errors:
                matrix.producer.close()
                with own_disk(made.path, "producer") as faults:
                    faults.set(rule_of("producer", call, error))
                    named[f"{call}, {error}"] = _use(matrix)
                matrix.settles(f"{call}, {error}")  # the next lessee waits for what the last one wrote
                matrix.producer = made.producer()
                matrix.send(2)
                matrix.settles(f"{call}, {error}")
        matrix.account()
    assert not matrix.deaths, dict(matrix.deaths)
    assert any(named.values()), named


def _use(matrix: Matrix) -> str:
    """A producer and a few messages; notes those that were accepted. Returns the error's name."""

    def use() -> None:
        with commitlog.Producer(matrix.made.path) as producer:
            for number in range(4):
                matrix.rounds(2)
                body = b"%d" % number * 3000
                matrix.note(producer.send(f"new-{matrix.tried}", body), body)

    matrix.tried += 1
    return tried(use)


@errors_of("EACCES")
def test_readers(error: str, tmp_path: Path) -> None:
    """A reader gets all messages, or an error of ours; the next reader gets all."""
    with bench(tmp_path / "store", **{**SETTINGS, "retention": {}}) as made:
        matrix = Matrix(made)
        matrix.send(40)
        matrix.settles("before")
        expected = len(matrix.noted)
        for call in CALLS:
            for times in (1, 3, 0):
                with own_disk(made.path, "reader") as faults:
                    faults.set(rule_of("reader", call, error, times))
                    said = tried(lambda: _read(made.path, expected))
                    assert said or times or not faults.hits() or call != "open", f"{call}, {error}: nobody was told"
                _read(made.path, expected)
        matrix.account()


def _read(path: Path, expected: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)  # the warning that reading is slow
        with commitlog.Reader(path) as reader:
            found = [(message.partition, message.offset) for message in reader]
    assert len(set(found)) == len(found) == expected


@pytest.mark.leaves_pools
@pytest.mark.parametrize("pool", with_nightly(["adopted"], ["lost"]))
@errors_of("ENOSPC")
def test_starts_of_a_killed_store(error: str, pool: str, tmp_path: Path) -> None:
    """A start that is refused changes nothing for the next one.

    What was accepted, or flushed where the memory is lost, is there once.
    """
    path, settings = tmp_path / "store", {**SETTINGS, "retention": {}}
    noted = _killed(path, settings, flushed=pool == "lost")
    for call in CALLS:
        for times in (1, 2, 5):
            if pool == "lost":
                _lose_pool(path)
            said = in_child(partial(_start, path, settings, rule_of("supervisor", call, error, times)))
            assert said == "None", f"{call}, {error}: {said}"
    made = Bench(path, **settings)
    assert not made.warnings or pool == "lost", made.warnings
    made.settle()
    assert made.stop().drained
    check(noted, read_store(path), 0)


def _start(path: Path, settings: dict[str, Any], rule: Rule) -> None:
    """A start in a child: its locks end with it.

    The errors are those that the supervisor's `run` reports to its owner.
    """
    with own_disk(path, "supervisor") as faults, contextlib.suppress(OSError, CommitLogError):
        faults.set(rule)
        Bench(path, **settings)


def _killed(path: Path, settings: dict[str, Any], flushed: bool) -> list[Place]:
    made = Bench(path, **settings)
    matrix = Matrix(made)
    matrix.send(40)
    if flushed:
        matrix.settles("before")
    else:
        made.turn("allocator", "flusher")
        for _ in range(5):
            matrix.note(matrix.producer.send("t", b"x"), b"x")
    made.abandon()
    return matrix.noted


def _lose_pool(path: Path) -> None:
    facts = StoreDirectory(path).load()
    if facts.pool:
        shutil.rmtree(facts.pool.directory, ignore_errors=True)


@pytest.mark.nightly
@errors_of("EDQUOT")
def test_stops(error: str, tmp_path: Path) -> None:
    """A stop that is refused says what it has kept, and the next start has it."""
    path, settings = tmp_path / "store", {**SETTINGS, "retention": {}}
    noted = []
    for call in CALLS:
        for times in (1, 3):
            made = Bench(path, **settings)
            matrix = Matrix(made)
            matrix.send(3)
            matrix.settles("before")
            noted += matrix.noted
            with own_disk(path, "supervisor") as faults:
                faults.set(rule_of("supervisor", call, error, times))
                report = made.stop()
                assert report.drained is not bool(report.kept)
    assert Bench(path, **settings).stop().drained
    check(noted, read_store(path), 0)

"""Commands that ask: what is there at the answer counts, not what was there at the question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.opening.stray_pools import stray_pools
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}


def send(path: Path, *values: bytes) -> None:
    """Starts the store, sends, and stops it."""
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        for value in values:
            producer.send("orders", value)
        producer.flush()


def killed(path: Path) -> None:
    """A store that has a message in its memory only."""
    store = commitlog.Store.open(path, SMALL)
    with store.producer() as producer:
        producer.send("orders", b"accepted")
        kill_store(store)


def values(path: Path) -> list[bytes]:
    with commitlog.Reader(path, topic="orders") as reader:
        return [message.value for message in reader]


def answer(patch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> list[str]:
    """Has somebody say yes after something has happened. Returns the questions that were asked."""
    asked: list[str] = []

    def say_yes(question: str) -> bool:
        asked.append(question)
        meanwhile()
        return True

    patch.setattr("typer.confirm", say_yes)
    return asked


def test_a_backup_is_restored_before_a_trim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is none of the store that was there: it would hide the messages of this one."""
    path = tmp_path / "store"
    send(path, b"one", b"two")
    commitlog.backup(path, tmp_path / "backup")
    send(path, *[b"lost"] * 90)

    def restore() -> None:
        path.rename(tmp_path / "broken")
        commitlog.backup(tmp_path / "backup", path)
        send(path, b"three", b"four")

    asked = answer(monkeypatch, restore)
    done = run("topics", path, "--trim", "orders", "--before", "last 3")
    assert asked
    assert done.returncode == 0, done.stderr
    assert b"trimmed 1 message of orders, kept 3" in done.stdout
    assert values(path) == [b"two", b"three", b"four"]


def test_a_named_reader_comes_before_a_trim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    send(path, b"one", b"two", b"three")
    asked = answer(monkeypatch, lambda: commitlog.Reader(path, topic="orders", name="billing").close())
    done = run("topics", path, "--trim", "orders", "--before", "latest")
    assert asked
    assert b"reader billing has not read 3 of these messages of orders" in done.stderr
    assert values(path) == [b"one", b"two", b"three"]


@pytest.mark.nightly
def test_another_store_is_there_before_it_is_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this one is removed nor the one that was moved, nor the memory of either."""
    path, moved = tmp_path / "store", tmp_path / "moved"
    killed(path)

    def replace() -> None:
        path.rename(moved)
        send(path, b"new")

    asked = answer(monkeypatch, replace)
    done = run("destroy", path)
    assert asked
    assert b"was moved or replaced during the question: nothing is removed" in done.stderr
    assert values(path) == [b"new"]
    send(moved)
    assert values(moved) == [b"accepted"]


@pytest.mark.nightly
def test_a_store_is_started_before_its_memory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was moved, so its memory was nobody's. At its new place it has what was accepted."""
    path, moved = tmp_path / "store", tmp_path / "moved"
    killed(path)
    path.rename(moved)
    monkeypatch.setattr("commitlog.opening.stray_pools._SILENT_NS", 0)
    wait_until(stray_pools, "the killed processes to go")
    started: list[commitlog.Store] = []
    asked = answer(monkeypatch, lambda: started.append(commitlog.Store.open(moved, SMALL)))
    done = run("destroy", path)
    assert asked
    assert b"its store was put back or started during the question: it stays" in done.stderr
    assert started[0].close().drained
    send(moved, b"new")
    assert values(moved) == [b"accepted", b"new"]

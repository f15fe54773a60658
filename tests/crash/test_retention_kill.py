"""kill -9 while old segments are being deleted.

What is kept is whole, and a deletion that had begun is completed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.inspecting.verify import verify_store
from commitlog.shm.layout import Lane
from tests.builders.killed import kill_store
from tests.crash.accounts import read_store
from tests.crash.scene import is_any_stage_locked
from tests.faults.channel import Rule
from tests.faults.test_disk import CONFIG, SEGMENT_BYTES, Sender, faulty_store
from tests.waiting import wait_until

KEPT_SEGMENTS = 6
SETTINGS: dict[str, dict[str, Any]] = {
    "retention": {"max_bytes": KEPT_SEGMENTS * SEGMENT_BYTES, "interval_ms": 10},
    "flusher": {"positions_interval_ms": 10},
    "allocator": {"interval_ms": 10},
    "dispatcher": {"queue_file_entries": 1000, "interval_ms": 20, "linger_ms": 0},
}
POINTS = [
    Rule("pwrite", where="/positions/", dies="before", stage="flusher", skip=3),  # retired, positions not written
    Rule("pwrite", where="/positions/", dies="after", short=20, stage="flusher", skip=3),  # half written
    Rule("unlink", dies="before", stage="allocator"),  # positions written, nothing unlinked
    Rule("unlink", dies="after", stage="allocator"),
    Rule("unlink", dies="after", stage="allocator", skip=1),
    Rule("unlink", where="/consumequeue/", dies="before", stage="allocator"),  # segments gone, their queue files not
    Rule("unlink", where="/consumequeue/", dies="after", stage="allocator"),
]


@contextmanager
def deleting_store(path: Path) -> Iterator[Sender]:
    """A store that deletes segments all the time."""
    with faulty_store(path, "pool", **SETTINGS) as sender:
        for _ in range(600):
            last = sender.send(900)
        last.wait("flushed", timeout=60)
        yield sender


def send_until(sender: Sender, struck: int) -> None:
    """Sends until the rule has struck that often."""

    def goes_on() -> bool:
        for _ in range(20):
            sender.send(900)
        return sender.faults.hits() >= struck

    wait_until(goes_on, "the rule to strike")


def completes(sender: Sender) -> None:
    """The deletion is completed: nothing below `first` is left, and the log goes on.

    No more is kept than the configuration says.
    """
    for _ in range(100):
        sender.send(900)
    sender.producer.flush(timeout=60)
    directory = sender.store.path / "lanes/0/commitlog"
    row = sender.producer._lease.row

    def is_done() -> bool:
        starts = sorted(int(file.name) for file in directory.iterdir())
        return starts[0] == row[Lane.FIRST] > 0 and len(starts) <= KEPT_SEGMENTS

    wait_until(is_done, "old segments to go")


def looks_whole(sender: Sender) -> None:
    """The log is kept up to its end, with every message; index and readers agree.

    The stop may come between the steps of one more deletion. Then its files are there until the
    next start, and no reader shows what is in them.
    """
    path = sender.store.path
    kept = read_store(path).places
    assert len(kept) > 50
    assert kept == sender.noted[-len(kept) :]
    report = verify_store(path)
    assert report.good, report
    with commitlog.Reader(path, start="earliest") as reader:
        shown = [message.value for message in reader]
    assert 50 < len(shown) <= len(kept)
    assert shown == sender.sent[-len(shown) :]


@pytest.mark.nightly
def test_a_stage_killed_between_the_steps_of_a_deletion(tmp_path: Path) -> None:
    """The stage's successor completes it."""
    with deleting_store(tmp_path / "store") as sender:
        for rule in POINTS:
            sender.faults.set(Rule(**{**vars(rule), "times": 2}))
            send_until(sender, rule.skip + 2)
            sender.faults.clear()
            completes(sender)
    looks_whole(sender)


@pytest.mark.leaves_pools
@pytest.mark.parametrize("rules", [POINTS[::3], pytest.param(POINTS, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_everything_killed_between_the_steps_of_a_deletion(rules: list[Rule], tmp_path: Path) -> None:
    """The next start, which adopts the pool, completes it."""
    with deleting_store(tmp_path / "store") as sender:
        for rule in rules:
            sender.faults.set(rule)  # the rule stays: no successor gets any further
            send_until(sender, rule.skip + 1)
            _start_after_killing_everything(sender)
            completes(sender)
    looks_whole(sender)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_the_pool_lost_between_the_steps_of_a_deletion(tmp_path: Path, shm_root: Path) -> None:
    """The next start has only the files; everything was flushed."""
    with deleting_store(tmp_path / "store") as sender:
        for rule in POINTS[3::2]:  # rules of the allocator: the flusher goes on
            sender.faults.set(rule)
            send_until(sender, rule.skip + 1)
            sender.producer.flush(timeout=60)
            _start_after_killing_everything(sender, lose=shm_root)
            completes(sender)
    looks_whole(sender)


def _start_after_killing_everything(sender: Sender, lose: Path | None = None) -> None:
    kill_store(sender.store)
    wait_until(lambda: not is_any_stage_locked(sender.store.path), "the kernel to free the locks")
    if lose:
        shutil.rmtree(next(lose.iterdir()))
    sender.faults.clear()
    sender.store = commitlog.Store.open(sender.store.path, {**CONFIG, **SETTINGS, "store": CONFIG["store"]})
    sender.producer = sender.store.producer()

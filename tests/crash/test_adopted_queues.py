"""Everything was killed and consume queues were damaged: the start with the pool builds them anew.

Then everything that was accepted is there once, and queue offsets go on where they were.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.inspecting.verify import verify_store
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import counted_entries
from commitlog.shm.layout import ENTRY_COUNTS, Lane
from tests.builders.killed import kill_store
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools

CONFIG: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": 2},
    "flusher": {"positions_interval_ms": 50},
    "dispatcher": {"queue_file_entries": 1000},
    "retention": {"interval_ms": 50},
}
RETAINED: dict[str, dict[str, Any]] = {**CONFIG, "retention": {"interval_ms": 50, "max_bytes": 6 << 16}}
TOPICS = ("orders", "payments", "rare")
Sent = dict[tuple[int, str], int]


def queues(path: Path, lane: int = 0) -> Path:
    return path / "lanes" / str(lane) / "consumequeue"


def files(path: Path, topic: str, lane: int = 0) -> list[Path]:
    return sorted((queues(path, lane) / topic / str(lane)).iterdir())


def fill(producers: list[commitlog.Producer], rounds: int) -> Sent:
    """Sends to all topics of each lane, rarely to one of them; returns how many each has now."""
    sent: Sent = {}
    for producer in producers:
        for number in range(rounds):
            for topic in TOPICS:
                if topic != "rare" or number % 100 == 99:
                    receipt = producer.send(topic, b"%06d" % number * (5 + producer.lane))
                    sent[producer.lane, topic] = receipt.offset + 1
        producer.flush()
    return sent


def is_synced(store: commitlog.Store) -> bool:
    """Whether the consume queues of all lanes are durable up to the end."""
    view = StoreView(store.path)
    try:
        assert view.control is not None
        rows = view.control.lane_table()
        return bool((rows[:, Lane.DISPATCH_SYNCED] == rows[:, Lane.WROTE]).all())
    finally:
        del rows
        view.close()


def killed(
    path: Path, config: dict[str, dict[str, Any]], unsynced: int = 0, rounds: int = 1300, early: int = 0
) -> tuple[Sent, list[commitlog.Producer]]:
    """A store that was killed with all its queues durable, except the last `unsynced` rounds.

    Its producers still hold their lanes. The first `early` messages of one of them have a topic of
    their own.
    """
    store = commitlog.Store.open(path, config)
    producers = [commitlog.Producer(path), commitlog.Producer(path)]
    for _ in range(early):
        producers[0].send("early", b"x")
    sent = fill(producers, rounds)
    wait_until(lambda: is_synced(store), "queues to be durable")
    if config is RETAINED:
        wait_until(lambda: not (path / f"lanes/0/commitlog/{0:020d}").exists(), "retention")
    if unsynced:
        os.kill(pid_of(path, "dispatcher"), signal.SIGSTOP)
        sent |= fill(producers, unsynced)
    kill_store(store)
    return sent, producers


def check(path: Path, config: dict[str, dict[str, Any]], sent: Sent) -> None:
    """Opens the store, sends on, stops it properly; reads and verifies everything."""
    with commitlog.Store.open(path, CONFIG) as store:  # here retention deletes nothing more
        producers = {producer.lane: producer for producer in (store.producer(), store.producer())}
        for (lane, topic), count in sent.items():
            assert producers[lane].send(topic, b"one more").offset == count, (lane, topic)
        for producer in producers.values():
            producer.flush()
        found: dict[tuple[int, str], list[int]] = {}
        with commitlog.Reader(path) as reader:
            for message in reader:
                found.setdefault((message.partition, message.topic), []).append(message.offset)
        for place, count in sent.items():
            first = found[place][0]
            assert found[place] == list(range(first, count + 1)), place
            assert first == 0 or config is RETAINED
    report = verify_store(path)
    assert report.good, report
    with commitlog.Reader(path) as reader:  # it trusts the queues: their ends add up
        assert len(list(reader)) == sum(len(offsets) for offsets in found.values())


def remove_topic(path: Path) -> None:
    shutil.rmtree(queues(path) / "orders")


def remove_rare_topic(path: Path) -> None:
    shutil.rmtree(queues(path) / "rare")


def remove_all(path: Path) -> None:
    for lane in (0, 1):
        shutil.rmtree(queues(path, lane))


def remove_last_file(path: Path) -> None:
    files(path, "orders")[-1].unlink()


def empty_directory(path: Path) -> None:
    for file in files(path, "orders"):
        file.unlink()


def truncate_to_nothing(path: Path) -> None:
    for file in files(path, "payments"):
        os.truncate(file, 0)


def zero_all(path: Path) -> None:
    for file in files(path, "orders"):
        file.write_bytes(bytes(file.stat().st_size))


def cut_a_file(path: Path) -> None:
    os.truncate(files(path, "orders")[-1], 7 * ENTRY_BYTES + 3)


def cut_between_entries(path: Path) -> None:
    for file in files(path, "rare"):
        os.truncate(file, 3 * ENTRY_BYTES)


def zero_last_entries(path: Path) -> None:
    file = files(path, "orders")[-1]
    data = file.read_bytes()
    used = len(data.rstrip(b"\0"))
    file.write_bytes(data[: max(used - 5 * ENTRY_BYTES, 0) // ENTRY_BYTES * ENTRY_BYTES].ljust(len(data), b"\0"))


def swap_with_another(path: Path) -> None:
    ours, other = queues(path) / "orders" / "0", queues(path) / "rare" / "0"
    ours.rename(queues(path) / "between")
    other.rename(ours)
    (queues(path) / "between").rename(other)


def swap_with_another_lane(path: Path) -> None:
    shutil.rmtree(queues(path) / "orders" / "0")
    shutil.copytree(queues(path, 1) / "orders" / "1", queues(path) / "orders" / "0")


def garbage(path: Path) -> None:
    file = files(path, "orders")[-1]
    file.write_bytes(os.urandom(file.stat().st_size))


def file_for_directory(path: Path) -> None:
    remove_topic(path)
    (queues(path) / "orders").write_bytes(b"x")


DAMAGES = [
    remove_topic, remove_rare_topic, remove_all, remove_last_file, empty_directory, truncate_to_nothing, zero_all, cut_a_file,
    cut_between_entries, zero_last_entries, swap_with_another, swap_with_another_lane, garbage, file_for_directory,
]  # fmt: skip


_DAILY: dict[str, list[Callable[[Path], None]]] = {
    "whole": [garbage],
    "retained": [remove_all],
}
"""Nothing there, none of ours. The others are tried nightly."""


@pytest.mark.parametrize(
    ("damage", "config"),
    [
        pytest.param(
            damage,
            config,
            id=f"{damage.__name__}-{name}",
            marks=[] if damage in _DAILY[name] else [pytest.mark.nightly],
        )
        for damage in DAMAGES
        for name, config in (("whole", CONFIG), ("retained", RETAINED))
    ],
)
def test_damaged_queues_are_built_anew(
    damage: Callable[[Path], None],
    config: dict[str, dict[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every kind of damage, with several topics and lanes, before and after retention."""
    path = tmp_path / "store"
    sent, producers = killed(path, config)
    for producer in producers:
        producer.close()
    damage(path)
    check(path, config, sent)
    assert "they are built anew from the log" in caplog.text


@pytest.mark.parametrize("damage", with_nightly([zero_last_entries], [None, remove_topic, swap_with_another]))
def test_entries_that_were_not_synced_are_no_damage(
    damage: Callable[[Path], None] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are placed again; a store that nobody touched gives no warning."""
    path = tmp_path / "store"
    sent, producers = killed(path, CONFIG, unsynced=50)
    for producer in producers:
        producer.close()
    if damage:
        damage(path)
    check(path, CONFIG, sent)
    assert ("built anew" in caplog.text) is (damage is not None)


@pytest.mark.nightly
def test_a_producer_that_holds_its_lane_goes_on(tmp_path: Path) -> None:
    """It lives on while all others die, and its queues are built anew beside it."""
    path = tmp_path / "store"
    sent, producers = killed(path, CONFIG)
    remove_all(path)
    with commitlog.Store.open(path, CONFIG):
        for producer in producers:
            for topic in TOPICS:
                assert producer.send(topic, b"more").offset == sent[producer.lane, topic]
                sent[producer.lane, topic] += 1
            producer.close()
    check(path, CONFIG, sent)


@pytest.mark.nightly
def test_a_pool_in_which_nobody_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The pool of an older version: the queues are built anew once, and counted."""
    path = tmp_path / "store"
    sent, producers = killed(path, CONFIG)
    for producer in producers:
        producer.close()
    forget_counts(path)
    remove_rare_topic(path)
    check(path, CONFIG, sent)
    assert "nobody has counted" in caplog.text


def forget_counts(path: Path) -> None:
    from commitlog.reading.view import attach_control

    view = StoreView(path)
    control = attach_control(view.directory, view.facts, writable=True)
    assert control is not None
    for lane in (0, 1):
        row = control.row(lane)
        for place in range(ENTRY_COUNTS):
            row[Lane.ENTRIES_AT + place] = 0
        assert counted_entries(row, row[Lane.DISPATCH_SYNCED]) == -1
    control.close()
    view.close()


@pytest.mark.parametrize("damage", with_nightly([cut_between_entries], [remove_topic, remove_rare_topic]))
def test_who_reads_a_killed_store_is_told(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """The pool has the number of entries, so no message is missing silently."""
    path = tmp_path / "store"
    sent, producers = killed(path, CONFIG)
    for producer in producers:
        producer.close()
    with commitlog.Reader(path) as reader:  # it trusts the queues as they are
        assert len(list(reader)) == sum(sent.values())
    damage(path)
    with (
        pytest.warns(commitlog.errors.ReadingWarning, match="entries|end at .* in all"),
        commitlog.Reader(path) as reader,
    ):
        assert len(list(reader)) == sum(sent.values())
    check(path, CONFIG, sent)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sent]:
    """A stopped store, and what is in it; a test works on a copy."""
    path = tmp_path_factory.mktemp("filled") / "store"
    with commitlog.Store.open(path, CONFIG) as store:
        return path, fill([store.producer(), store.producer()], 1300)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "damage",
    with_nightly(
        [remove_all],
        [garbage, zero_last_entries, remove_topic, remove_rare_topic, empty_directory, swap_with_another],
    ),
)
def test_a_lessee_believes_no_queue_without_a_look(
    damage: Callable[[Path], None], filled: tuple[Path, Sent], tmp_path: Path
) -> None:
    """A queue is damaged before the dispatcher opens it.

    Offsets go on, and the next start repairs the queue.
    """
    path, sent = tmp_path / "store", dict(filled[1])
    shutil.copytree(filled[0], path)
    with commitlog.Store.open(path, CONFIG) as store:
        damage(path)
        with store.producer() as first, store.producer() as second:
            for producer in (first, second):
                for topic in (*TOPICS, "new"):
                    count = sent.get((producer.lane, topic), 0)
                    assert producer.send(topic, b"more").offset == count
                    sent[producer.lane, topic] = count + 1
    check(path, CONFIG, sent)


@pytest.mark.nightly
def test_queues_whose_records_are_all_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the queue has their offsets.

    A rebuild of the other queues keeps it. Where it is gone, a warning says so.
    """
    path = tmp_path / "store"
    sent, producers = killed(path, RETAINED, early=7)
    for producer in producers:
        producer.close()
    remove_topic(path)
    check(path, RETAINED, sent | {(0, "early"): 7})
    assert "told by nothing" not in caplog.text

    sent, producers = killed(tmp_path / "other", RETAINED, early=7)
    for producer in producers:
        producer.close()
    shutil.rmtree(queues(tmp_path / "other") / "early")
    check(tmp_path / "other", RETAINED, sent | {(0, "early"): 0})
    assert "7 queue offsets are told by nothing any more" in caplog.text

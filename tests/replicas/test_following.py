"""A replica follows its store: the same bytes, the same consume queues, readable all the while."""

from __future__ import annotations

from dataclasses import replace

import pytest

import commitlog
from commitlog.backups.store_backup import backup
from commitlog.cli.stat import lines
from commitlog.disk.replica_mark import load_mark, save_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.watching.health import Health, HealthLimits, health
from commitlog.watching.snapshot import StoreWatch
from commitlog.watching.store_facts import collect
from tests.replicas.scene import Scene, await_copy, check_equal, log_of
from tests.waiting import wait_until


def test_a_copy_has_the_same_bytes_and_the_same_consume_queues(scene: Scene) -> None:
    """With the command, in a process of its own."""
    with scene.open() as store, scene.replica():
        first, second = store.producer(), store.producer()
        for number in range(3_000):
            first.send("orders", b"%d" % number * 20, tags="a")
            second.send("other", b"%d" % number * 30)
        first.flush()
        second.flush()
        await_copy(scene)
        check_equal(scene)


def test_a_message_is_replicated_when_the_copy_has_it(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        producer = store.producer()
        producer.send("orders", b"first").wait("flushed", 60)  # a copy has all of a store without a byte
        await_copy(scene)
        wait_until(lambda: store.statistics().lanes[0].in_sync == 1, "it is in sync")
        producer.send("orders", b"second").wait("replicated", timeout=60)
        with commitlog.Reader(scene.copy, topic="orders", follow=True) as reader:
            assert [message and message.value for message in (reader.poll(60), reader.poll(60))] == [
                b"first",
                b"second",
            ]


@pytest.mark.nightly
def test_stat_says_of_whom_it_is_a_copy_and_how_far_behind(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        producer = store.producer()
        producer.send("orders", b"first").wait("flushed", 60)  # a copy has all of a store without a byte
        await_copy(scene)
        wait_until(lambda: f"replica of localhost:{scene.port}, 0 ms behind" in stat_of(scene), "it has all")
        assert health_of(scene) == Health("good")
    assert "not kept up to date" in stat_of(scene)
    (reason,) = health_of(scene).reasons
    assert (reason.code, reason.severity) == ("stopped", "down")
    assert "no `commitlog replica` keeps it up to date" in reason.text
    assert reason.command == f"commitlog promote {scene.copy}"
    directory = StoreDirectory(scene.copy)
    mark = load_mark(directory)
    assert mark is not None
    save_mark(directory, replace(mark, complete=False))
    (reason,) = health_of(scene).reasons
    assert reason.way_out.startswith("start that again, it is not whole yet; ")


class AheadClock(Clock):
    """The clock of a machine that has booted with a wrong time."""

    ahead_ms = 3_600_000

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.mark.nightly
def test_a_copy_gets_older_after_its_clock_was_set_back(scene: Scene) -> None:
    """Else health would call it good for as long as its clock was ahead."""
    clock = AheadClock()

    def behind_since() -> int:
        mark = load_mark(StoreDirectory(scene.copy))
        return mark.behind_since_ms if mark else 0

    with scene.follower(clock=clock):
        with scene.open() as store, store.producer() as producer:
            producer.send("orders", b"first").wait("flushed", 60)
            await_copy(scene)
        wait_until(lambda: behind_since() > SYSTEM_CLOCK.wall_ms(), "the copy is alone")
        clock.ahead_ms = 0
        wait_until(lambda: 0 < behind_since() <= SYSTEM_CLOCK.wall_ms(), "its time is that of the clock")


def health_of(scene: Scene) -> Health:
    with StoreWatch(scene.copy) as watch:
        return health(watch.snapshot(), HealthLimits(full_percent=100))


def stat_of(scene: Scene) -> str:
    facts, topics, readers, damage = collect(scene.copy)
    assert damage is None
    return "\n".join(lines(facts, topics, readers))


def test_a_backup_of_a_running_copy_is_a_backup_of_the_store(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        producer = store.producer()
        producer.send("orders", b"first").wait("flushed", 60)  # a copy has all of a store without a byte
        await_copy(scene)
        assert backup(scene.copy, scene.path / "backup").good
    assert log_of(scene.path / "backup") == log_of(scene.primary)

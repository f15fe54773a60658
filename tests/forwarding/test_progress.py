"""What a forwarder shows of itself takes little of its time."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.forwarder_files import forwarders
from commitlog.disk.store_directory import StoreDirectory
from commitlog.forwarding import progress as progress_module
from commitlog.forwarding.forward_settings import settings_of
from commitlog.forwarding.kafka_positions import Positions, TopicPosition
from commitlog.forwarding.progress import Progress, Sent
from commitlog.forwarding.store_source import Source
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.hand_made import small_store
from tests.fake_clock import SetClock
from tests.faults.channel import FaultsDirectory, FaultyChannel, Rule
from tests.waiting import wait_until


def test_looks_that_take_long_come_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of topics that wait, a look at them took all of the time."""
    clock, looks, look = SetClock(), list[int](), Source.behind

    def slow(self: Source, *ranges: Any) -> tuple[int, int, int | None]:
        looks.append(clock.wall)
        clock.pass_seconds(2)
        return look(self, *ranges)

    monkeypatch.setattr(Source, "behind", slow)
    store = small_store(tmp_path / "store", rows=3, lanes=1, topics=("orders",))
    source = Source(str(store.path), accept_loss=False)
    progress = Progress(settings_of(store.path, "kafka://one"), source, clock, lambda: "")
    for _ in range(100):
        clock.pass_seconds(1)
        progress.write()
    progress.close()
    source.close()
    assert len(looks) == 7
    (shown,) = forwarders(store.directory)
    assert (shown.behind_messages, shown.updated_ms) == (3, clock.wall)
    assert shown.behind_ms > clock.wall - looks[-1]


def test_what_was_forwarded_since_a_look_that_took_long_waits_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forwarder that has ended would be behind for ever."""
    clock, look = SetClock(), Source.behind

    def slow(self: Source, *ranges: Any) -> tuple[int, int, int | None]:
        clock.pass_seconds(2)
        return look(self, *ranges)

    monkeypatch.setattr(Source, "behind", slow)
    store = small_store(tmp_path / "store", rows=3, lanes=1, topics=("orders",))
    source = Source(str(store.path), accept_loss=False)
    progress = Progress(settings_of(store.path, "kafka://one"), source, clock, lambda: "")
    progress.moved(Positions({"orders": TopicPosition("orders", "", {0: 3})}), Sent({("orders", 0): 3}, 3, 30))
    progress.close()
    source.close()
    (shown,) = forwarders(store.directory)
    assert (shown.messages, shown.behind_messages, shown.behind_ms) == (3, 0, 0)


def test_what_waits_gets_older_after_the_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages have times that are still to come."""
    clock = SetClock()
    store = small_store(tmp_path / "store", rows=3, lanes=1, topics=("orders",))
    clock.wall = 1_000_000
    monkeypatch.setattr("commitlog.disk.forwarder_files.SYSTEM_CLOCK", clock)
    source = Source(str(store.path), accept_loss=False)
    progress = Progress(settings_of(store.path, "kafka://one"), source, clock, lambda: "")
    progress.write(now=True)
    clock.pass_seconds(40)
    progress.close()
    source.close()
    (shown,) = forwarders(store.directory)
    assert (shown.behind_messages, shown.behind_ms) == (3, 40_000)


def test_what_came_while_it_ran_gets_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has walked these messages, and looks at no entry while nothing moves."""
    clock = SetClock()
    monkeypatch.setattr("commitlog.disk.forwarder_files.SYSTEM_CLOCK", clock)
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        producer.send("other", b"first")
        producer.flush("flushed", 60)
        source = Source(str(store.path), accept_loss=False)
        progress = Progress(settings_of(store.path, "kafka://one", topics=["orders"]), source, clock, lambda: "")
        progress.write(now=True)
        for number in range(3):
            producer.send("orders", b"%d" % number)
        producer.flush("flushed", 60)
        source.refresh()
        wait_until(lambda: store.statistics().lanes[0].dispatched == store.statistics().lanes[0].flushed, "an index")
        clock.wall = SYSTEM_CLOCK.wall_ms() + 40_000
        clock.boot += 1_000_000_000
        progress.write(now=True)
        (shown,) = forwarders(StoreDirectory(store.path))
        progress.close()
        source.close()
    assert shown.behind_messages == 3
    assert shown.behind_ms >= 40_000


def test_a_full_disk_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told each second, and named the file "None"."""
    clock, store = SetClock(), small_store(tmp_path / "store", rows=3, lanes=1, topics=("orders",))
    faults, channel = FaultsDirectory(store.path), FaultyChannel(store.path)
    monkeypatch.setattr(progress_module, "StoreDirectory", partial(StoreDirectory, channel=channel))
    source = Source(str(store.path), accept_loss=False)
    progress = Progress(settings_of(store.path, "kafka://one"), source, clock, lambda: "")
    for full in (True, False, True):
        faults.set(*[Rule("pwrite", "/forwarders/", errno.ENOSPC)] * full)
        for _ in range(3):
            clock.pass_seconds(1)
            progress.write()
    faults.clear()
    progress.close()
    source.close()
    assert (
        caplog.messages
        == [f"{store.path / 'forwarders'}: No space left on device; what the forwarder does can't be seen there"] * 2
    )

"""What a forwarder shows of itself takes little of its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.forwarder_files import forwarders
from commitlog.forwarding.forward_settings import settings_of
from commitlog.forwarding.progress import Progress
from commitlog.forwarding.store_source import Source
from tests.builders.hand_made import small_store
from tests.fake_clock import SetClock


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
    assert len(looks) == 6
    (shown,) = forwarders(store.directory)
    assert (shown.behind_messages, shown.updated_ms) == (3, clock.wall)
    assert shown.behind_ms > clock.wall - looks[-1]


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

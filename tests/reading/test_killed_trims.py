"""A trim that is killed before any of its steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from commitlog.reading.topic_trim import carry_out, parse_before, plan_trim
from commitlog.reading.view import StoreView
from tests.backups.test_interrupted import Striking
from tests.builders.hand_made import small_store
from tests.reading.test_topic_trim import expected, given, indexed, trim

pytestmark = pytest.mark.usefixtures("look_each_time", "little_patience", "no_segments_mapped")


def raise_marks(path: Path, steps: int) -> None:
    view = StoreView(path, Striking(steps, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    carry_out(view, plan_trim(indexed(view), "orders", parse_before("orders", "90")))
    os._exit(0)


def test_killed_at_any_step(tmp_path: Path) -> None:
    """Each lane has its old marks or the new ones. The same command then ends the work."""
    run_killed: Callable[..., multiprocessing.process.BaseProcess] = multiprocessing.get_context("fork").Process
    seen = set()
    for step in range(30):
        store = small_store(tmp_path / str(step), rows=100)
        trim(store, "10")
        process = run_killed(target=raise_marks, args=(store.path, step))
        process.start()
        process.join(60)
        with closing(StoreView(store.path)) as view:
            ranges = indexed(view).ranges("orders")
            firsts = [ranges[lane].first for lane in (0, 1)]
        assert set(firsts) <= {10, 90}
        seen.add(tuple(firsts))
        trim(store, "90")
        assert given(store) == expected(90)
        if process.exitcode == 0:
            break
    assert seen == {(10, 10), (90, 10), (90, 90)}

"""A thread that finds no memory for its first call ends before it has done anything.

Python reports this on standard error only, so the one who starts the thread has to notice.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.status import PutMessageStatus
from tests.faults.bench import bench
from tests.nightly import with_nightly
from tests.waiting import wait_until

_STARTS = [
    (module, name)
    for module, names in (
        (_thread, ("start_new_thread",)),
        (threading, ("_start_new_thread", "_start_joinable_thread")),
    )
    for name in names
    if hasattr(module, name)
]


def let_one_end_early(patch: pytest.MonkeyPatch, which: object, of: str) -> list[str]:
    """Has a thread of this name, of those that a module starts, end before its first call.

    Returns a list, which has the thread's name when that has happened.
    """
    ended: list[str] = []

    def planted(start: Callable[..., Any]) -> Callable[..., Any]:
        def begin(function: Callable[..., object], *arguments: Any, **more: Any) -> Any:
            name = getattr(getattr(function, "__self__", None), "_name", "")
            if ended or not name.startswith(of):
                return start(function, *arguments, **more)
            ended.append(name)
            return start(_thread.exit, *((), *arguments[1:])[: len(arguments)], **more)

        return begin

    for module, name in _STARTS:
        if module is which:
            patch.setattr(module, name, planted(getattr(module, name)))
    return ended


def threads(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name) and thread.is_alive()]


@pytest.mark.parametrize("which", [_thread, threading], ids=["first", "second"])
def test_a_callback_is_told_though_a_thread_had_no_memory(
    which: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it is refused by name; the next callback is told in any case."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt, answers = producer.send("t", b"x"), list[PutMessageStatus]()
        made.settle()
        ended = let_one_end_early(monkeypatch, which, "commitlog-lane")
        with contextlib.suppress(errors.NotEnoughThreads):
            receipt.add_callback(answers.append)
            wait_until(lambda: answers == [PutMessageStatus.PUT_OK], "the first callback is told")
        assert ended
        answers.clear()
        receipt.add_callback(answers.append)
        wait_until(lambda: answers == [PutMessageStatus.PUT_OK], "the second callback is told")
        wait_until(lambda: not threads("commitlog-lane"))


@pytest.mark.parametrize("which", with_nightly([_thread], [threading]), ids=["first", "second"])
def test_late_rows_are_sent_though_a_thread_had_no_memory(
    which: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next row starts a thread again, and nobody flushes the rows."""
    with commitlog.Store.open(tmp_path / "store") as store, commitlog.Producer(store.path) as producer:
        store.create_topic("rows", "id BIGINT")
        with producer.rows("rows", linger_ms=1) as rows:
            ended = let_one_end_early(monkeypatch, which, "commitlog-rows")
            rows.append(id=1)
            rows.append(id=2)
            wait_until(lambda: producer.statistics().messages > 0, "a thread sends the rows")
        assert ended

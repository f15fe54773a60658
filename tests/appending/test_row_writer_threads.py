"""A writer of rows that threads share: `append` collects without its lock, and loses no row."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from commitlog.appending import row_writer
from commitlog.appending.row_writer import RowWriter
from commitlog.errors import ProducerClosed
from tests.builders.row_log import AsItIs, Log
from tests.waiting import wait_until

NEVER = 3_600_000


WITHOUT_LOCK = {function.__code__ for function in (RowWriter.append, RowWriter._collect_inside)}


def at_instruction(number: int, act: Callable[[], object], work: Callable[[], None]) -> bool:
    """Runs `work`, and `act` before this instruction of `append`. False: there are fewer."""
    left = number

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code not in WITHOUT_LOCK:
            return None
        frame.f_trace_opcodes = True  # each time: Python 3.13 takes it only once the frame is traced
        if event == "call" and sys.version_info[:2] == (3, 12):
            sys.settrace(trace)  # it looks at the frames only then
        if event == "opcode":
            left -= 1
            if left == 0:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return left <= 0


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("max_rows", [1, 5])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_close_between_any_two_instructions_of_append(is_inside: bool, max_rows: int) -> None:
    """The row is in the log, or its `append` raises and it is not.

    Also where it comes inside a call of the producer, and does not wait for the writer's lock.
    """
    refused, me = 0, threading.current_thread()
    for number in itertools.count(1):
        log, expected = Log(), ["before"]
        rows = RowWriter(
            AsItIs(), log.messages_of, lambda timeout: None, NEVER, max_rows,
            lambda: is_inside and threading.current_thread() is me,
        )  # fmt: skip
        in_a_thread(partial(rows.append, "before"))

        def append(rows: RowWriter = rows, expected: list[str] = expected) -> None:
            nonlocal refused
            try:
                rows.append("row")
                expected.append("row")
            except ProducerClosed:
                refused += 1

        goes_on = at_instruction(number, partial(in_a_thread, rows.close), append)
        in_a_thread(rows.close)
        assert log.rows == expected
        if not goes_on:
            break
    assert 5 < refused < number - 1  # some came before the row was collected, some after


def test_the_thread_goes_to_rest_between_any_two_instructions_of_append() -> None:
    """It hears of the row, and sends it."""
    for number in itertools.count(1):
        log = Log()
        rows = RowWriter(AsItIs(), log.messages_of, lambda timeout: None, 0, 5)
        log_is_full = partial(wait_until, partial(lambda log: log.rows, log), "the thread sends the first row")

        def rest(rows: RowWriter = rows, sent: Callable[[], object] = log_is_full) -> None:
            sent()
            wait_until(lambda: rows._is_idle, "the thread rests")

        rows.append("before")
        goes_on = at_instruction(number, rest, lambda rows=rows: rows.append("row"))  # type: ignore[misc]
        wait_until(lambda log=log: log.rows == ["before", "row"], "the thread sends the second row")  # type: ignore[misc]
        rows.close()
        if not goes_on:
            break
    assert number > 10


def test_flush_ends_though_rows_keep_coming() -> None:
    """It sends those that were collected before. Here another thread appends while it sends."""
    rows: RowWriter
    coming = iter([3, 4])

    class Busy(Log):
        def messages_of(self, batch: Any) -> row_writer.Messages:
            for count, send in super().messages_of(batch):
                for number in itertools.islice(coming, 1):
                    thread = threading.Thread(target=rows.append, args=(number,))
                    thread.start()
                    thread.join()
                yield count, send

    log = Busy()
    rows = RowWriter(AsItIs(), log.messages_of, lambda timeout: None, NEVER, 1000)
    for number in range(3):
        rows.append(number)
    rows.flush()
    assert log.rows == [0, 1, 2]
    rows.close()
    assert log.rows == [0, 1, 2, 3, 4]


def test_rows_that_come_as_the_writer_is_closed() -> None:
    """Each is in the log once if its `append` returned, and not if it raised."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            log = Log()
            rows = RowWriter(AsItIs(), log.messages_of, lambda timeout: None, 0, 7)
            collected: list[list[int]] = [[], []]
            threads = [threading.Thread(target=append_until_closed, args=(rows, which)) for which in collected]
            for thread in threads:
                thread.start()
            wait_until(partial(all, collected), "both threads append")
            rows.close()
            for thread in threads:
                thread.join()
            assert sorted(log.rows) == sorted(id(which) + n for which in collected for n in which)
    finally:
        sys.setswitchinterval(before)


def append_until_closed(rows: RowWriter, collected: list[int]) -> None:
    for number in itertools.count():
        try:
            rows.append(id(collected) + number)
        except ProducerClosed:
            return
        collected.append(number)

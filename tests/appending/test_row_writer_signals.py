"""A signal handler uses the writer of rows that its own thread is inside."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from commitlog.appending.row_writer import Messages, RowWriter
from commitlog.errors import (
    ConcurrentUse,
    ProducerClosed,
)
from tests.builders.row_log import AsItIs

NEVER = 3_600_000


@pytest.mark.parametrize("closes", [False, True])
def test_a_signal_handler_appends_and_closes_within_append(closes: bool) -> None:
    """At any place of a call: nothing hangs, is lost or doubled."""
    taken: list[Any] = []
    given_rows: list[Any] = []
    rows: RowWriter

    def messages_of(batch: Sequence[Any]) -> Messages:
        os.kill(os.getpid(), signal.SIGUSR1)
        yield len(batch), partial(taken.extend, [row for row, *_ in batch])

    def on_signal(*_: object) -> None:
        if len(given_rows) < 50 and not rows._closed:
            rows.append(number := -len(given_rows) - 1)
            given_rows.append(number)
            if closes and len(given_rows) > 7:
                rows.close()

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        rows = RowWriter(AsItIs(), messages_of, lambda timeout: None, NEVER, 3)
        for number in range(20):
            try:
                rows.append(number)
            except ProducerClosed:
                assert closes
                break
            given_rows.append(number)
        rows.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(taken) == sorted(given_rows)


def test_a_signal_handler_can_not_flush_what_its_thread_sends() -> None:
    """It would return before the rows are in the log."""
    refused: list[str] = []

    def messages_of(batch: Sequence[Any]) -> Messages:
        yield len(batch), partial(os.kill, os.getpid(), signal.SIGUSR1)

    def on_signal(*_: object) -> None:
        with pytest.raises(ConcurrentUse, match="when the signal handler has ended") as caught:
            rows.flush()
        refused.append(str(caught.value))

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        rows = RowWriter(AsItIs(), messages_of, lambda timeout: None, NEVER, 3)
        rows.append(1)
        rows.flush()
        rows.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1

"""An interrupt leaves a producer as it was, wherever it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from tests.interrupts import interrupted

LIMIT_SECONDS = 60


@pytest.mark.parametrize(
    "use",
    [
        lambda producer: producer.send("orders", b"waits").wait(),
        lambda producer: producer.send("orders", b"tells").add_callback(lambda _: None),
        lambda producer: (producer.send("orders", b"flushes"), producer.flush()),
    ],
    ids=["wait", "callback", "flush"],
)
def test_a_producer_goes_on(tmp_path: Path, use: Callable[[commitlog.Producer], object]) -> None:
    """Callbacks are called, and another thread can close it, whatever call was interrupted."""
    with commitlog.Store.open(tmp_path / "store") as store:
        producer = store.producer()
        use(producer)
        number, left = 1, 0
        while left <= 0:
            with interrupted(number) as interrupts:
                use(producer)
            number, left = number + 1, interrupts.left
        told = threading.Event()
        producer.send("orders", b"last").add_callback(lambda _: told.set())
        assert told.wait(LIMIT_SECONDS)
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        closing.join(LIMIT_SECONDS)
        assert not closing.is_alive()
        assert number > 10

"""An interrupt leaves a producer as it was, wherever it comes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

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


MODULES = ("client.producer", "appending.topic_state", "appending.write_place", "record.bound_encoder")
"""Where Python's `send` has its lines."""


def interrupt_at(line: int) -> Any:
    """A trace function that raises KeyboardInterrupt at the k-th line of `send`."""
    files, seen = {sys.modules[f"commitlog.{name}"].__file__ for name in MODULES}, 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("write_path", ["pool", "direct"])
def test_an_interrupt_at_any_line_of_send_doubles_and_loses_nothing(tmp_path: Path, write_path: str) -> None:
    """It comes at the k-th line, for every k. Then the same producer goes on."""
    sent: list[bytes] = []
    cut_off: list[bytes] = []
    line = whole = 0
    with commitlog.Store.open(
        tmp_path / "store", {"store": {"segment_bytes": 1 << 16, "write_path": write_path}}
    ) as store:
        producer = store.producer()
        while whole < 16:  # calls in a row that ended before the line; two of them rolled into the next segment
            line += 1
            for size in (10, 9000):
                body = f"{line} ".encode() + b"x" * size
                sys.settrace(interrupt_at(line))
                try:
                    producer.send("orders", body)
                    sent.append(body)
                    whole += 1
                except KeyboardInterrupt:
                    cut_off.append(body)
                    whole = 0
                finally:
                    sys.settrace(None)
                after = f"after {line} {size}".encode()
                producer.send("after", after)
                sent.append(after)
        producer.flush()
        with commitlog.Reader(store.path) as reader:
            messages = list(reader)
    found = Counter(message.value for message in messages)
    assert all(found[body] == 1 for body in sent)
    assert all(found[body] <= 1 for body in cut_off)
    assert set(found) <= {*sent, *cut_off}
    for name in ("orders", "after"):
        assert [m.offset for m in messages if m.topic == name] == list(range(sum(m.topic == name for m in messages)))
    assert line > 20

"""A signal handler or a finalizer sends by a remote producer inside a call of its own thread."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import commitlog
from commitlog.errors import ConcurrentUse
from commitlog.remote.outbox import Outbox
from tests.serving.appending.shared_store import messages


def test_a_signal_handler_that_sends_inside_a_send(store: commitlog.Store, url: str) -> None:
    """It comes between any two lines of the call. What is not refused arrives, all of it once."""
    sent = list[bytes]()
    refused, inner = 0, iter(range(10_000))
    with commitlog.RemoteProducer(url) as producer:

        def handle(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal refused
            if event == "call":
                return handle if frame.f_code is Outbox.add.__code__ else None
            if event == "line" and frame.f_lineno not in met:
                met.add(frame.f_lineno)
                body = b"inner %d" % next(inner)
                try:
                    receipt = producer.send("orders", body)
                    sent.append(body)
                    receipt.wait(timeout=60)
                except ConcurrentUse:
                    refused += 1
            return handle

        producer.send("orders", b"first").wait()
        for number in range(3):
            met = set[int]()
            sys.settrace(handle)
            producer.send_batch("orders", [b"%d outer %d" % (number, which) for which in range(2)])
            sys.settrace(None)
    expected = [b"first", *sent, *(b"%d outer %d" % (number, which) for number in range(3) for which in range(2))]
    assert Counter(message.value for message in messages(store, "orders")) == Counter(expected)
    assert refused

"""A reader that follows the log has each message flushed, whatever the stages' knobs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zmq

import commitlog
from commitlog.appending.wakeups import FollowedSender
from tests.waiting import wait_until

NEVER = {"least_pages": 1000, "thorough_interval_ms": 3_600_000}
"""So few bytes are due once in an hour."""


@pytest.mark.parametrize("told", [("committer", "flusher"), ("flusher", "committer")])
def test_a_message_is_flushed_while_somebody_follows(tmp_path: Path, told: tuple[str, str]) -> None:
    path = tmp_path / "store"
    with commitlog.Store.open(path, {"committer": NEVER, "flusher": NEVER}) as store, store.producer() as producer:
        producer.send("orders", b"the first is due at once")
        producer.flush(timeout=30)
        pool = Path(json.loads((path / "store.json").read_text())["pool"]["directory"])
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sender = FollowedSender(context, pool, told)
        try:
            receipt = producer.send("orders", b"second")

            def is_flushed() -> bool:
                sender.tell()
                return receipt.done()

            wait_until(is_flushed, "the message to be flushed")
        finally:
            sender.close()
            context.term()

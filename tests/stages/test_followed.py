"""A reader that follows the log has each message flushed, whatever the stages' knobs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zmq

import commitlog
from commitlog.appending.wakeups import FollowedSender
from tests.faults.bench import bench
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


def test_a_stage_rests_only_if_its_steps_are_many(tmp_path: Path) -> None:
    """A rest delays a message that is awaited. Without rests many steps would cost a core."""
    with bench(tmp_path / "store") as made, zmq.Context() as context:
        committer = made.stages["committer"]
        assert committer._rest_now_ms(0) == committer.linger_ms > 1
        sender = FollowedSender(context, committer.pool, ("committer",))
        sender.tell()

        def is_told() -> bool:
            committer._poll(1)
            committer._round()
            return bool(committer.is_followed(made.clock.monotonic_ns()))

        try:
            wait_until(is_told, "the frame comes")
        finally:
            sender.close()
        now = made.clock.monotonic_ns()
        assert [committer._rest_now_ms(now) for _ in range(6)] == [0, 0, 0, 0, 1, 1]
        assert [committer._rest_now_ms(now + 2_000_000 + 500_000 * step) for step in range(20)] == [0] * 20

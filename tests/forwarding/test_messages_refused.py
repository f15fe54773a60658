"""Messages that a real Kafka refuses: the error names the right one, and what to do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import MessageRefused
from tests.builders import hand_made
from tests.builders.hand_made import HandMadeStore
from tests.forwarding.kafka import Broker
from tests.forwarding.running import forward, forward_when_allowed
from tests.forwarding.test_changes import running, send
from tests.waiting import wait_until


def test_a_time_that_a_topic_does_not_take(tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others in the same batch are right, and the first one of it is not named."""
    store, name = HandMadeStore(tmp_path / "store"), kafka.new_name()
    kafka.create(name, 1, message_timestamp_before_max_ms="86400000")
    now_ms, values = time.time_ns() // 1_000_000, [b"first", b"second", b"too old", b"last"]
    for value in values:
        monkeypatch.setattr(hand_made, "BEGIN_MS", now_ms - (100_000_000 if value == b"too old" else 0))
        store.lane(0).append("orders", value)
    store.publish()
    with pytest.raises(MessageRefused, match=r"^topic orders, lane 0, offset 2: .* 7 bytes is .*before\.max\.ms"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    kafka.alter(name, message_timestamp_before_max_ms="864000000")
    forward_when_allowed(store.path, kafka.url, "the broker to take older messages", topic_map=[f"orders={name}"])
    assert kafka.values(name) == {0: values}


@pytest.mark.nightly
def test_a_limit_that_is_lowered_under_a_forwarder(tmp_path: Path, kafka: Broker) -> None:
    """Batches get smaller, and only a message that is too large by itself is refused."""
    path, name = tmp_path / "store", kafka.new_name()
    kafka.create(name, 64)
    small = [b"%04d" % number * 100 for number in range(300)]
    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, kafka.url, topic_map=[f"orders={name}"]) as made,
    ):
        send(producer, "orders", b"first")
        wait_until(lambda: kafka.values(name) == {0: [b"first"]}, "it forwards")
        kafka.alter(name, max_message_bytes="3000")
        producer.send_batch("orders", small)
        producer.flush("flushed", 60)
        wait_until(lambda: kafka.values(name) == {0: [b"first", *small]}, "small ones are forwarded")
        producer.send_batch("orders", [b"small", b"x" * 2000, b"y" * 5000, b"z" * 3000])
        producer.flush("flushed", 60)
        error = made.ended()
    assert isinstance(error, MessageRefused)
    assert "offset 303: its message of 5,000 bytes" in str(error)
    assert "raise that topic's max.message.bytes" in str(error)
    assert kafka.values(name)[0][:301] == [b"first", *small]

"""The last message of a topic in a producer's lane.

It is in a buffer or in a file, indexed or not, sent by this producer or by the one before it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.receipt import BatchReceipt
from tests.faults.bench import Bench, bench
from tests.nightly import with_nightly
from tests.waiting import wait_until

STEPS = ("allocator", "flusher", "committer", "flusher", "dispatcher")
ONE_LANE: dict[str, Any] = {"segment_bytes": 1 << 16, "max_lanes": 1}


def last(producer: commitlog.Producer, topic: str) -> tuple[int, bytes] | None:
    message = producer.last(topic)
    return None if message is None else (message.offset, message.value)


_NIGHTLY = [(0, "direct"), (1, "pool"), *product((2, 3), ("pool", "direct"))]


@pytest.mark.parametrize(("seed", "write_path"), with_nightly([(0, "pool"), (1, "direct")], _NIGHTLY))
def test_it_is_what_was_accepted_last(seed: int, write_path: str, tmp_path: Path) -> None:
    """It is right after every step of a random history.

    Sizes, topics and batches vary, stages lag, and producers come and go.
    """
    dice = random.Random(seed)
    with bench(tmp_path / "store", store={"write_path": write_path, "max_lanes": 1}) as made:
        if write_path == "direct":
            made.turn()
        producer = made.producer()
        expected: dict[str, tuple[int, bytes]] = {}
        for number in range(250):
            topic, body = dice.choice("aaab"), b"%d " % number + bytes(dice.randrange(5000))
            if dice.random() < 0.02:
                topic = f"rare{number}"
            try:
                receipt = (
                    producer.send_batch(topic, [b"x", body]) if dice.random() < 0.2 else producer.send(topic, body)
                )
            except (errors.NoBufferAvailable, errors.AllocateTimeout):
                made.settle()
                continue
            expected[topic] = (receipt.offset + isinstance(receipt, BatchReceipt), body)
            for asked in (topic, "b", dice.choice(list(expected))):
                assert last(producer, asked) == expected.get(asked)
            made.turn(*STEPS[: dice.randrange(len(STEPS) + 1)])
            if dice.random() < 0.05:
                made.turn(*STEPS[:4])
                producer.close()
                made.settle()
                producer = made.producer()
        assert {topic: last(producer, topic) for topic in expected} == expected
        assert producer.last("unknown") is None
        message = producer.last("a")
        assert message is not None
        assert (message.topic, message.partition) == ("a", producer.lane)
        made.settle()


def test_sending_goes_on_after_it(tmp_path: Path) -> None:
    """Sending goes on, also if a call is interrupted by an error.

    Inside a call it is refused, and a closed producer has no last message.
    """
    with bench(tmp_path / "store") as made:
        producer = made.producer()

        class Asking(bytearray):
            def __bytes__(self) -> bytes:
                with pytest.raises(errors.ConcurrentUse):
                    producer.last("t")
                return b"asked"

        producer.send("t", Asking(), key="7", tags="g", headers={"p": "x"})
        with pytest.raises(errors.MessageTooLarge):
            producer.send("t", bytes(1 << 20))
        found = producer.last("t")
        assert found is not None
        assert (found.value, found.key, found.tags, found.headers) == (b"asked", "7", "g", {"p": "x"})
        assert producer.send("t", b"").offset == 1
        with pytest.raises(errors.IllegalTopic):
            producer.last(["t"])  # type: ignore[arg-type]
        made.settle()
        producer.close()
        with pytest.raises(errors.ProducerClosed):
            producer.last("t")


def indexed(made: Bench) -> commitlog.Producer:
    """A producer of a lane of five segments, all of it in consume queues.

    Topic `old` has one message, at the start of the lane.
    """
    producer = made.producer()
    producer.send("old", b"once")
    for number in range(40):
        producer.send("t", b"%d " % number + bytes(8000))
        made.settle()
    return producer


@pytest.mark.parametrize("harm", with_nightly(["swapped"], ["removed", "zeroed"]))
def test_a_damaged_consume_queue_is_not_believed(harm: str, tmp_path: Path) -> None:
    """The log itself is walked then."""
    with bench(tmp_path / "store") as made:
        producer = indexed(made)
        assert last(producer, "old") == (0, b"once")
        lane_directory = made.supervisor.directory.lane_directory(producer.lane)
        if harm == "removed":
            shutil.rmtree(lane_directory.consumequeue / "old")
        elif harm == "zeroed":
            file = lane_directory.queue_path("old") / ("0" * 20)
            file.write_bytes(bytes(file.stat().st_size))
        else:
            other = ConsumeQueue(lane_directory.queue_path("t"))
            entry = other.entries(0, 1).tobytes()
            other.close()
            with (lane_directory.queue_path("old") / ("0" * 20)).open("r+b") as queue:
                queue.write(entry)
        assert last(producer, "old") == (0, b"once")


def test_a_missing_segment_is_an_error_of_ours(tmp_path: Path) -> None:
    """It is not what retention does, so the message may have been there."""
    with bench(tmp_path / "store") as made:
        producer = indexed(made)
        lane_directory = made.supervisor.directory.lane_directory(producer.lane)
        shutil.rmtree(lane_directory.consumequeue)
        lane_directory.segment_path(0).unlink()
        with pytest.raises(errors.DamagedFile, match="missing"):
            producer.last("old")
        assert last(producer, "t") == (39, b"39 " + bytes(8000))


def test_what_retention_took_is_none(tmp_path: Path) -> None:
    """The offset goes on, the message is gone, with its consume queue or without."""
    config = {
        "store": ONE_LANE,
        "retention": {"max_bytes": 6 << 16, "interval_ms": 10},
        "flusher": {"positions_interval_ms": 10},
        "dispatcher": {"linger_ms": 0},
    }
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        producer.send("old", b"once")
        for number in range(1000):
            producer.send("t", b"%d" % number + bytes(1000))
        producer.flush()
        wait_until(lambda: not (store.path / "lanes/0/commitlog" / ("0" * 20)).exists(), "retention")
        assert producer.last("old") is None
        shutil.rmtree(store.path / "lanes/0/consumequeue/old")
        assert producer.last("old") is None
        assert producer.send("old", b"again").offset == 1
        assert last(producer, "old") == (1, b"again")
        assert last(producer, "t") == (999, b"999" + bytes(1000))


WRITER = """
import sys, commitlog
producer = commitlog.Producer(sys.argv[1])
message = producer.last("t")
number = 0 if message is None else int(message.key) + 1
while True:
    producer.send("t", b"x" * 500, key=str(number))
    number += 1
    if number % 50 == 0:
        print(number, flush=True)
"""


@pytest.mark.parametrize("writers", with_nightly([2], [4]))
def test_a_sequence_goes_on_after_a_crash(writers: int, tmp_path: Path) -> None:
    """Writers that number their messages are killed one after the other.

    At the end no number is missing or doubled.
    """
    with commitlog.Store.open(tmp_path / "store", {"store": ONE_LANE}) as store:
        for _ in range(writers):
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store.path)], stdout=subprocess.PIPE)
            assert writer.stdout is not None
            for _ in range(10):
                assert writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
            writer.stdout.close()
            writer.wait()
        with store.producer() as producer:
            producer.flush()
            found = producer.last("t")
            with commitlog.Reader(store.path) as reader:
                keys = [int(message.key or -1) for message in reader]
        assert keys == list(range(len(keys)))
        assert found is not None
        assert found.key == str(keys[-1])

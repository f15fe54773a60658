"""RocketMQ opens lanes that we wrote: every message, every consume queue entry.

And we read what it appends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.consume_queue import FILE_BYTES, ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.inspecting.dump import dump_records
from commitlog.inspecting.verify import verify_store
from commitlog.opening.recovery import recover_lane
from tests.builders.killed import kill_store
from tests.rocketmq.rocketmq import Found, class_path, open_with_rocketmq

SEGMENT = 1 << 16
SMALL: dict[str, Any] = {"store": {"segment_bytes": SEGMENT, "max_lanes": 2}}
TOPICS = ("orders", "%RETRY%group", "t" * 200)

pytestmark = pytest.mark.timeout(900)  # the first run fetches RocketMQ


@pytest.fixture(autouse=True)
def rocketmq() -> str:
    return class_path()


def fill(producer: commitlog.Producer) -> None:
    """Some 200 messages of many shapes over several segments."""
    for number in range(200):
        topic = TOPICS[number % 3]
        tags = "Wört 值 🙂" if number % 4 == 0 else None
        key = f"key-{number}" if number % 3 else None
        producer.send(topic, bytes([number]) * (number * 13 % 2500), key=key, tags=tags, headers={"n": str(number)})
    producer.send_batch("batched", [b"one", b"two", b"", b"four"])
    producer.flush()


def ours(root: Path) -> list[dict[str, Any]]:
    """What we say is in the log, with the fields that RocketMQ's reader gives too."""
    records = list(dump_records(root))
    for record in records:
        record.pop("size")
    return records


def our_entries(lane_directory: LaneDirectory) -> Iterator[tuple[str, int, int, int, int]]:
    for topic in DISK.list(lane_directory.consumequeue):
        with ConsumeQueue(lane_directory.queue_path(topic)) as queue:
            for index, entry in enumerate(queue.entries(0, queue.end()).tolist()):
                yield topic, index, *entry


def check(found: Found, root: Path, before: list[dict[str, Any]]) -> None:
    """RocketMQ's view equals ours, from before it opened the lane."""
    assert found.messages == before
    entries = [(e["topic"], e["index"], e["offset"], e["size"], e["tagsCode"]) for e in found.entries]
    in_log = [(m["topic"], m["queueOffset"], m["physicOffset"], m["storeSize"]) for m in before]
    assert sorted(entry[:4] for entry in entries) == sorted(in_log)
    assert {entry["queueId"] for entry in found.entries} == {int(root.name)}


def test_a_lane_of_a_store_that_was_closed(tmp_path: Path) -> None:
    """RocketMQ reads all and appends one message.

    Our store goes on with it as its own, and with the next queue offset.
    """
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        fill(producer)
    lane_directory = StoreDirectory(path).lane_directory(0)
    before, entries = ours(lane_directory.path), sorted(our_entries(lane_directory))
    assert len(before) == 204
    append = [("orders", 0, "from RocketMQ")]
    found = open_with_rocketmq(lane_directory.path, SEGMENT, FILE_BYTES, tmp_path / "out.jsonl", append)
    check(found, lane_directory.path, before)
    theirs = [(e["topic"], e["index"], e["offset"], e["size"], e["tagsCode"]) for e in found.entries]
    assert sorted(theirs) == entries
    (appended,) = found.appended
    assert appended["status"] == "PUT_OK"
    expected = sum(record["topic"] == "orders" for record in before)
    assert appended["queueOffset"] == expected

    with commitlog.Store.open(path, SMALL) as store:
        with store.producer() as producer:
            receipt = producer.send("orders", b"ours again")
            assert receipt.offset == expected + 1
            receipt.wait("flushed", 60)
        with commitlog.Reader(path, topic="orders", start="last 2") as reader:
            messages = list(reader)
    assert [message.value for message in messages] == [b"from RocketMQ", b"ours again"]
    assert messages[0].tags == "from-rocketmq"
    assert messages[0].physical_offset == appended["physicOffset"]
    report = verify_store(path)
    assert report.good, report


@pytest.mark.leaves_pools
@pytest.mark.nightly  # daily it is a lane of a store that was closed
def test_a_lane_after_kill_and_recovery(tmp_path: Path) -> None:
    """Everything is killed, shared memory is lost, and the last record is torn.

    What recovery leaves is a store that RocketMQ reads.
    """
    path = tmp_path / "store"
    store = commitlog.Store.open(path, SMALL)
    with store.producer() as producer:
        fill(producer)
    kill_store(store)
    copy = tmp_path / "copy" / "0"
    shutil.copytree(path / "lanes" / "0", copy)
    lane_directory = LaneDirectory(copy, 0)
    whole = ours(copy)
    last = whole[-1]["physicOffset"]
    with lane_directory.segment_path(last - last % SEGMENT).open("r+b") as file:
        file.seek(last % SEGMENT + 100)
        file.write(bytes(20))
    lane_directory.positions_file.unlink()  # what it says was flushed would be corruption, not a torn tail
    end = recover_lane(lane_directory, SEGMENT, DISK, lambda line: None)
    assert end.end == last
    found = open_with_rocketmq(copy, SEGMENT, FILE_BYTES, tmp_path / "out.jsonl", [("orders", 0, "more")])
    check(found, copy, whole[:-1])
    assert found.end == end.end
    assert ours(copy)[-1]["physicOffset"] == found.appended[0]["physicOffset"]

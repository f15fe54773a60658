"""What a real RocketMQ wrote is read as RocketMQ reads it, and written again byte for byte."""

from __future__ import annotations

import base64
import struct
from collections import defaultdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.checkpoint import StoreCheckpoint
from commitlog.disk.consume_queue import PRE_FILL_SIZE, ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.errors import CorruptRecord
from commitlog.record.body_compression import plain_body
from commitlog.record.record import Record, RecordEncoder, decode
from commitlog.record.record_layout import CRC_PROPERTY_BYTES
from commitlog.record.table import Stop
from tests.builders.vector_store import NAMES, VectorStore, load


@pytest.fixture(params=NAMES)
def store(request: pytest.FixtureRequest) -> VectorStore:
    return load(request.param)


def as_rocketmq_prints(record: Record) -> dict[str, Any]:
    """A record with the names of expected.jsonl.

    Hosts are packed addresses, because they can be printed in several ways.
    """
    found: dict[str, Any] = {
        "physicOffset": record.physical_offset,
        "size": record.total_size,
        "storeSize": record.total_size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": record.born_host.address,
        "bornPort": record.born_host.port,
        "storeTimestamp": record.store_timestamp,
        "storeHost": record.store_host.address,
        "storePort": record.store_host.port,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "body": base64.b64encode(record.body).decode() or None,
        "properties": record.properties,
        "msgId": record.message_id,
    }
    if record.sys_flag & 0x1:
        found["plainBody"] = base64.b64encode(plain_body(record)).decode()
    return found


def expected_of(line: dict[str, Any]) -> dict[str, Any]:
    hosts = {name: ip_address(line[name]).packed for name in ("bornHost", "storeHost")}
    return line | hosts


def decode_at(store: VectorStore, line: dict[str, Any]) -> tuple[Record, bytes]:
    segment, position = store.place(line["physicOffset"])
    record = decode(segment, position, physical_offset=line["physicOffset"], queue_id=line["queueId"])
    return record, segment[position : position + record.total_size]


def test_there_are_all_eleven() -> None:
    """A checkout without the vectors must not pass for want of tests."""
    assert len(NAMES) == 11
    assert sum(len(load(name).expected) for name in NAMES) == 1183


def test_decoded_as_rocketmq_does(store: VectorStore) -> None:
    """Every field of every record."""
    for line in store.expected:
        record, _ = decode_at(store, line)
        assert as_rocketmq_prints(record) == expected_of(line)


def test_encoded_again_to_the_same_bytes(store: VectorStore) -> None:
    """The encoder makes of each decoded record what RocketMQ had made."""
    for line in store.expected:
        record, stored = decode_at(store, line)
        properties = record.raw_properties[: -CRC_PROPERTY_BYTES if record.has_crc else None]
        encoder = RecordEncoder(record.queue_id, record.born_host, record.store_host, append_crc=record.has_crc)
        again = encoder.encode(
            record.topic.encode(),
            record.body,
            properties,
            record.queue_offset,
            record.physical_offset,
            record.born_timestamp,
            record.store_timestamp,
            record.flag,
            record.sys_flag,
            record.reconsume_times,
            record.prepared_transaction_offset,
        )
        assert again == stored
        assert encoder.size(record.topic.encode(), record.body, properties) == len(stored)


@pytest.mark.parametrize("max_records", [1, 7, 8192])
def test_scanned_in_log_order(store: VectorStore, max_records: int) -> None:
    """A scan finds RocketMQ's messages and no others, across segments, in tables of any size."""
    found = [offset for table in store.tables(max_records) for offset in table.physical_offsets.tolist()]
    assert found == [line["physicOffset"] for line in store.expected]


def test_the_torn_record_is_refused() -> None:
    """Its body is zeroed from the middle on: nothing is good there, and the reason is named."""
    store = load("torn")
    last = store.tables()[-1]
    torn_at = store.expected[-1]["physicOffset"] + store.expected[-1]["size"]
    assert (last.stop, last.buffer_start + last.stop_position) == (Stop.CORRUPT, torn_at)
    segment, position = store.place(torn_at)
    with pytest.raises(CorruptRecord, match="topic of 0 bytes"):
        decode(segment, position)


def queues_of(store: VectorStore) -> dict[tuple[str, int], list[tuple[int, int, int, int]]]:
    """RocketMQ's entries by topic and queue: queue offset, physical offset, size, tags code."""
    queues = defaultdict(list)
    for line in store.queue_entries:
        entry = line["index"], line["offset"], line["size"], line["tagsCode"]
        queues[line["topic"], line["queueId"]].append(entry)
    return queues


def test_consume_queues_read(store: VectorStore, tmp_path: Path) -> None:
    """Entries, first and end of every queue are RocketMQ's.

    (A torn record has an entry and is no message.)
    """
    root = store.unpack(tmp_path) / "consumequeue"
    expected = queues_of(store)
    for directory in sorted(root.glob("*/*")):
        with ConsumeQueue(directory) as queue:
            first, end = queue.first(), queue.end()
            entries = [
                (first + number, *entry) for number, entry in enumerate(queue.entries(first, end - first).tolist())
            ]
        if (store.name, directory.parent.name) != ("torn", "torn"):
            assert entries == expected.pop((directory.parent.name, int(directory.name)), []), directory
    assert not expected


def test_consume_queues_rebuilt(store: VectorStore, tmp_path: Path) -> None:
    """Queues placed from a scan of the log hold RocketMQ's entries.

    Places before the first one are filled as RocketMQ fills them.
    """
    opened: dict[tuple[str, int], ConsumeQueue] = {}
    expected = queues_of(store)
    try:
        for (topic, number), entries in expected.items():
            queue = opened[topic, number] = ConsumeQueue(tmp_path / topic / str(number), 2000)
            before = range(entries[0][0])
            queue.place(before, [0] * len(before), [PRE_FILL_SIZE] * len(before), [0] * len(before))
        for table in store.tables(max_records=11):
            for row in table.in_queue.nonzero()[0].tolist():
                topic, number = table.topics[table.topic_index[row]], int(table.queue_ids[row])
                some = slice(row, row + 1)
                opened[topic, number].place(
                    table.queue_offsets[some], table.physical_offsets[some], table.sizes[some], table.tags_codes[some]
                )
        assert opened
        for key, queue in opened.items():
            first = queue.first()
            rows = queue.entries(first, queue.end() - first).tolist()
            assert [(first + number, *row) for number, row in enumerate(rows)] == expected[key]
    finally:
        for queue in opened.values():
            queue.close()


def test_checkpoints_read(store: VectorStore, tmp_path: Path) -> None:
    """RocketMQ's checkpoint: zeros after a halt, else the last store timestamp or a little less."""
    data = (store.unpack(tmp_path) / "checkpoint").read_bytes()
    timestamps = struct.unpack_from(">3q", data)
    last = store.expected[-1]["storeTimestamp"]
    halted = store.name in ("dirty", "torn")
    assert timestamps[0] == 0 if halted else 0 <= last - timestamps[0] < 60_000
    StoreCheckpoint(*struct.unpack_from(">5q", data)).save(tmp_path / "ours", DISK)
    assert (tmp_path / "ours").read_bytes() == data

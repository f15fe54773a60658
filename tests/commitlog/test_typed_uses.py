"""What a user's type checker sees of the public names: mypy reads this file, and it also runs.

Each use asserts its type. So a name that is untyped, or another type than it was, ends the check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, assert_type

import pytest

import commitlog
from commitlog import (
    AppendMessageStatus,
    BackupReport,
    BatchReceipt,
    Clock,
    CommitLogError,
    Config,
    LaneStatistics,
    Level,
    Message,
    Producer,
    PutMessageStatus,
    Reader,
    ReaderStatistics,
    Receipt,
    RemoteProducer,
    RemoteReceipt,
    RetentionStatistics,
    RowWriter,
    Scan,
    StageStatistics,
    StopReport,
    Store,
    StoreStatistics,
    Throughput,
    TopicSchema,
)

USED = {
    *("AppendMessageStatus", "BackupReport", "BatchReceipt", "Clock", "CommitLogError", "Config", "LaneStatistics"),
    *("Level", "Message", "Producer", "PutMessageStatus", "Reader", "ReaderStatistics", "Receipt", "RemoteProducer"),
    *("RemoteReceipt", "RetentionStatistics", "RowWriter", "Scan", "StageStatistics", "StopReport", "Store"),
    *("StoreStatistics", "Throughput", "TopicSchema", "__version__", "backup", "errors", "read", "read_arrow"),
}
LEVELS: tuple[Level, ...] = ("accepted", "committed", "flushed")


def test_every_public_name_is_used_here() -> None:
    assert set(commitlog.__all__) == USED


def test_a_store_and_its_producer(tmp_path: Path) -> None:
    config: Config = Config()
    with Store.open(tmp_path / "store", config) as store:
        assert_type(store, Store)
        assert_type(store.running, bool)
        producer = store.producer()
        assert_type(producer, Producer)
        receipt = producer.send("orders", b"x", key="1", headers={"a": "b"}, tags="t")
        assert_type(receipt, Receipt)
        assert_type(receipt.partition, int)
        for level in LEVELS:
            assert_type(receipt.wait(level, timeout=60), PutMessageStatus)
            assert_type(receipt.done(level), bool)
        assert_type(asyncio.run(receipt.wait_async("flushed")), PutMessageStatus)
        batch = producer.send_batch("orders", [b"y", b"z"])
        assert_type(batch, BatchReceipt)
        assert_type(len(batch), int)
        assert_type(producer.last("orders"), Message | None)
        assert_type(producer.statistics(), LaneStatistics)
        producer.flush(timeout=60)
        of_rows(store, producer)
        of_statistics(store.statistics())
        assert_type(commitlog.backup(store.path, tmp_path / "backup"), BackupReport)
    assert_type(store.close(), StopReport)
    of_reading(tmp_path / "store")


def of_rows(store: Store, producer: Producer) -> None:
    schema = store.create_topic("typed", "id BIGINT, name STRING")
    assert_type(schema, TopicSchema)
    assert_type(producer.send_rows("typed", [{"id": 1, "name": "a"}]), Receipt | None)
    with producer.rows("typed") as rows:
        assert_type(rows, RowWriter)
        rows.append(id=2, name="b")
        rows.append({"id": 3})
    producer.flush(timeout=60)


def of_statistics(found: StoreStatistics) -> None:
    assert_type(found.lanes, tuple[LaneStatistics, ...])
    assert_type(found.stages, tuple[StageStatistics, ...])
    assert_type(found.throughput, tuple[Throughput, ...])
    assert_type(found.retention, RetentionStatistics | None)
    assert (len(found.stages), found.running) == (4, True)


def of_reading(path: Path) -> None:
    with Reader(path, topic="orders", start="earliest") as reader:
        assert_type(next(reader), Message)
        assert_type(reader.poll(), Message | None)
        assert_type(commitlog.read(path, "orders").messages().__next__().to_json(), str)
        assert_type(reader.statistics(), ReaderStatistics)
        assert_type(reader.position(), dict[str, dict[int, int]])
        assert_type(reader.lag(), dict[str, dict[int, int]])
        reader.seek(reader.position())
        reader.seek(datetime(2000, 1, 1))
        assert [next(reader).value for _ in range(2)] == [b"x", b"y"]
        assert [message.value for message in reader] == [b"z"]
    with Reader(path, topic="orders", start="earliest") as reader:
        assert_type(reader.value_lists(), Iterator[Sequence[bytes | memoryview]])
    table: Any = commitlog.read_arrow(path, "typed").read_all()
    assert table["id"].to_pylist() == [1, 2, 3]
    scan = commitlog.read(path, "orders", start=datetime(2000, 1, 1), end="latest", lanes={0}, columns=["value"])
    assert_type(scan, Scan)
    assert_type(scan.select("offset"), Scan)
    assert_type(scan.messages(), Iterator[Message])
    assert_type(scan.count(), int)
    assert_type(scan.end_offsets, dict[str, dict[int, int]])
    assert commitlog.read(path, "orders", start=scan.end_offsets).count() == 0
    with pytest.raises(CommitLogError) as caught:
        Producer(path)
    assert_type(caught.value, CommitLogError)
    assert_type(caught.value.status, PutMessageStatus)
    assert_type(caught.value.append_status, AppendMessageStatus)
    assert isinstance(caught.value, commitlog.errors.StoreNotRunning)


def of_other_machines(url: str, clock: Clock) -> None:
    """Read by the type checker alone: these need a server."""
    with RemoteProducer(url, token_file="token") as producer:
        receipt = producer.send("orders", b"x")
        assert_type(receipt, RemoteReceipt)
        assert_type(receipt.wait(timeout=1), PutMessageStatus)
        assert_type(producer.rows("typed"), RowWriter)
    assert_type(clock.monotonic_ns(), int)
    assert_type(commitlog.__version__, str)

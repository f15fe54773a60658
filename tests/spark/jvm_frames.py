"""Frames that Spark's JVM reads, and stores for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.record.properties import BytesKey
from commitlog.shm.layout import segment_start
from tests.builders.hand_made import V4, V6, HandMadeStore
from tests.leaks import describe, parent_and_state, pids
from tests.served import place_of
from tests.spark_session import jvm_pid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_JVM, BY_PYTHON = "commitlog (read by the JVM)", "commitlog (read by Python: {})"
ALL = ",".join(COLUMN_TYPES)
LONG = "t" * 200  # a topic of V2


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("commitlog")
    for name, value in ({"subscribe": "orders"} | options).items():
        reader = reader.option(name, str(value))
    return reader.load(str(path))


def load_columns(spark: SparkSession, store: HandMadeStore, schema: str = "", **options: object) -> DataFrame:
    """A typed topic."""
    reader = spark.read.format("commitlog")
    if schema:
        reader = reader.schema(schema)
    for name, value in ({"subscribe": "orders", "values": "columns"} | options).items():
        reader = reader.option(name, str(value))
    return reader.load(place_of(store.path))


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def checksum(frame: DataFrame) -> tuple[int, int]:
    """The number of rows, and the sum of the hashes of all their columns."""
    columns = ["map_entries(properties)" if name == "properties" else name for name in frame.columns]
    row = frame.selectExpr(
        "count(*)", f"coalesce(sum(CAST(xxhash64({', '.join(columns)}) AS DECIMAL(38, 0))), 0)"
    ).first()
    assert row is not None
    return int(row[0]), int(row[1])


def failure(act: Callable[[], object]) -> str:
    """The line of ours in the error of a query."""
    with pytest.raises(PySparkException) as raised:
        act()
    return error_line(raised.value)


def error_line(error: PySparkException) -> str:
    found = re.search(r"commitlog\.errors\.(\w+: .*)", str(error))
    assert found, str(error)
    return found[1].removesuffix(" SQLSTATE: 38000")


def children(spark: SparkSession, role: str = "") -> set[int]:
    """The processes that the session's JVM has started, all or those of a role."""
    shown = re.compile(rf"\bcommitlog(: |\.spark\.)(jvm_)?{role}\b" if role else "")  # no part of a store's path
    return {pid for pid in pids() if parent_and_state(pid)[0] == jvm_pid(spark) and shown.search(describe(pid))}


class TaskReader:
    """A task's reader in the JVM, which the test moves on batch by batch."""

    def __init__(self, spark: SparkSession, path: Path, **options: str) -> None:
        jvm: Any = spark._jvm
        given = jvm.java.util.HashMap()
        for name, value in ({"subscribe": "orders", "path": str(path)} | options).items():
            given.put(name, value)
        whole = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given)
        provider = jvm.commitlog.spark.Provider()
        gateway: Any = spark.sparkContext._gateway
        none = gateway.new_array(jvm.org.apache.spark.sql.connector.expressions.Transform, 0)
        batch = provider.getTable(provider.inferSchema(whole), none, given).newScanBuilder(whole).build().toBatch()
        (task,) = batch.planInputPartitions()
        self._reader = batch.createReaderFactory().createColumnarReader(task)

    def values(self) -> list[bytes]:
        """The values of the next batch; [] at the end."""
        if not self._reader.next():
            return []
        batch = self._reader.get()
        return [bytes(batch.column(1).getBinary(row)) for row in range(batch.numRows())]

    def sizes(self) -> list[int]:
        """How many rows each batch has, up to the end."""
        found = []
        while self._reader.next():
            found.append(self._reader.get().numRows())
        self._reader.close()
        return found

    def read_to(self, found: list[bytes]) -> None:
        """Adds all values that are left, and closes the reader, also if there is an error."""
        try:
            while values := self.values():
                found += values
        finally:
            self._reader.close()


def store_of_all_kinds(path: Path) -> HandMadeStore:
    """Two lanes with records of all kinds, of which the last ones have no entries yet."""
    made = HandMadeStore(path, 1 << 14)
    for number in range(300):
        made.lane(number % 2).append(
            ("orders", "other", LONG)[number % 5 % 3],
            b"body %d " % number * (number % 60),
            key=(None, f"key {number}", BytesKey.of(b"\x01%d" % number))[number % 3],
            tags="a tag" if number % 4 else None,
            properties={f"name {name}": "välue" for name in range(number % 3)},
            born=V6 if number % 7 == 0 else V4,
            stored=V6 if number % 11 == 0 else V4,
            sys_flag=4 if number % 50 == 9 else 0,
            crc=number % 6 > 0,
        )
    for lane in (0, 1):
        made.lane(lane).dispatch(100)
        made.lane(lane).publish()
    return made


def store_of_one_lane(path: Path) -> HandMadeStore:
    """200 messages in lane 3, over several segments, of which every fifth is of another topic."""
    made = HandMadeStore(path, 1 << 12)
    for row in range(200):
        made.lane(3).append("orders" if row % 5 else "other", b"body of %d" % row, key="k")
    made.lane(3).dispatch()
    made.lane(3).publish()
    return made


def segment_of(store: HandMadeStore, number: int) -> Path:
    """The segment file of lane 3 that has this record."""
    start = segment_start(store.lane(3).records[number].physical_offset, store.segment_bytes)
    return Path(store.directory.lane_directory(3).segment_path(start))


def harm(store: HandMadeStore, number: int, where: int) -> None:
    """Changes a byte of a record of lane 3: `where` counts from its start."""
    data = bytearray(segment_of(store, number).read_bytes())
    data[store.lane(3).records[number].physical_offset % store.segment_bytes + where] ^= 0x55
    segment_of(store, number).write_bytes(data)

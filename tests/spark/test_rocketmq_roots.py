"""RocketMQ's own store roots as `path`: batches of what a real RocketMQ wrote.

Options that only our stores have are an error.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from commitlog.errors import CorruptRecord, MissingCodec, OptionError, StoreNotFound, UnknownTopic
from commitlog.spark.source import CommitLogDataSource
from tests.builders.made_lane import image
from tests.builders.vector_store import NAMES, VectorStore, load
from tests.nightly import by_url_nightly
from tests.served import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "topic,partition,offset,value,physicalOffset,messageId,timestamp,bornTimestamp,size,sysFlag,properties,key,tags"
)
MOST_MS = (2**63 - 1) // 1000
TIMES = ("timestamp", "bornTimestamp")
pytestmark = pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")


@pytest.fixture(params=NAMES)
def store(request: pytest.FixtureRequest) -> VectorStore:
    return load(request.param)


def source(root: Path, **options: object) -> CommitLogDataSource:
    given = {"path": place_of(root), "subscribePattern": ".*", "columns": COLUMNS} | options
    return CommitLogDataSource({name.lower(): str(value) for name, value in given.items() if value is not None})


def rows(root: Path, **options: object) -> list[dict[str, Any]]:
    made = source(root, **options)
    reader = made.reader(made.schema())
    found = []
    for batch in (batch for task in reader.partitions() for batch in reader.read(task)):
        for name in TIMES:  # a client may say any number, and Python's end with the year 9999
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, batch.column(at).view(pa.int64()))
        found += batch.to_pylist()
    return sorted(found, key=lambda row: (row.get("topic", ""), row.get("partition", 0), row["offset"]))


def expected(store: VectorStore) -> list[dict[str, Any]]:
    """A row for each entry of the consume queues, with the record as RocketMQ's reader gave it."""
    by_place = {line["physicOffset"]: line for line in store.expected}
    found = []
    for entry in store.queue_entries:
        line = by_place.get(entry["offset"])
        if line is None:
            continue  # a record that a halted RocketMQ had not finished
        properties = {name: value for name, value in line["properties"].items() if name != "__CRC32#"}
        keys = properties.get("KEYS")
        found.append(
            {
                "topic": entry["topic"],
                "partition": entry["queueId"],
                "offset": entry["index"],
                "value": base64.b64decode(line.get("plainBody", line["body"]) or ""),
                "physicalOffset": entry["offset"],
                "messageId": line["msgId"],
                "timestamp": line["storeTimestamp"],
                "bornTimestamp": min(max(line["bornTimestamp"], -MOST_MS), MOST_MS),
                "size": entry["size"],
                "sysFlag": line["sysFlag"],
                "properties": properties,
                "key": keys.encode() if keys else None,
                "tags": properties.get("TAGS"),
            }
        )
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: row[name] // 1000 for name in TIMES}
    return row | times | {"properties": dict(row["properties"])}


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_every_queue_of_every_root(store: VectorStore, tmp_path: Path) -> None:
    """V1, V2, IPv6, compressed, halted; with no file touched."""
    root = store.unpack(tmp_path / "root")
    before = image(root)
    assert list(map(plain, rows(root))) == expected(store)
    assert image(root) == before


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_parts(tmp_path: Path) -> None:
    """Bounds and split tasks, as of a store of ours."""
    store = load("v1_basic")
    root, everything = store.unpack(tmp_path / "root"), expected(store)
    assert list(map(plain, rows(root, minPartitions=7))) == everything
    topic = everything[0]["topic"]
    of_topic = [row for row in everything if row["topic"] == topic]
    ends = {row["partition"]: row["offset"] + 1 for row in of_topic}
    found = rows(root, subscribePattern=None, subscribe=topic, startingOffsets="last 2")
    assert list(map(plain, found)) == [row for row in of_topic if row["offset"] >= ends[row["partition"]] - 2]
    middle = of_topic[len(of_topic) // 2]["timestamp"]
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    found = rows(root, subscribePattern=None, subscribe=topic, startingTimestamp=middle, **strategy)
    assert list(map(plain, found)) == [row for row in of_topic if row["timestamp"] >= middle]
    with pytest.raises(UnknownTopic, match="no topic nothing; there are"):
        rows(root, subscribePattern=None, subscribe="nothing")


@pytest.mark.parametrize("isolation", ["flushed", "committed"])
def test_isolation_is_none_of_its(tmp_path: Path, isolation: str) -> None:
    root = load("v1_basic").unpack(tmp_path / "root")
    with pytest.raises(OptionError, match="option isolation: a RocketMQ store root"):
        rows(root, isolation=isolation)


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("options", [{}, {"readerName": "billing"}])
def test_no_stream(tmp_path: Path, options: dict[str, str]) -> None:
    root = load("v1_basic").unpack(tmp_path / "root")
    before = image(root)
    made = source(root, **options)
    with pytest.raises(OptionError, match="RocketMQ store root, which is read as a batch only"):
        made.streamReader(made.schema()).initialOffset()
    assert image(root) == before


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_a_damaged_record(tmp_path: Path) -> None:
    root = load("v1_basic").unpack(tmp_path / "root")
    harmed = expected(load("v1_basic"))[3]
    path = next(path for path in sorted((root / "commitlog").iterdir()))
    with path.open("r+b") as file:
        file.seek(harmed["physicalOffset"] + 30)
        file.write(b"\xff")
    with pytest.raises(CorruptRecord, match=f"topic {harmed['topic']}, lane {harmed['partition']}, offset"):
        rows(root)
    assert len(rows(root, ignoreCorruptRecords=True)) == len(expected(load("v1_basic"))) - 1


@pytest.mark.parametrize(
    ("module", "flag", "name", "package"),
    [("lz4.frame", 0x101, "LZ4", "lz4"), ("zstandard", 0x201, "ZSTD", "zstandard")],
)
def test_compressed_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, flag: int, name: str, package: str
) -> None:
    """The error names package and extra; columns other than the value need no library."""
    store = load("transactions")
    row = next(row for row in expected(store) if row["sysFlag"] & 0x701 == flag)
    bounds = {"assign": f'{{"{row["topic"]}": [{row["partition"]}]}}', "subscribePattern": None}
    bounds["startingOffsets"] = f'{{"{row["topic"]}": {{"{row["partition"]}": {row["offset"]}}}}}'
    root = store.unpack(tmp_path / "root")
    assert plain(rows(root, **bounds)[0]) == row
    monkeypatch.setitem(sys.modules, module, None)
    said = rf"compressed with {name}: `pip install {package}` \(of the extra pyspark-commitlog\[rocketmq\]\)$"
    with pytest.raises(MissingCodec, match=said):
        rows(root, **bounds)
    assert rows(root, **bounds, columns="offset,timestamp,bornTimestamp")[0]["offset"] == row["offset"]


def test_an_executor_that_does_not_see_it(tmp_path: Path) -> None:
    root = load("v1_basic").unpack(tmp_path / "root")
    made = source(root)
    reader = made.reader(made.schema())
    tasks = reader.partitions()
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreNotFound, match="executor does not see"):
        list(reader.read(tasks[0]))


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_in_a_session(spark: SparkSession, tmp_path: Path) -> None:
    """All kinds of compression among them."""
    store = load("transactions")
    root = store.unpack(tmp_path / "root")
    frame = spark.read.format("commitlog").option("subscribePattern", ".*").load(place_of(root))
    found = sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert found == [(row["topic"], row["partition"], row["offset"], row["value"]) for row in expected(store)]
    stream = spark.readStream.format("commitlog").option("subscribePattern", ".*").load(place_of(root))
    with pytest.raises(Exception, match="read as a batch only"):
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)

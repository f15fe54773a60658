"""The examples of Spark's Kafka integration guide, with another format name.

A path replaces the servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import commitlog
from commitlog.errors import OptionError
from commitlog.planning.option_names import SINK_SPELLING, SPELLING
from commitlog.spark.source import CommitLogDataSource
from tests.nightly import by_all_readers_nightly, by_url_nightly, with_nightly
from tests.served import is_by_url, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Pairs = list[tuple[str, str]]
EVERYTHING = [("topic1", 0, 60), ("topic1", 1, 10), ("topic2", 0, 5)]
"""Topic, lane and number of messages."""
EXACTLY = (
    '{"topic1":{"0":23,"1":-2},"topic2":{"0":-2}}',
    '{"topic1":{"0":50,"1":-1},"topic2":{"0":-1}}',
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """Running, with EVERYTHING in it; a test that writes has a topic of its own."""
    config = {"store": {"segment_bytes": 1 << 20, "max_lanes": 4}}
    with commitlog.Store.open(tmp_path_factory.mktemp("guide") / "store", config) as opened:
        with opened.producer() as first, opened.producer() as second:
            for topic, lane, count in EVERYTHING:
                for number in range(count):
                    headers = {"trace": str(number)}
                    (first, second)[lane].send(
                        topic, f"{topic} {lane} {number}".encode(), key=str(number), headers=headers
                    )
            first.flush()
            second.flush()
        yield opened


def pairs(*parts: tuple[str, int, int, int]) -> Pairs:
    """Keys and values of topic, lane, first and last + 1 offset."""
    return sorted((str(n), f"{topic} {lane} {n}") for topic, lane, first, end in parts for n in range(first, end))


TOPIC1 = pairs(("topic1", 0, 0, 60), ("topic1", 1, 0, 10))
BOTH = sorted([*TOPIC1, *pairs(("topic2", 0, 0, 5))])
BATCHES: list[tuple[dict[str, str], Pairs]] = [
    ({"subscribe": "topic1"}, TOPIC1),
    (
        {"subscribe": "topic1,topic2", "startingOffsets": EXACTLY[0], "endingOffsets": EXACTLY[1]},
        pairs(("topic1", 0, 23, 50), ("topic1", 1, 0, 10), ("topic2", 0, 0, 5)),
    ),
    ({"subscribePattern": "topic.*", "startingOffsets": "earliest", "endingOffsets": "latest"}, BOTH),
]
STREAMS: list[tuple[dict[str, str], Pairs]] = [
    ({"subscribe": "topic1"}, TOPIC1),
    ({"subscribe": "topic1", "includeHeaders": "true"}, TOPIC1),
    ({"subscribe": "topic1,topic2"}, BOTH),
    ({"subscribePattern": "topic.*"}, BOTH),
]


GUIDE = """
    assign subscribe subscribePattern kafka.bootstrap.servers
    startingTimestamp startingOffsetsByTimestamp startingOffsets endingTimestamp endingOffsetsByTimestamp
    endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition
    groupIdPrefix kafka.group.id includeHeaders startingOffsetsByTimestampStrategy topic
"""
"""All options of the guide, of the source and of the sink."""


def verdicts() -> dict[str, str]:
    """Option → same, differs or error, from the table of docs/from-kafka.md."""
    page = (Path(__file__).parents[2] / "docs/from-kafka.md").read_text()
    lines = re.findall(r"^\| (.*?) \| (same|differs|error) \|", page, re.MULTILINE)
    return {option: verdict for cell, verdict in lines for option in re.findall(r"`([\w.]+[\w])`", cell)}


def test_every_option_of_the_guide_has_its_line() -> None:
    assert sorted(verdicts()) == sorted(GUIDE.split())


@pytest.mark.parametrize("option", GUIDE.split())
def test_an_option_is_what_its_line_says(option: str) -> None:
    """An error names the option as the guide writes it; any other option is known."""
    if verdicts()[option] != "error":
        assert option in SPELLING.values() or option in SINK_SPELLING.values()
        return
    for also in ({"subscribe": "t"}, {"topic": "t"}):
        with pytest.raises(OptionError, match=f"^option {re.escape(option)}: .*; .*(path|checkpoint|remove)"):
            CommitLogDataSource({"path": "/dev/null/store", option.lower(): "1", **also})


def found(frame: DataFrame) -> Pairs:
    return sorted((row.key, row.value) for row in frame.collect())


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
def test_a_batch(spark: SparkSession, store: commitlog.Store, subtests: pytest.Subtests) -> None:
    """One topic, several with offsets given, a pattern."""
    for options, expected in BATCHES:
        with subtests.test(**options):
            df = spark.read.format("commitlog").option("path", place_of(store.path)).options(**options).load()
            assert found(df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")) == expected


@pytest.mark.nightly
@by_all_readers_nightly
@pytest.mark.usefixtures("both_ways")
def test_a_stream(spark: SparkSession, store: commitlog.Store, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One topic, one with headers, several topics, a pattern.

    `startingOffsets` is given, because the default is only what comes from now on.
    """
    for number, (options, expected) in enumerate(STREAMS):
        with subtests.test(**options):
            df = (
                spark.readStream.format("commitlog")
                .option("path", place_of(store.path))
                .option("startingOffsets", "earliest")
                .options(**options)
                .load()
            )
            headers = ["headers"] if "includeHeaders" in options else []
            query = (
                df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", *headers)
                .writeStream.format("memory")
                .queryName("guide")
                .option("checkpointLocation", str(tmp_path / f"checkpoint {number}"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(250)
            seen = spark.table("guide")
            assert found(seen) == expected
            for row in seen.collect() if headers else []:
                assert [(header.key, bytes(header.value)) for header in row.headers] == [("trace", row.key.encode())]
            spark.sql("DROP VIEW guide")


@pytest.mark.nightly
@by_url_nightly
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("by", with_nightly(["column"], ["option"]))
def test_writing_a_stream(spark: SparkSession, store: commitlog.Store, tmp_path: Path, by: str) -> None:
    """To the topic that the option names, or to that in a column."""
    source = (
        spark.readStream.format("commitlog")
        .option("path", place_of(store.path))
        .option("subscribe", "topic1")
        .option("startingOffsets", "earliest")
        .load()
    )
    columns = ["CAST(key AS STRING)", "CAST(value AS STRING)"]
    topic = f"stream-by-{by}-{is_by_url()}"
    df = source.selectExpr(*columns) if by == "option" else source.selectExpr(f"'{topic}' AS topic", *columns)
    writer = df.writeStream.format("commitlog").option("path", place_of(store.path))
    if by == "option":
        writer = writer.option("topic", topic)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(250)
    assert copies(store, topic) == TOPIC1


@by_url_nightly
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("by", with_nightly(["column"], ["option"]))
def test_writing_a_batch(spark: SparkSession, store: commitlog.Store, by: str) -> None:
    """Likewise; Spark wants `.mode("append")` said for a source in Python."""
    topic = f"batch-by-{by}-{is_by_url()}"
    df = spark.createDataFrame(TOPIC1, "key string, value string")
    if by == "column":
        df = df.selectExpr(f"'{topic}' AS topic", "*")
    writer = df.write.format("commitlog").option("path", place_of(store.path))
    if by == "option":
        writer = writer.option("topic", topic)
    writer.mode("append").save()
    assert copies(store, topic) == TOPIC1


def copies(store: commitlog.Store, topic: str) -> Pairs:
    with commitlog.Reader(store.path, topic=topic) as reader:
        return sorted((message.key or "", message.value.decode()) for message in reader)

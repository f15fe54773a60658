"""Spark reads the store and the Kafka topic that was fed from it, and both tables are equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import commitlog
from tests import maven
from tests.forwarding.kafka import POM, Broker
from tests.forwarding.running import forward

CONNECTOR = POM.with_name("spark.xml")
COLUMNS = ("key", "value", "topic", "partition", "timestamp", "headers")
"""The Kafka source's, but for two.

Kafka counts the ends of transactions in `offset`, and has 0 for CreateTime in `timestampType`.
"""


def rows(table: DataFrame) -> list[Row]:
    """The rows in the order of partition and offset, without these."""
    return table.orderBy("partition", "offset").select(*COLUMNS).collect()


@pytest.mark.nightly  # Maven fetches Spark's connector
def test_both_tables_are_equal(tmp_path: Path, kafka: Broker, spark: SparkSession) -> None:
    name = kafka.new_name()
    with commitlog.Store.open(tmp_path / "store") as store:
        for lane in range(3):
            with store.producer() as producer:
                for number in range(1000):
                    headers = {"number": str(number), "trace": "é"} if number % 3 else None
                    producer.send(
                        name, b"%d-%d" % (lane, number), key=f"k{number % 7}" if number % 2 else None, headers=headers
                    )
                producer.flush()
    forward(store.path, kafka.url)
    for jar in maven.class_path(CONNECTOR, "Spark's Kafka source").split(":"):
        spark.sql(f"ADD JAR '{jar}'")
    ours = (
        spark.read.format("commitlog").option("subscribe", name).option("includeHeaders", "true").load(str(store.path))
    )
    theirs = spark.read.format("kafka").option("subscribe", name).option("includeHeaders", "true")
    theirs = theirs.option("kafka.bootstrap.servers", kafka.address).option("kafka.isolation.level", "read_committed")
    found = rows(theirs.load())
    assert len(found) == 3000
    assert found == rows(ours)

"""Prepares Spark before anybody's first session (`scripts/setup` runs this module).

It builds the jar that Spark's JVM reads stores with (format_jar.py), and makes the archive of
classes. For that, a session does what most sessions do: it streams from a store into Parquet files,
and reads some rows. When its JVM ends, it writes the archive (class_data.py), and this module waits
for that. What is there already, or is not wanted, is not made.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.client.store import Store
from commitlog.spark.launching import jvm_reader
from commitlog.spark.launching.class_data import VARIABLE, sharing_options
from commitlog.spark.launching.java import cache_directory, find_java
from commitlog.spark.launching.sessions import session
from commitlog.spark.launching.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL = {"store": {"segment_bytes": 1 << 20}}
_CONFIG = {
    "spark.ui.enabled": False,
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": True,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # a short session; the archive is the same
}
_BODY = b'{"name": "an apple", "weight": 0.2}'


def main() -> None:
    """Makes the archive of classes and the jar. Raises what a session raises, and JarNotUsable."""
    if os.environ.get(VARIABLE, "make") == "make" and not _is_made():
        _make_archive()
    if os.environ.get(jvm_reader.VARIABLE) != "off":
        jvm_reader.jar_of_this_machine()


def _make_archive() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory, "store")
        with Store.open(store, _SMALL) as opened, opened.producer() as producer:
            producer.send_batch("orders", [_BODY] * 100)
            producer.flush()
        spark = session(config=_CONFIG)
        _stream(spark, store, Path(directory, "table"))
        spark.read.format("commitlog").option("subscribe", "orders").load(str(store)).limit(10).collect()
        _end(spark)
    _is_made()  # gives the draft its final name


def _is_made() -> bool:
    """Whether there is an archive that sessions will use."""
    options = sharing_options(cache_directory(), find_java().runtime, spark_home(), "", {VARIABLE: "use"})
    return options != ""


def _stream(spark: SparkSession, store: Path, table: Path) -> None:
    def write(rows: DataFrame, batch: int) -> None:
        rows.write.parquet(str(table / str(batch)))

    messages = spark.readStream.format("commitlog").option("subscribe", "orders").option("startingOffsets", "earliest")
    fields = messages.load(str(store)).selectExpr("from_json(CAST(value AS STRING), 'name string, weight double') AS f")
    query = fields.select("f.*").writeStream.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()


def _end(spark: SparkSession) -> None:
    """Stops the session, and waits until its JVM has ended and written the archive."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()

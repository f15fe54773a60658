"""Makes the archive of classes before anybody's first session (`scripts/setup` runs this module).

A session does what most sessions do: it streams from a store into Parquet files. When its JVM ends,
it writes the archive (class_data.py). This module waits for that. If there is an archive already,
or none is wanted, it does nothing.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.spark.launching.class_data import VARIABLE, sharing_options
from commitlog.spark.launching.java import cache_directory, find_java
from commitlog.spark.launching.sessions import session, spark_home
from commitlog.store import Store

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
    """Makes the archive. Raises what a session raises."""
    if os.environ.get(VARIABLE, "make") != "make" or _is_made():
        return
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory, "store")
        with Store.open(store, _SMALL) as opened, opened.producer() as producer:
            producer.send_batch("orders", [_BODY] * 100)
            producer.flush()
        spark = session(config=_CONFIG)
        _stream(spark, store, Path(directory, "table"))
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

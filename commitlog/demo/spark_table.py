"""The demo's Spark: a streaming query whose table has the sums of all rows.

It is a process of its own because Java prints a lot, and must not receive a Ctrl-C. The link tells
the demo the table and how the query goes.
"""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path

from commitlog.demo.scene import TOPIC
from commitlog.ingest.link import Link, Message
from commitlog.ingest.query import describe
from commitlog.system.process_title import set_process_title

LOOK_SECONDS = 1.0
LOG = "spark.log"
_TABLE = "totals"
_SPARK = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}


def run(link: Link, settings: Message) -> None:
    """Runs until the demo closes the link."""
    from pyspark.sql import functions as f

    import commitlog.spark
    from commitlog.spark.query_progress import progress_line

    spark = commitlog.spark.session("commitlog demo", config=_SPARK)
    try:
        source = spark.readStream.format("commitlog").option("subscribe", TOPIC).option("values", "columns")
        sales = source.option("startingOffsets", "earliest").load(settings["store"])
        sums = sales.groupBy("fruit").agg(f.count("*").alias("rows"), f.sum("price").alias("revenue"))
        writer = sums.writeStream.format("memory").outputMode("complete").queryName(_TABLE)
        query = writer.option("checkpointLocation", f"{settings['folder']}/checkpoint").start()
        while not link.closed:
            rows = spark.table(_TABLE).collect()
            link.send(
                {
                    "event": "table",
                    "line": progress_line(query),
                    "rows": {row["fruit"]: (row["rows"], row["revenue"]) for row in rows},
                }
            )
            link.receive(LOOK_SECONDS)
        query.stop()
    finally:
        spark.stop()


def main() -> None:
    """The process: `python -m commitlog.demo.spark_table FD`."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    link = Link.inherited()
    settings = link.receive_one()
    set_process_title("query", settings["store"])
    try:
        run(link, settings)
    except Exception as error:
        traceback.print_exc()
        link.send(describe(error, str(Path(settings["folder"]) / LOG)))


if __name__ == "__main__":
    main()

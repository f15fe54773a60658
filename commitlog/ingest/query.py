"""The Spark process: one streaming query that writes messages to Parquet, one `batch=<id>/` each.

It is a process of its own because Java takes long to start, prints a lot, and must not receive a
Ctrl-C before the job does. Its output goes to `OUT/spark.log`. After each batch, the link tells the
job what it must know.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.errors import CommitLogError, IngestError
from commitlog.ingest.link import Link, Message
from commitlog.ingest.producer_loop import WARM_UP, WARM_UP_MESSAGES
from commitlog.ingest.run_settings import CHECKPOINT, SPARK_LOG
from commitlog.spark.query_progress import failure
from commitlog.system.process_title import set_process_title

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from commitlog.ingest.livetable import BatchFacts, LiveTable

WARM_UP_DIRECTORY = "_warm-up"
REAL_TIME_BATCH = "1 minute"
MICRO_BATCH_ROWS_MAX = 200_000
"""Bounds the memory of a batch when Spark is behind."""
SAMPLE = (
    "kind string, name string, pid int, cpu_percent double, memory_bytes bigint, in_bytes_per_second bigint, "
    "out_bytes_per_second bigint, sampled_at double"
)
WARM_UP_ROUNDS = 2
"""The second batch takes a third of the first one's CPU time, and the third hardly less."""
_FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
_SETTLED_SECONDS = 1.5
_SPARK = {
    "spark.ui.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # a long run makes thousands of jobs, and Spark's memory of them would grow for minutes
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def parsed(messages: DataFrame, settings: Message) -> DataFrame:
    """The columns of the Parquet files, from the source's rows."""
    from pyspark.sql import functions as f

    properties = f.col("properties")
    run = settings["run"]
    ours = messages.where(properties["run"].isin(run, f"{run}.{WARM_UP}"))
    place = [
        properties["run"].alias("run"),
        properties["producer"].cast("int").alias("producer"),
        properties["sequence"].cast("bigint").alias("sequence"),
        f.col("partition").alias("lane"),
        f.col("offset"),
        f.col("timestamp").alias("stored_at"),
    ]
    value = f.col("value").cast("string")
    if settings["live"]:
        sample = ours.withColumn("sample", f.from_json(value, SAMPLE))
        fields = [f.col(f"sample.{name.split()[0]}") for name in SAMPLE.split(", ") if not name.startswith("sampled")]
        return sample.select(*fields, f.col("sample.sampled_at").cast("timestamp").alias("sampled_at"), *place)
    line = [f.make_valid_utf8(value).alias("line"), f.length("value").alias("bytes")]
    return ours.select(properties["source"].alias("source"), *line, *place)


def _import_arrow() -> None:
    """Imports Arrow while Java starts, so that neither Java nor a batch waits for it (0.5 s)."""
    import commitlog.ingest.livetable  # noqa: F401


class QueryProcess:
    """Starts Spark and the query, reports each batch, drains and stops as the job says."""

    def __init__(self, link: Link, settings: Message) -> None:
        self.link = link
        self.settings = settings
        self.out = Path(settings["out"])
        self.ends: dict[int, int] = {}
        self.rows = 0
        self._warm_rows = 0
        self._is_warm = False
        self._stop = False
        self._drain: Message | None = None
        """What is to be read until the end, once the job has said so."""
        self._changed = threading.Event()
        self._known_files: set[str] = set()
        """The directories of a query in Real-Time Mode that were taken in."""

    def run(self) -> None:
        """Runs until the job says stop.

        Raises CommitLogError. Anything else is a bug and ends with a traceback in the log.
        """
        spark = self._start_spark()
        try:
            place = self._wait_for_store()
            if not place:
                return
            query = self._start_query(spark, place)
            self._wait_until_idle(query)
            self._warm_up(query)
            if not self._is_stopped():
                self.link.send({"event": "ready"})
                self._run_until_stopped(query)
            query.stop()
        finally:
            self.link.send({"event": "phase", "text": "stopping Spark"})
            spark.stop()

    def _start_spark(self) -> SparkSession:
        """Starts the session.

        A short run gets the first one of Java's two compilers only. With both, Java takes 25 s of
        CPU until the query is ready, with one 12 s. The second compiler makes quicker code: a
        million lines take 8 s of CPU then, and 15 s without it. What the user has in
        SPARK_SUBMIT_OPTS comes later and wins.
        """
        self.link.send({"event": "phase", "text": "starting Java and Spark"})
        threading.Thread(target=_import_arrow, daemon=True).start()
        if self.settings["short"]:
            options = os.environ.get("SPARK_SUBMIT_OPTS", "")
            os.environ["SPARK_SUBMIT_OPTS"] = f"{_FIRST_COMPILER} {options}".strip()
        import commitlog.spark

        return commitlog.spark.session("commitlog ingest", config=_SPARK)

    def _wait_for_store(self) -> str:
        """Waits until the job has opened the store. Returns its path or URL.

        It is empty when the job ends the run before that.
        """
        try:
            message = self.link.receive_one()
        except EOFError:
            return ""
        return str(message["place"]) if message["do"] == "read" else ""

    def _start_query(self, spark: SparkSession, place: str) -> StreamingQuery:
        self.link.send({"event": "phase", "text": "starting the streaming query"})
        self.table = self._new_table()
        topic = self.settings["topic"]
        reader = (
            spark.readStream.format("commitlog")
            .option("path", place)
            .option("subscribe", f"{topic},{topic}.{WARM_UP}")
            .option("startingOffsets", self.settings["starting_offsets"])
            .option("columns", "value,partition,offset,timestamp,properties")
        )
        if self.settings["real_time"]:
            from commitlog.ingest.real_time_table import RealTimeTable
            from commitlog.spark import foreach

            rows = parsed(reader.load(), self.settings)
            function = RealTimeTable(self.out, self.out / WARM_UP_DIRECTORY)
            writer: Any = foreach(rows, function).outputMode("update").trigger
            writer = writer(realTime=REAL_TIME_BATCH)
        else:
            rows = parsed(reader.option("maxOffsetsPerTrigger", MICRO_BATCH_ROWS_MAX).load(), self.settings)
            writer = rows.writeStream.foreachBatch(self._write_batch)
        query: StreamingQuery = (
            writer.option("checkpointLocation", str(self.out / CHECKPOINT)).queryName("ingest").start()
        )
        return query

    def _warm_up(self, query: StreamingQuery) -> None:
        """Asks for messages that no table will have, in rounds, until the query has written them.

        The first batches of a session take some seconds (classes, generated code, Python's workers,
        the writer of Parquet). Here they delay the start, and not the first messages.
        """
        self.link.send({"event": "phase", "text": "warming up Spark"})
        for done in range(WARM_UP_ROUNDS):
            self.link.send({"event": "cold"})
            while self._warm_rows < (done + 1) * WARM_UP_MESSAGES:
                if not self._is_running(query) or self._is_stopped():
                    return
                self._wait_for_batch()
        self._is_warm = True
        shutil.rmtree(self.out / WARM_UP_DIRECTORY)
        self.table = self._new_table()

    def _new_table(self) -> LiveTable:
        from commitlog.ingest.livetable import LiveTable

        return LiveTable(machine=self.settings["live"])

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        """Writes one batch, in a thread of py4j.

        It overwrites: a batch that is run again replaces itself.
        """
        began = time.monotonic()
        directory = self.out / (f"batch={batch}" if self._is_warm else WARM_UP_DIRECTORY)
        rows.write.mode("overwrite").parquet(str(directory))
        finished_ms = time.time() * 1000
        self._report(batch, self.table.add(directory, finished_ms), time.monotonic() - began)

    def _take_files(self) -> None:
        """Takes in the files that a query in Real-Time Mode has written since the last look."""
        if not self.settings["real_time"]:
            return
        from commitlog.ingest.real_time_table import GATHER_SECONDS, new_files

        place = self.out if self._is_warm else self.out / WARM_UP_DIRECTORY
        for files in new_files(place, self._known_files):
            facts = self.table.add(files.directory, files.finished_ms)
            facts.latencies = files.latencies
            self._report(len(self._known_files), facts, GATHER_SECONDS)

    def _report(self, batch: int, facts: BatchFacts, seconds: float) -> None:
        if not self._is_warm:
            self._warm_rows += facts.rows
            self._changed.set()
            return
        self.rows += facts.rows
        for lane, end in facts.ends.items():
            self.ends[lane] = max(self.ends.get(lane, 0), end)
        latencies = facts.latencies
        self.link.send(
            {
                "event": "batch",
                "id": batch,
                "rows": facts.rows,
                "total": self.rows,
                "seconds": seconds,
                "latencies": latencies.to_json(),
                "p50_ms": latencies.percentile(0.5),
                "p99_ms": latencies.percentile(0.99),
                "grids": [grid.to_json() for grid in self.table.grids()],
            }
        )
        self._changed.set()

    def _wait_until_idle(self, query: StreamingQuery) -> None:
        """Waits until the query has looked at the store once: from then on it misses nothing."""
        looked = "Processing" if self.settings["real_time"] else "Waiting"
        while self._is_running(query) and not self._is_stopped():
            if query.status["message"].startswith(looked):
                return
            time.sleep(0.05)

    def _is_running(self, query: StreamingQuery) -> bool:
        """Whether the query runs.

        Raises IngestError if it has failed.
        """
        if query.isActive:
            return True
        cause = failure(query) or "it ended by itself"
        raise IngestError(f"the Spark query failed: {cause} (see {self.out}/{SPARK_LOG})")

    def _run_until_stopped(self, query: StreamingQuery) -> None:
        """Runs until the job says stop, or is gone.

        It reports when all messages that the job named have been read.
        """
        while self._is_running(query) and not self._is_stopped():
            if self._drain is not None and self._has_read(self._drain["until"]):
                if self._drain["settle"]:
                    self._wait_until_settled(query)
                self._drain = None
                self.link.send({"event": "drained"})
            self._wait_for_batch()

    def _has_read(self, until: dict[str, int]) -> bool:
        """Whether the query has read each lane up to its offset."""
        return all(self.ends.get(int(lane), 0) >= end for lane, end in until.items())

    def _is_stopped(self) -> bool:
        """Whether the job has said stop, or is gone. Reads what it says."""
        for message in self.link.receive(0):
            if message["do"] == "stop":
                self._stop = True
            else:
                self._drain = message
        return self._stop or self.link.closed

    def _wait_for_batch(self) -> None:
        """Waits for the end of a batch, but not longer than it may take to notice a failure."""
        self._changed.wait(0.05)
        self._changed.clear()
        self._take_files()

    def _wait_until_settled(self, query: StreamingQuery) -> None:
        """Waits until no more messages come.

        A producer that died may have sent more than it had noted.
        """
        quiet_since = time.monotonic()
        while self._is_running(query) and time.monotonic() - quiet_since < _SETTLED_SECONDS and not self._is_stopped():
            self._take_files()
            if self._changed.wait(0.1):
                self._changed.clear()
                quiet_since = time.monotonic()


def describe(error: BaseException, log: str) -> dict[str, Any]:
    """A failure as a message to the job; `log` names the file in which Java has said more."""
    if isinstance(error, CommitLogError):
        return {"event": "failed", "name": type(error).__name__, "text": str(error)}
    text = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return {"event": "failed", "name": "IngestError", "text": f"Spark: {text[:500]} (see {log})"}


def main() -> None:
    """The process: `python -m commitlog.ingest.query FD`."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    link = Link.inherited()
    settings = link.receive_one()
    set_process_title("query", settings["store"])
    process = QueryProcess(link, settings)
    try:
        process.run()
    except Exception as error:
        traceback.print_exc()
        link.send(describe(error, f"{process.out}/{SPARK_LOG}"))


if __name__ == "__main__":
    main()

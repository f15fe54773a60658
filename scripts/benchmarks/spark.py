"""spark: PySpark reads the same messages from this log, from Kafka, and from Parquet files.

It reads all Kafka columns. Batches are read whole into the noop sink and into Parquet. Streams are
read in micro-batches of a fixed size. The first micro-batch does not count, because it pays for the
start of the query. Streams that wait for rows come last (live.py, real_time.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import commitlog
from commitlog.errors import how_to_install
from scripts.benchmarks import columns, floors, java_servers, kafka_broker, live, real_time
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch, Turn
from scripts.benchmarks.ours import running_store

RATE = (Metric("rate", "rows/s", "higher"),)
WHOLE = Metric("whole", "rows/s of the whole run, the start of the query with it", "higher")
SIZES, QUICK_SIZES = (100, 1024), (100,)
LANES = 2
_CONNECTOR = java_servers.HERE / "kafka" / "spark.xml"
_BATCHES = 4
FOR_SPEED = (
    "spark.python.unix.domain.socket.enabled",
    "spark.python.daemon.module",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.checkpointFileManagerClass",
)
"""What `commitlog.spark.session` sets so that micro-batches are quick."""


@dataclass
class Source:
    """One way to the same rows.

    `read` and `stream` give DataFrames; `stream` takes the number of rows for a micro-batch.
    """

    name: str
    read: Callable[[], Any]
    stream: Callable[[int], Any]
    awake: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def run(bench: Bench) -> None:
    if importlib.util.find_spec("pyspark") is None:
        bench.skip("everything", f"PySpark is not installed: {how_to_install('spark', 'pyspark', 'pyarrow')}")
        return
    with contextlib.ExitStack() as stack:
        room = stack.enter_context(bench.room())
        broker = stack.enter_context(some_broker(bench))
        with some_session(room) as session:
            _throughput(bench, session, broker)
            columns.run(bench, session, broker)
            live.run(bench, session, broker)
            real_time.run(bench, session, broker)
        if broker is None:
            bench.skip("a stream with Spark's defaults", "it is compared with Kafka's, which is not there")
        else:
            with _default_session(room) as session:
                live.run_with_defaults(bench, session, broker)


def _throughput(bench: Bench, session: Any, broker: kafka_broker.Broker | None) -> None:
    for size in QUICK_SIZES if bench.settings.quick else SIZES:
        count = bench.settings.count(1_200_000 if size == 100 else 400_000, least=4000, multiple=4000)
        with contextlib.ExitStack() as sources:
            store = sources.enter_context(running_store(bench))
            found = list(_sources(bench, sources, session, store, broker, size, count))
            _compare(bench, session, found, size, count)
            if size == 100:
                _value_only(bench, session, store, count)


def _compare(bench: Bench, session: Any, sources: list[Source], size: int, count: int) -> None:
    settings = {
        "rows": count,
        "columns": "key, value, topic, partition, offset, timestamp, timestampType",
        "lanes": LANES,
        "cores": session.sparkContext.defaultParallelism,
    }
    kinds: list[tuple[str, Callable[[Bench, Source, int], Sample]]] = [("batch, noop sink", _noop)]
    if size == 100:
        kinds += [("batch, Parquet sink", _parquet), ("stream, noop sink, steady batches", _stream)]
    for name, work in kinds:
        contestants: dict[str, Turn] = {source.name: partial(_awake, bench, source, count, work) for source in sources}
        streams = work is _stream
        metrics: tuple[Metric, ...] = (*RATE, WHOLE) if streams else RATE
        said = {**settings, "rows_a_micro_batch": count // _BATCHES} if streams else settings
        bench.compare(f"{name}, {size} B", metrics, "Parquet files", contestants, **said)


def _value_only(bench: Bench, session: Any, store: commitlog.Store, count: int) -> None:
    """Reads bodies alone, and compares with a Python source that has them ready in memory.

    So the floor is the cost of any Python source in Spark.
    """
    _register_prebuilt(session, floors.body_of(100), count)

    def read(frame: Callable[[], Any]) -> Turn:
        return partial(_noop, bench, Source("", frame, lambda rows: None), count)

    ours = session.read.format("commitlog").option("subscribe", TOPIC).option("columns", "value")
    bench.compare(
        "batch, value only, noop sink, 100 B",
        RATE,
        "prebuilt RecordBatches",
        {
            "prebuilt RecordBatches": read(lambda: session.read.format("prebuilt").load()),
            "commitlog": read(lambda: ours.load(str(store.path))),
        },
        rows=count,
        columns="value",
        cores=session.sparkContext.defaultParallelism,
    )


def _register_prebuilt(session: Any, body: bytes, count: int) -> None:
    """The format `prebuilt`: `count` equal bodies, in 4 tasks of 25 equal batches each.

    Its classes are local, so that Spark sends them to its workers by value.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    tasks, batches = 4, 25

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(task) for task in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            values = pa.array([body] * (count // tasks // batches), pa.binary())
            batch = pa.RecordBatch.from_arrays([values], ["value"])
            for _ in range(batches):
                yield batch

    class Prebuilt(DataSource):
        @classmethod
        def name(cls) -> str:
            return "prebuilt"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    session.dataSource.register(Prebuilt)


def _awake(bench: Bench, source: Source, count: int, work: Callable[[Bench, Source, int], Sample]) -> Sample:
    with source.awake():
        return work(bench, source, count)


def _noop(_bench: Bench, source: Source, count: int) -> Sample:
    with Stopwatch() as watch:
        source.read().write.format("noop").mode("overwrite").save()
    return {"rate": count / watch.seconds}


def _parquet(bench: Bench, source: Source, count: int) -> Sample:
    with bench.room() as room:
        with Stopwatch() as watch:
            source.read().write.parquet(str(room / "out"))
        return {"rate": count / watch.seconds}


def _stream(bench: Bench, source: Source, count: int) -> Sample:
    """Reads everything in micro-batches.

    Counts the rows of all but the first, by the time that Spark reports for them.
    """
    with bench.room() as room, Stopwatch() as watch:
        query = (
            source.stream(count // _BATCHES)
            .writeStream.format("noop")
            .option("checkpointLocation", str(room / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(600):
                raise RuntimeError("the query did not end in ten minutes")
            batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
        finally:
            query.stop()
    rows = sum(batch["numInputRows"] for batch in batches)
    if rows != count:
        raise RuntimeError(f"the query read {rows} rows of {count}")
    steady = batches[1:] or batches
    seconds = sum(batch["durationMs"]["triggerExecution"] for batch in steady) / 1000
    return {"rate": sum(batch["numInputRows"] for batch in steady) / seconds, "whole": count / watch.seconds}


# ---- where the rows come from ------------------------------------------------------------------


@contextlib.contextmanager
def some_session(room: Path) -> Iterator[Any]:
    import commitlog.spark

    os.environ["SPARK_LOCAL_DIRS"] = str(room / "local")
    session = commitlog.spark.session("benchmarks", config=_config(room))
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def _default_session(room: Path) -> Iterator[Any]:
    """A session in the same JVM, after the other one, with Spark's defaults.

    Only settings that the other session has for speed differ.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    assert SparkContext._jvm is not None
    for key in FOR_SPEED:
        SparkContext._jvm.java.lang.System.clearProperty(key)
    builder = SparkSession.builder.appName("benchmarks").master("local[*]")
    for key, value in _config(room).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        if kept := [key for key in FOR_SPEED if session.conf.get(key, None) is not None]:
            raise RuntimeError(f"the session has {', '.join(kept)} of its own")
        yield session
    finally:
        session.stop()


def _config(room: Path) -> dict[str, str]:
    config = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(room / "warehouse"),
    }
    if (connector := java_servers.jars(_CONNECTOR)) is not None:
        config["spark.jars"] = connector.replace(":", ",")
    return config


@contextlib.contextmanager
def some_broker(bench: Bench) -> Iterator[kafka_broker.Broker | None]:
    if reason := java_servers.why_not(_CONNECTOR):
        bench.skip(kafka_broker.NAME, f"Spark's Kafka source: {reason}")
        yield None
        return
    with kafka_broker.broker(bench) as broker:
        yield broker


def _sources(
    bench: Bench,
    stack: contextlib.ExitStack,
    session: Any,
    store: commitlog.Store,
    broker: kafka_broker.Broker | None,
    size: int,
    count: int,
) -> Iterator[Source]:
    bodies = [floors.body_of(size) for _ in range(1000)]
    send(store, bodies, count)
    ours = _our_source(session, store)
    yield _parquet_source(bench, stack, session, ours)
    yield ours
    if broker is not None:
        topic = stack.enter_context(broker.topic(partitions=LANES))
        fill_topic(broker, topic, bodies, count)
        yield _kafka_source(session, broker, topic)


def fill_topic(broker: kafka_broker.Broker, topic: str, bodies: list[bytes], count: int) -> None:
    """Sends the bodies again and again, and pauses the broker."""
    producer = broker.client.Producer(broker.settings)
    for number in range(count):
        kafka_broker.send_all(producer, topic, bodies[number % len(bodies)], 1)
    producer.flush(timeout=300)
    broker.pause()


def send(store: commitlog.Store, bodies: list[bytes], count: int) -> None:
    producers = [commitlog.Producer(store.path) for _ in range(LANES)]
    for number in range(count // len(bodies)):
        producers[number % LANES].send_batch(TOPIC, bodies)
    for producer in producers:
        producer.flush(timeout=120)
        producer.close()


def _our_source(session: Any, store: commitlog.Store) -> Source:
    def start(reader: Any) -> Any:
        return reader.format("commitlog").option("subscribe", TOPIC).option("startingOffsets", "earliest")

    path = str(store.path)
    return Source(
        "commitlog",
        lambda: start(session.read).load(path),
        lambda rows: start(session.readStream).option("maxOffsetsPerTrigger", rows).load(path),
    )


def _parquet_source(bench: Bench, stack: contextlib.ExitStack, session: Any, ours: Source) -> Source:
    """The same rows as files, one for each micro-batch of a stream."""
    path = str(stack.enter_context(bench.room()) / "files")
    frame = ours.read()
    frame.repartition(_BATCHES).write.parquet(path)
    return Source(
        "Parquet files",
        lambda: session.read.schema(frame.schema).parquet(path),
        lambda rows: session.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1).parquet(path),
    )


def kafka_reader(reader: Any, broker: kafka_broker.Broker, topic: str) -> Any:
    """A reader of Spark's Kafka source, which begins at the earliest offsets."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", broker.address)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest")


def _kafka_source(session: Any, broker: kafka_broker.Broker, topic: str) -> Source:
    def start(reader: Any) -> Any:
        return kafka_reader(reader, broker, topic)

    return Source(
        "Kafka",
        lambda: start(session.read).load(),
        lambda rows: start(session.readStream).option("maxOffsetsPerTrigger", rows).load(),
        broker.awake,
    )

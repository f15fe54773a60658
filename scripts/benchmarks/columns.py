"""columns: rows of eight columns, sent to a typed topic, and read by Spark from there and as JSON.

The CPU of Spark's JVM and of its Python workers counts, and no broker's. Reading goes to the noop
sink.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa

import commitlog
from scripts.benchmarks import kafka_broker
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch, Turn
from scripts.benchmarks.ours import running_store

ROWS = (
    Metric("rate", "rows a CPU second, of Spark and its workers", "higher"),
    Metric("clock", "rows/s", "higher"),
)
SEND = (Metric("rate", "rows/s", "higher"), Metric("each", "µs of CPU a row"))
DDL = "id BIGINT, device STRING, t TIMESTAMP, x DOUBLE, y DOUBLE, n INT, ok BOOLEAN, note STRING"
TYPED, SMALL, JSON = "typed", "typed-1000", "json"
_BATCH_ROWS = 1000


def table_of(count: int) -> pa.Table:
    """Rows of eight columns: numbers, two texts, a time, a truth value."""
    number, random = np.arange(count), np.random.default_rng(1)
    return pa.table(
        {
            "id": number,
            "device": pa.array([f"device-{index % 977}" for index in range(count)]),
            "t": pa.array(1_700_000_000_000_000 + number * 1000, pa.timestamp("us", "UTC")),
            "x": random.random(count).round(6),
            "y": random.random(count).round(6),
            "n": pa.array(random.integers(0, 1000, count), pa.int32()),
            "ok": pa.array(random.random(count) > 0.5),
            "note": pa.array([f"note {index} of many" for index in range(count)]),
        }
    )


def run_sending(bench: Bench) -> None:
    """What it costs to send rows: as a table, as batches of JSON, and one by one."""
    table = table_of(bench.settings.count(500_000, least=10_000))
    rows = table.slice(0, 10_000).to_pylist()
    texts = _json_of(table.slice(0, 10_000))
    with running_store(bench) as store, commitlog.Producer(store.path) as producer:
        store.create_topic(TYPED, table.schema)
        bench.compare(
            "rows of 8 columns",
            SEND,
            "batches of 1,000 JSON values",
            {
                "batches of 1,000 JSON values": partial(_send_batches, producer, texts),
                "send_rows, an Arrow table": partial(_send_table, producer, table),
                "send_rows, lists of 1,000": partial(_send_lists, producer, rows),
                "rows.append": partial(_append, producer, rows),
            },
            columns=DDL,
        )


def _sent(producer: commitlog.Producer, watch: Stopwatch, count: int) -> Sample:
    producer.flush(timeout=60)
    return {"rate": count / watch.seconds, "each": watch.cpu_seconds / count * 1e6}


def _send_batches(producer: commitlog.Producer, texts: list[bytes]) -> Sample:
    with Stopwatch() as watch:
        for start in range(0, len(texts), _BATCH_ROWS):
            producer.send_batch(JSON, texts[start : start + _BATCH_ROWS])
    return _sent(producer, watch, len(texts))


def _send_table(producer: commitlog.Producer, table: pa.Table) -> Sample:
    with Stopwatch() as watch:
        producer.send_rows(TYPED, table)
    return _sent(producer, watch, table.num_rows)


def _send_lists(producer: commitlog.Producer, rows: list[dict[str, Any]]) -> Sample:
    with Stopwatch() as watch:
        for start in range(0, len(rows), _BATCH_ROWS):
            producer.send_rows(TYPED, rows[start : start + _BATCH_ROWS])
    return _sent(producer, watch, len(rows))


def _append(producer: commitlog.Producer, rows: list[dict[str, Any]]) -> Sample:
    with Stopwatch() as watch, producer.rows(TYPED, max_rows=_BATCH_ROWS) as writer:
        for row in rows:
            writer.append(row)
    return _sent(producer, watch, len(rows))


def _json_of(table: pa.Table) -> list[bytes]:
    return [orjson.dumps({**row, "t": row["t"].isoformat()}) for row in table.to_pylist()]


# ---- reading -----------------------------------------------------------------------------------


def run(bench: Bench, session: Any, broker: kafka_broker.Broker | None) -> None:
    """Reads the same rows in several ways, all columns of them."""
    count = bench.settings.count(1_000_000, least=4000, multiple=_BATCH_ROWS)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        room = stack.enter_context(bench.room())
        contestants: dict[str, Turn] = {}
        for name, awake, read in _ways(stack, session, store, broker, room, count):
            contestants[name] = partial(_read, session, awake, read, count)
        bench.compare(
            "batch of 8 columns, noop sink",
            ROWS,
            "Parquet files",
            contestants,
            rows=count,
            columns=DDL,
            cores=session.sparkContext.defaultParallelism,
        )


def _read(
    session: Any, awake: Callable[[], contextlib.AbstractContextManager[Any]], read: Callable[[], Any], count: int
) -> Sample:
    with awake():
        before = spark_cpu_seconds(session)
        with Stopwatch() as watch:
            read().write.format("noop").mode("overwrite").save()
        return {"rate": count / (spark_cpu_seconds(session) - before), "clock": count / watch.seconds}


def spark_cpu_seconds(session: Any) -> float:
    """CPU of Spark's JVM and of its Python workers, dead ones too."""
    java = psutil.Process(int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()))
    total = 0.0
    for process in (java, *java.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


Way = tuple[str, Callable[[], contextlib.AbstractContextManager[Any]], Callable[[], Any]]


def _ways(
    stack: contextlib.ExitStack,
    session: Any,
    store: commitlog.Store,
    broker: kafka_broker.Broker | None,
    room: Path,
    count: int,
) -> Iterator[Way]:
    from pyspark.sql.functions import col, from_json

    table, path, always = table_of(count), str(store.path), contextlib.nullcontext
    texts = _json_of(table)
    _fill(store, table, texts)

    def ours(topic: str, **options: str) -> Any:
        return session.read.format("commitlog").option("subscribe", topic).options(**options)

    def parsed(frame: Any) -> Any:
        return frame.select(from_json(col("value").cast("string"), DDL).alias("row")).select("row.*")

    typed = ours(TYPED, values="columns").load(path)
    typed.write.parquet(str(room / "files"))
    yield "Parquet files", always, lambda: session.read.schema(typed.schema).parquet(str(room / "files"))
    yield "typed topic, 10,000 rows a message", always, lambda: ours(TYPED, values="columns").load(path)
    yield "typed topic, 1,000 rows a message", always, lambda: ours(SMALL, values="columns").load(path)
    yield "values=json", always, lambda: ours(JSON, values="json").schema(DDL).load(path)
    yield "values, from_json", always, lambda: parsed(ours(JSON).load(path))
    if broker is not None:
        topic = stack.enter_context(broker.topic(partitions=1))
        client = broker.client.Producer(broker.settings)
        for text in texts:
            kafka_broker.send_all(client, topic, text, 1)
        client.flush(300)
        broker.pause()
        kafka = session.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
        kafka = kafka.option("subscribe", topic).option("startingOffsets", "earliest")
        yield "Kafka, from_json", broker.awake, lambda: parsed(kafka.load())


def _fill(store: commitlog.Store, table: pa.Table, texts: list[bytes]) -> None:
    with commitlog.Producer(store.path) as producer:
        for topic, most in ((TYPED, 10_000), (SMALL, _BATCH_ROWS)):
            store.create_topic(topic, table.schema)
            producer.send_rows(topic, table, max_rows=most)
        for start in range(0, len(texts), _BATCH_ROWS):
            producer.send_batch(JSON, texts[start : start + _BATCH_ROWS])
        producer.flush(timeout=120)

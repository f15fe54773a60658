"""serve: the same rows by the store's path, from its server, and from Kafka.

The server is one process. Whatever a contestant needs besides Spark counts: its server, or Kafka's
broker. The last groups are one client that reads without Spark, into Arrow and message by message
with a Reader, and a stream that waits for rows (live.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil

import commitlog
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import ServerSettings
from scripts.benchmarks import columns, kafka_broker, live, spark
from scripts.benchmarks.floors import TOPIC, body_of
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch, Turn
from scripts.benchmarks.ours import running_store, warm_producer

ROWS = (
    Metric("executor", "µs of CPU a row, of Spark and its workers"),
    Metric("server", "µs of CPU a row, of the server or broker"),
    Metric("together", "rows a CPU second, of everything together", "higher"),
    Metric("clock", "rows/s", "higher"),
)
STREAM = (
    Metric("server", "µs of CPU a row, of the server"),
    Metric("core", "rows a CPU second of the server", "higher"),
    Metric("server GB", "s of CPU a GB, of the server"),
    Metric("client GB", "s of CPU a GB, of the client"),
    Metric("clock", "rows/s", "higher"),
)
READER = (
    Metric("core", "messages a CPU second of the client", "higher"),
    Metric("client", "µs of CPU a message, of the client"),
    Metric("server", "µs of CPU a message, of the server"),
    Metric("clock", "messages/s", "higher"),
)
LISTS = "by URL, in lists with commits"
PATH, PLAIN, TLS = "by path", "by URL", "by URL, TLS"
_REPEATS = 4
"""A client alone is quick, so each turn reads the rows so often."""


@dataclass(frozen=True)
class Way:
    """One way to the rows: Spark's DataFrame, and the CPU seconds so far of what serves it."""

    read: Callable[[], Any]
    cpu_seconds: Callable[[], float] = lambda: 0.0
    awake: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def run(bench: Bench) -> None:
    for package in ("pyspark", "trustme"):
        if importlib.util.find_spec(package) is None:
            bench.skip("everything", f"{package} is not installed: pip install {package}")
            return
    with contextlib.ExitStack() as stack:
        room = stack.enter_context(bench.room())
        broker = stack.enter_context(spark.some_broker(bench))
        files = certificates(room)
        with spark.some_session(room) as session:
            for size in spark.SIZES:
                _batches(bench, session, broker, files, size)
            _live(bench, session)


def _batches(bench: Bench, session: Any, broker: kafka_broker.Broker | None, files: dict[str, str], size: int) -> None:
    count = bench.settings.count(1_200_000 if size == 100 else 400_000, least=4000, multiple=4000)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        bodies = [body_of(size) for _ in range(1000)]
        spark.send(store, bodies, count)
        plain = stack.enter_context(served(store.path))
        tls = stack.enter_context(served(store.path, files))
        ours = partial(_reader, session)  # a new one each time: `option` changes the reader itself
        url, secure = (str(server.address(store.path.name)) for server in (plain, tls))
        ways = {
            PATH: Way(lambda: ours().load(str(store.path))),
            PLAIN: Way(lambda: ours().load(url), partial(cpu_seconds, plain)),
            TLS: Way(lambda: ours().option("caFile", files["ca"]).load(secure), partial(cpu_seconds, tls)),
        }
        if broker is not None:
            topic = stack.enter_context(broker.topic(partitions=spark.LANES))
            spark.fill_topic(broker, topic, bodies, count)
            kafka = spark.kafka_reader(session.read, broker, topic)
            ways[kafka_broker.NAME] = Way(kafka.load, broker.cpu_seconds, broker.awake)
        bench.compare(
            f"batch, all columns, noop sink, {size} B",
            ROWS,
            PATH,
            {name: partial(_read, session, way, count) for name, way in ways.items()},
            rows=count,
            cores=session.sparkContext.defaultParallelism,
        )
        streams: dict[str, Turn] = {
            PLAIN: partial(_read_alone, plain, url, None, count),
            TLS: partial(_read_alone, tls, secure, files["ca"], count),
        }
        bench.compare(f"one client, read_arrow, {size} B", STREAM, PLAIN, streams, rows=count * _REPEATS)
        readers: dict[str, Turn] = {
            PATH: partial(read_messages, lambda: commitlog.Reader(store.path, TOPIC), None, count),
            PLAIN: partial(read_messages, lambda: commitlog.Reader(url, TOPIC), plain, count),
            TLS: partial(read_messages, lambda: commitlog.Reader(secure, TOPIC, ca_file=files["ca"]), tls, count),
            LISTS: partial(read_lists, lambda: commitlog.Reader(url, TOPIC, name=token_hex(8)), plain, count),
        }
        bench.compare(f"one client, a Reader, {size} B", READER, PLAIN, readers, rows=count)


def _reader(session: Any) -> Any:
    return session.read.format("commitlog").option("subscribe", TOPIC)


def _read(session: Any, way: Way, count: int) -> Sample:
    with way.awake():
        spark_before, server_before = columns.spark_cpu_seconds(session), way.cpu_seconds()
        with Stopwatch() as watch:
            way.read().write.format("noop").mode("overwrite").save()
        executor, server = columns.spark_cpu_seconds(session) - spark_before, way.cpu_seconds() - server_before
    return {
        "executor": executor / count * 1e6,
        "server": server / count * 1e6,
        "together": count / (executor + server),
        "clock": count / watch.seconds,
    }


def _read_alone(server: Server, url: str, ca_file: str | None, count: int) -> Sample:
    before, rows, size = cpu_seconds(server), 0, 0
    with Stopwatch() as watch:
        for _ in range(_REPEATS):
            for batch in commitlog.read_arrow(url, TOPIC, ca_file=ca_file):
                rows += batch.num_rows
                size += batch.nbytes
    if rows != count * _REPEATS:
        raise RuntimeError(f"{rows} rows came of {count * _REPEATS}")
    spent = cpu_seconds(server) - before
    return {
        "server": spent / rows * 1e6,
        "core": rows / spent,
        "server GB": spent / size * 1e9,
        "client GB": watch.cpu_seconds / size * 1e9,
        "clock": rows / watch.seconds,
    }


def read_messages(opened: Callable[[], commitlog.Reader], server: Server | None, count: int) -> Sample:
    """Values and offsets of all messages are used, one by one."""
    before, used = 0.0 if server is None else cpu_seconds(server), 0
    with Stopwatch() as watch, opened() as reader:
        for message in reader:
            used += message.offset >= 0 and len(message.value) > 0
    return _read_by(server, before, watch, used, count)


def read_lists(opened: Callable[[], commitlog.Reader], server: Server, count: int) -> Sample:
    """The same in lists, each of which a named reader commits."""
    before, used = cpu_seconds(server), 0
    with Stopwatch() as watch, opened() as reader:
        for messages in reader.batches(50_000):
            used += sum(message.offset >= 0 and len(message.value) > 0 for message in messages)
            reader.commit()
    return _read_by(server, before, watch, used, count)


def _read_by(server: Server | None, before: float, watch: Stopwatch, used: int, count: int) -> Sample:
    if used != count:
        raise RuntimeError(f"{used} messages came of {count}")
    spent = 0.0 if server is None else cpu_seconds(server) - before
    return {
        "core": count / watch.cpu_seconds,
        "client": watch.cpu_seconds / count * 1e6,
        "server": spent / count * 1e6,
        "clock": count / watch.seconds,
    }


def _live(bench: Bench, session: Any) -> None:
    sources: dict[str, live.LiveSource] = {
        PATH: partial(_live_store, bench, session, is_served=False),
        PLAIN: partial(_live_store, bench, session, is_served=True),
    }
    live.compare(bench, session, "by path and by URL", sources, live.REPEATS, idle_seconds=5)


@contextlib.contextmanager
def _live_store(bench: Bench, session: Any, is_served: bool) -> Iterator[live.Live]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench))
        producer = stack.enter_context(warm_producer(store))
        server = stack.enter_context(served(store.path)) if is_served else None
        place = str(store.path) if server is None else str(server.address(store.path.name))
        frame = session.readStream.format("commitlog").option("subscribe", TOPIC).load(place)
        spent = (lambda: 0.0) if server is None else partial(cpu_seconds, server)
        yield live.Live(frame, lambda body: producer.send(TOPIC, body), spent)


# ---- servers -----------------------------------------------------------------------------------


def served(path: Path, files: dict[str, str] | None = None) -> Server:
    """A server of one process on this machine, with TLS if there are `files` for it."""
    settings = ServerSettings({path.name: str(path)}, "127.0.0.1", 0, advertise="127.0.0.1")
    if files is not None:
        settings = replace(settings, certificate=files["certificate"], key=files["key"])
    return Server(settings)


def cpu_seconds(server: Server) -> float:
    """CPU of the server's processes so far."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in server.pids)


def certificates(room: Path) -> dict[str, str]:
    """Files of a new authority, and of a certificate for this machine."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {name: str(room / f"{name}.pem") for name in ("ca", "certificate", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    issued.private_key_pem.write_to_path(files["key"])
    Path(files["certificate"]).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    return files

"""The copy of a store on the same machine: how soon a message is there, and how fast it catches up.

The store and its replica share two cores and one disk, so each sync waits for the other's. The
replica is a process of its own, as `commitlog replica` is.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil

import commitlog
from commitlog.receipt import Level
from commitlog.replicas.promotion import promote
from scripts.benchmarks import floors, kafka_broker, rocketmq_pair, serve
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import PERCENTILES, Bench, Metric, Sample, Stopwatch, Turn, percentiles
from scripts.benchmarks.java_servers import free_ports
from scripts.benchmarks.ours import running_store, warm_producer

FLOOR = "1 × pwrite + fdatasync"
FLUSHED, REPLICATED = "flushed", "replicated"
KAFKA, ROCKETMQ = "Kafka, two brokers", "RocketMQ, SYNC_MASTER and slave"
SIZE = 1024
PROMOTED = "promoted, and opened"
_CATCH_UP = (
    Metric("megabytes", "MB/s", "higher"),
    Metric("sender", "s of CPU a GB, of the store's HAService"),
    Metric("copy", "s of CPU a GB, of the replica"),
)
_SYNC_BYTES = 16 << 20
_IDLE_SECONDS = 5.0


def run(bench: Bench) -> None:
    """All groups about replicas."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(kafka_broker.broker(bench, replicated=True))
        room = stack.enter_context(bench.room())
        files = serve.certificates(room)
        pair = stack.enter_context(rocketmq_pair.pair(bench, SIZE))
        _one_at_a_time(bench, broker, pair, room, files)
        _throughput(bench, files)
        _catch_up(bench, room, files)
        _promotion(bench, room, files)


def _one_at_a_time(
    bench: Bench,
    broker: kafka_broker.Broker | None,
    pair: rocketmq_pair.Pair | None,
    room: Path,
    files: dict[str, str],
) -> None:
    count = bench.settings.count(1000, least=50)
    with contextlib.ExitStack() as stack:
        store, _ = stack.enter_context(replicated_store(bench, files))
        producer = stack.enter_context(warm_producer(store))
        _await_in_sync(store)
        contestants: dict[str, Turn] = {
            FLOOR: lambda: percentiles(floors.durable_writes(room / "file", floors.record_of(SIZE), count)),
            FLUSHED: partial(_wait_for_each, producer, count, "flushed"),
            REPLICATED: partial(_wait_for_each, producer, count, "replicated"),
        }
        if broker is not None:
            contestants[KAFKA] = partial(_kafka, broker, max(count // 4, 20))
        if pair is not None:
            contestants[ROCKETMQ] = lambda: percentiles(pair.send(max(count // 4, 20)))
        bench.compare(
            "1 KB, one at a time, with a replica",
            PERCENTILES,
            FLOOR,
            contestants,
            messages=count,
            replicated="synced on both sides",
            Kafka="acks=all, min.insync.replicas=2, flush.messages=1, linger 0: synced by both brokers",
            RocketMQ="SYNC_FLUSH, inSyncReplicas=2: synced by the master; in memory at the slave, which syncs behind",
        )
        bench.compare(
            "nothing is sent",
            (Metric("core", "of a core"),),
            "HAService",
            {"HAService": lambda: _idle([_ha_service(store)]), "replica": lambda: _idle(_replicas())},
            repeats=1,
        )


def _wait_for_each(producer: commitlog.Producer, count: int, level: Level) -> Sample:
    body, clock, took = floors.body_of(SIZE), time.perf_counter_ns, []
    for _ in range(count):
        began = clock()
        producer.send(TOPIC, body).wait(level, 60)
        took.append(clock() - began)
    return percentiles(took)


def _kafka(broker: kafka_broker.Broker, count: int) -> Sample:
    config = {"min.insync.replicas": "2"}
    return percentiles(kafka_broker.durable(broker, floors.body_of(SIZE), count, 1, config)[1])


def _idle(pids: list[int]) -> Sample:
    processes = [psutil.Process(pid) for pid in pids]
    before = sum(map(_cpu, processes))
    time.sleep(_IDLE_SECONDS)
    return {"core": (sum(map(_cpu, processes)) - before) / _IDLE_SECONDS}


def _throughput(bench: Bench, files: dict[str, str]) -> None:
    """As much as a producer can send until it is flushed, with and without a replica."""
    count = bench.settings.count(200_000, least=2_000, multiple=1_000)
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(warm_producer(stack.enter_context(running_store(bench))))
        store, _ = stack.enter_context(replicated_store(bench, files))
        copied = stack.enter_context(warm_producer(store))
        _await_in_sync(store)
        bench.compare(
            "1 KB in batches of 1,000, until flushed",
            (Metric("rate", "messages/s", "higher"),),
            "without a replica",
            {"without a replica": partial(_send, alone, count), "with a replica": partial(_send, copied, count, store)},
            messages=count,
        )


def _send(producer: commitlog.Producer, count: int, replicated: commitlog.Store | None = None) -> Sample:
    """The replica may come later: the next turn waits for it."""
    if replicated is not None:
        producer.flush("replicated", 300)
    bodies = [floors.body_of(SIZE)] * 1_000
    with Stopwatch() as watch:
        for _ in range(count // 1_000):
            producer.send_batch(TOPIC, bodies)
        producer.flush(timeout=300)
    return {"rate": count / watch.seconds}


# ---- catching up -------------------------------------------------------------------------------


def _catch_up(bench: Bench, room: Path, files: dict[str, str]) -> None:
    count = bench.settings.count(600_000, least=2_000, multiple=1_000)
    with replicated_store(bench, files, followed=False) as (store, address), warm_producer(store) as producer:
        bodies = [floors.body_of(SIZE)] * 1_000
        for _ in range(count // 1_000):
            producer.send_batch(TOPIC, bodies)
        producer.flush(timeout=600)
        size = store.statistics().lanes[0].flushed
        bench.compare(
            "a new replica catches up, 1 KB",
            _CATCH_UP,
            "pwrite, and fdatasync each 16 MiB",
            {
                "pwrite, and fdatasync each 16 MiB": lambda: _bare(room / "bare", size),
                "replica, over TLS": partial(_follow, bench, store, address, files, size),
            },
            bytes=size,
        )


def _bare(path: Path, size: int) -> Sample:
    data = os.urandom(1 << 22)
    with floors.new_file(path) as fd, Stopwatch() as watch:
        for where in range(0, size, len(data)):
            os.pwrite(fd, data[: size - where], where)
            if (where + len(data)) % _SYNC_BYTES == 0:
                os.fdatasync(fd)
        os.fdatasync(fd)
    return {"megabytes": size / watch.seconds / 1e6, "sender": 0.0, "copy": watch.cpu_seconds / size * 1e9}


def _follow(bench: Bench, store: commitlog.Store, address: str, files: dict[str, str], size: int) -> Sample:
    """From the replica's first frame until it has acknowledged all; its start does not count."""
    name = f"copy-{time.monotonic_ns()}"
    with bench.room() as room, running_replica(room / "copy", address, files, name) as process:
        sender = psutil.Process(_ha_service(store))
        _await((room / "copy" / "lanes" / "0" / "commitlog").exists)
        sent, copied = _cpu(sender), _cpu(process)
        with Stopwatch() as watch:
            _await(lambda: _has(store, size))
        return {
            "megabytes": size / watch.seconds / 1e6,
            "sender": (_cpu(sender) - sent) / size * 1e9,
            "copy": (_cpu(process) - copied) / size * 1e9,
        }


def _promotion(bench: Bench, room: Path, files: dict[str, str]) -> None:
    """A copy of a store that was killed is promoted and opened: until it takes messages."""
    count = bench.settings.count(1_000_000, least=2_000, multiple=1_000)
    copies = room / "copies"
    with replicated_store(bench, files, followed=False) as (store, address), warm_producer(store) as producer:
        bodies = [floors.body_of(SIZE)] * 1_000
        for _ in range(count // 1_000):
            producer.send_batch(TOPIC, bodies)
        producer.flush(timeout=600)
        size = store.statistics().lanes[0].flushed
        rounds = min(bench.settings.repeats, 2)
        for number in range(rounds):
            with running_replica(copies / str(number), address, files, f"copy-{number}") as process:
                _await(lambda: _has(store, size))
                process.kill()
    numbers, again = iter(range(rounds)), iter(range(rounds))
    bench.compare(
        "promotion of a copy, after kill -9",
        (Metric("seconds", "s until it takes messages"),),
        PROMOTED,
        {
            PROMOTED: lambda: _opened(copies / str(next(numbers)), is_replica=True),
            "the same, opened after a proper stop": lambda: _opened(copies / str(next(again)), is_replica=False),
        },
        repeats=rounds,
        bytes=size,
    )


def _opened(path: Path, *, is_replica: bool) -> Sample:
    with Stopwatch() as watch:
        if is_replica:
            promote(path)
        store = commitlog.Store.open(path)
        producer = store.producer()
        producer.send(TOPIC, b"it goes on")
    producer.close()
    store.close()
    return {"seconds": watch.seconds}


# ---- stores and replicas -----------------------------------------------------------------------


@contextlib.contextmanager
def replicated_store(
    bench: Bench, files: dict[str, str], *, followed: bool = True
) -> Iterator[tuple[commitlog.Store, str]]:
    """A new store, and the address where its replicas come. With `followed` one follows it."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    own = {"listen": address, "certificate": files["certificate"], "key": files["key"], "authority": files["ca"]}
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(running_store(bench, replication=own))
        if followed:
            room = stack.enter_context(bench.room())
            stack.enter_context(running_replica(room / "copy", address, files, "copy"))
        yield store, address


@contextlib.contextmanager
def running_replica(directory: Path, address: str, files: dict[str, str], name: str) -> Iterator[psutil.Popen]:
    """`commitlog replica` as a process."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "commitlog", "replica", str(directory), "--from", address, "--name", name]
    command += ["--certificate", files["certificate"], "--key", files["key"], "--authority", files["ca"]]
    with psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.is_running():
                process.terminate()


def _has(store: commitlog.Store, size: int) -> bool:
    """Whether the only replica has acknowledged the first lane up to `size`."""
    lane = store.statistics().lanes[0]
    return lane.in_sync > 0 and lane.replicated >= size


def _await_in_sync(store: commitlog.Store) -> None:
    _await(lambda: store.statistics().lanes[0].in_sync > 0)


def _await(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a replica did not come so far")
        time.sleep(0.002)


def _ha_service(store: commitlog.Store) -> int:
    return next(stage.pid for stage in store.statistics().stages if stage.stage == "ha_service")


def _cpu(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def _replicas() -> list[int]:
    """The replicas that this process has started."""
    return [child.pid for child in psutil.Process().children() if "replica" in child.cmdline()]

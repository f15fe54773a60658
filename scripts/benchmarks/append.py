"""append: the cost of handing over one message, from one producer.

A turn waits only until the message is accepted.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import commitlog
from commitlog.errors import how_to_install
from commitlog.native import VARIABLE, core
from scripts.benchmarks import floors, kafka_broker, rivals
from scripts.benchmarks.harness import EACH, Bench, Sample, Stopwatch, Turn
from scripts.benchmarks.ours import running_store, warm_producer
from scripts.benchmarks.sends import send_all, send_batches
from scripts.benchmarks.workers import workers

SIZES = (100, 1024)
PYTHON_CORE = "Python core"
"""What runs where the native core is not built."""


def run(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        room = stack.enter_context(bench.room())
        broker = stack.enter_context(kafka_broker.broker(bench))
        store = stack.enter_context(running_store(bench))
        with_crc = stack.enter_context(warm_producer(store))
        plain_store = stack.enter_context(running_store(bench, store={"record_crc": False}))
        plain = stack.enter_context(warm_producer(plain_store))
        for size in SIZES:
            contestants = _single(bench, size, room / "file", with_crc, plain)
            contestants |= _rivals(bench, size, broker)
            if core is not None:
                contestants[f"send, {PYTHON_CORE}"] = partial(_by_python, store.path, size, _count(bench, size))
            bench.compare(
                f"send, {size} B",
                EACH,
                "os.write, the record",
                contestants,
                messages=f"{_count(bench, size)} (Queue: {_few(bench, size, 5)}, faster-fifo: {_few(bench, size, 3)})",
                Queue="until its thread has passed all on",
                Kafka="produce() with librdkafka's defaults",
                **_settings(size),
            )
            bench.compare(
                f"send_batch, {size} B",
                EACH,
                "file.write, the bodies",
                _batches(bench, stack, size, room / "file", with_crc, plain) | _batches_by_python(bench, store, size),
                messages=f"{_many(bench, size)} (of 100, LMDB: {_count(bench, size)}; "
                f"SQLite, Redis: {_few(bench, size, 10)})",
                SQLite="WAL, FULL: durable, unlike the others; LMDB and Redis too",
                **_settings(size),
            )
    if importlib.util.find_spec("pyarrow") is None:
        bench.skip("rows of 8 columns", f"PyArrow is not installed: {how_to_install('arrow', 'pyarrow')}")
    else:
        from scripts.benchmarks import columns

        columns.run_sending(bench)


def _by_python(path: Path, size: int, count: int, batch: int = 1) -> Sample:
    """The same without the native core, in a process of its own."""
    job = {"kind": "append", "path": str(path), "size": size, "count": count, "batch": batch}
    with workers([job], {VARIABLE: "off"}) as running:
        (sample,) = running.go()
    return sample


def _batches_by_python(bench: Bench, store: commitlog.Store, size: int) -> dict[str, Turn]:
    if core is None:
        return {}
    return {f"batches of 1,000, {PYTHON_CORE}": partial(_by_python, store.path, size, _many(bench, size), 1000)}


def _count(bench: Bench, size: int, full: int = 600_000) -> int:
    return bench.settings.count(full * 100 // (size + 150), least=1000, multiple=1000)


def _few(bench: Bench, size: int, part: int) -> int:
    """A part of the work, for slow contestants."""
    return max(_count(bench, size) // part, 1000)


def _many(bench: Bench, size: int) -> int:
    """More messages, because batches are quick: as many as fit into free buffers."""
    room = 2 * bench.settings.segment_bytes // len(floors.record_of(size))
    return min(_count(bench, size) * 4, room // 1000 * 1000)


def _settings(size: int) -> dict[str, Any]:
    return {"body": f"{size} B", "sync": "none within the clock"}


def _single(
    bench: Bench, size: int, file: Any, with_crc: commitlog.Producer, plain: commitlog.Producer
) -> dict[str, Turn]:
    body, count = floors.body_of(size), _count(bench, size)
    record = floors.record_of(size)

    return {
        "os.write, the record": lambda: floors.os_write(file, record, count),
        "send": lambda: send_all(with_crc, body, count),
        "send, with key": lambda: send_all(with_crc, body, count, "key-1234"),
        "send, body CRC only": lambda: send_all(plain, body, count),
        "file.write, the body": lambda: floors.file_write(file, [body] * 1000, count),
        "multiprocessing.Queue": lambda: rivals.queue_put(body, _few(bench, size, 5)),
    }


def _rivals(bench: Bench, size: int, broker: Any) -> dict[str, Turn]:
    body, count = floors.body_of(size), _count(bench, size)
    found: dict[str, Turn] = {}
    if broker is not None:
        found["Kafka, produce()"] = lambda: kafka_broker.produce(broker, body, count)
    if bench.wants("faster-fifo"):
        package = rivals.module_or_skip(bench, "faster-fifo", "faster_fifo")
        if package is not None:
            found["faster-fifo"] = lambda: rivals.fifo_put(package, body, _few(bench, size, 3))
    return found


def _batches(
    bench: Bench,
    stack: contextlib.ExitStack,
    size: int,
    file: Any,
    with_crc: commitlog.Producer,
    plain: commitlog.Producer,
) -> dict[str, Turn]:
    import numpy as np
    import pyarrow as pa

    bodies = [floors.body_of(size) for _ in range(1000)]
    rows = np.frombuffer(b"".join(bodies), np.uint8).reshape(1000, size)
    arrow = pa.array(bodies, pa.binary())
    count, most, few = _count(bench, size), _many(bench, size), _few(bench, size, 10)
    found: dict[str, Turn] = {"file.write, the bodies": lambda: floors.file_write(file, bodies, most)}
    for kind, given in (("", bodies), ("numpy, ", rows), ("Arrow, ", arrow)):
        found |= {
            f"{kind}batches of 100": partial(send_batches, with_crc, given[:100], count),
            f"{kind}batches of 100, body CRC only": partial(send_batches, plain, given[:100], count),
            f"{kind}batches of 1,000": partial(send_batches, with_crc, given, most),
            f"{kind}batches of 1,000, body CRC only": partial(send_batches, plain, given, most),
        }
    insert = stack.enter_context(rivals.sqlite(stack.enter_context(bench.room()) / "db"))
    found["SQLite, transactions of 1,000"] = lambda: _insert_all(insert, bodies, few)
    if bench.wants("lmdb") and (package := rivals.module_or_skip(bench, "LMDB", "lmdb")) is not None:
        put = stack.enter_context(rivals.lmdb(package, stack.enter_context(bench.room()), sync=True))
        found["LMDB sync, transactions of 1,000"] = lambda: _insert_all(put, bodies, count)
    if bench.wants("redis"):
        add = stack.enter_context(rivals.redis_stream(bench, stack.enter_context(bench.room())))
        if add is not None:
            found["Redis AOF always, pipelines of 1,000"] = lambda: _insert_all(add, bodies, few)
    return found


def _insert_all(insert: Any, bodies: Sequence[bytes], count: int) -> Sample:
    with Stopwatch() as watch:
        for _ in range(count // len(bodies)):
            insert(bodies)
    return watch.each(count // len(bodies) * len(bodies))

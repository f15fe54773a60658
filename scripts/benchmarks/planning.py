"""planning: what a Spark query costs before its first row, and without rows.

There is no Spark and no JVM here.

A batch is planned over a stopped store with many lanes and many segments. A stream that has read
everything asks a running store for more. Spark does the first once for each batch, and the second
about ninety times a second.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import commitlog
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, new_store_id
from commitlog.errors import how_to_install
from commitlog.record.host import Host
from commitlog.record.record import RecordEncoder, encode_blank
from commitlog.record.record_layout import BLANK_BYTES
from scripts.benchmarks.floors import TOPIC
from scripts.benchmarks.harness import Bench, Metric, Sample, Stopwatch

LANES = 64
SEGMENT_BYTES = 4096
RECORDS_A_SEGMENT = 8
POLLS = 200
TIME = (Metric("milliseconds", "ms"), Metric("cpu", "ms of CPU"))


def run(bench: Bench) -> None:
    if importlib.util.find_spec("pyspark") is None:
        bench.skip("everything", f"PySpark is not installed: {how_to_install('spark', 'pyspark', 'pyarrow')}")
        return
    segments = bench.settings.count(1000, least=4)
    with contextlib.ExitStack() as stack:
        stores = {count: stopped_store(stack.enter_context(bench.room()) / "store", count) for count in (1, segments)}
        bench.compare(
            "a batch is planned",
            TIME,
            "a segment a lane",
            {
                "a segment a lane": partial(plan, stores[1]),
                "many segments a lane": partial(plan, stores[segments]),
            },
            lanes=LANES,
            many=segments,
            records_a_segment=RECORDS_A_SEGMENT,
        )
    lanes = min(LANES, bench.settings.count(LANES, least=2))
    with contextlib.ExitStack() as stack:
        polls = {
            name: stack.enter_context(idle_stream(bench, count))
            for name, count in (("a lane", 1), ("many lanes", lanes))
        }
        bench.compare("a stream that is up to date asks", TIME, "a lane", polls, polls=POLLS, many=lanes)


def stopped_store(path: Path, segments: int) -> Path:
    """64 lanes with `segments` small segments each, written without stages.

    Their bodies are the same, their places are not.
    """
    path.mkdir()
    directory = StoreDirectory(path)
    directory.save(StoreFacts(new_store_id(), SEGMENT_BYTES))
    for number in range(LANES):
        lane_directory = directory.lane_directory(number)
        lane_directory.commitlog.mkdir(parents=True)
        entries = []
        for segment in range(segments):
            data, places = segment_bytes(number, segment * SEGMENT_BYTES, segment * RECORDS_A_SEGMENT)
            lane_directory.segment_path(segment * SEGMENT_BYTES).write_bytes(data)
            entries += places
        with ConsumeQueue(lane_directory.queue_path(TOPIC)) as queue:
            offsets, sizes = zip(*entries, strict=True)
            queue.place(range(len(entries)), offsets, sizes, [0] * len(entries))
        end = segments * SEGMENT_BYTES
        PositionsFile(lane_directory, "", DISK).store(Positions(1, end, end, 0, 0, True, len(entries)))
    return path


def segment_bytes(lane: int, where: int, queue_offset: int) -> tuple[bytes, list[tuple[int, int]]]:
    """A full segment, and the place and size of each of its records."""
    host = Host(b"\x7f\0\0\x01", 10911 + lane)
    encoder, data, places = RecordEncoder(lane, host, host, True), bytearray(), []
    for number in range(RECORDS_A_SEGMENT):
        record = encoder.encode(TOPIC.encode(), bytes(300), b"", queue_offset + number, where + len(data), 1000, 1000)
        places.append((where + len(data), len(record)))
        data += record
    assert SEGMENT_BYTES - len(data) >= BLANK_BYTES
    return (bytes(data) + encode_blank(SEGMENT_BYTES - len(data))).ljust(SEGMENT_BYTES, b"\0"), places


def plan(path: Path) -> Sample:
    """Plans a batch as Spark does, from the options to the tasks."""
    from commitlog.spark.source import CommitLogDataSource

    with Stopwatch() as watch:
        source = CommitLogDataSource({"path": str(path), "subscribe": TOPIC})
        reader = source.reader(source.schema())
        reader.partitions()
    return _each(watch, 1)


@contextlib.contextmanager
def idle_stream(bench: Bench, lanes: int) -> Iterator[Any]:
    """A stream that has read all of a running store."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from commitlog.spark.source import CommitLogDataSource

    config = {"store": {"segment_bytes": 1 << 16, "max_lanes": lanes}}
    with bench.room() as room, commitlog.Store.open(room / "store", config) as store:
        producers = [store.producer() for _ in range(lanes)]
        for producer in producers:
            producer.send(TOPIC, b"one")
            producer.flush(timeout=30)
        source = CommitLogDataSource({"path": str(store.path), "subscribe": TOPIC, "readername": "benchmark"})
        reader = source.streamReader(source.schema())
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

        def poll() -> Sample:
            with Stopwatch() as watch:
                for _ in range(POLLS):
                    assert reader.latestOffset(end, ReadAllAvailable()) == end
            return _each(watch, POLLS)

        try:
            yield poll
        finally:
            reader.stop()
            for producer in producers:
                producer.close()


def _each(watch: Stopwatch, count: int) -> Sample:
    return {"milliseconds": watch.seconds * 1000 / count, "cpu": watch.cpu_seconds * 1000 / count}

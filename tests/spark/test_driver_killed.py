"""Spark's driver is killed with kill -9 during a batch, also during batch 0.

It restarts from the checkpoint. Processes are real, and the store runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.named_readers import NamedReaders
from tests.nightly import by_all_readers_nightly
from tests.served import place_of
from tests.spark_session import reader_options
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
BATCH_SECONDS = 300.0
"""A JVM starts first, beside other JVMs on few cores."""
DRIVER = """
import json, os, sys, time
from pathlib import Path
import commitlog.spark

store, directory, hang_in, options, columns = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *map(json.loads, sys.argv[4:])
spark = commitlog.spark.session("killed", "local[2]", {"spark.ui.enabled": False})

def sink(frame, batch):
    rows = sorted(tuple(row) for row in frame.selectExpr(*columns).collect())
    kind = "seen" if batch == hang_in else "done"
    draft = directory / f"draft-{batch}"
    draft.write_text(json.dumps(rows))
    draft.rename(directory / f"{kind}-{batch}.json")
    while batch == hang_in:
        time.sleep(1)

frame = spark.readStream.format("commitlog").options(subscribe="orders", **options).load(store)
writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(directory / "checkpoint"))
if hang_in < 0:
    writer.trigger(availableNow=True).start().awaitTermination()
else:
    writer.start().awaitTermination()
"""


VALUES = {"maxOffsetsPerTrigger": 20, "readerName": "billing"}
ROWS = {"values": "columns", "metadata": True, "maxRowsPerTrigger": 20, "startingOffsets": "earliest"}


@contextmanager
def driver(
    store: Path, directory: Path, hang_in: int, options: dict[str, Any], columns: list[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that hangs for good in a batch, or reads everything there is (−1).

    Then it is killed with everything that it has started.
    """
    said = json.dumps(options | reader_options()), json.dumps(columns)
    command = [sys.executable, "-c", DRIVER, place_of(store), str(directory), str(hang_in), *said]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(directory / "local")}
    with (directory / f"log-{hang_in}").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def seen_file(process: subprocess.Popen[bytes], directory: Path, batch: int) -> Path:
    """Waits until the driver hangs in the batch. Returns the file of the rows that it has seen."""
    seen = directory / f"seen-{batch}.json"
    wait_until(lambda: process.poll() is not None or seen.exists(), f"batch {batch}", patience=BATCH_SECONDS)
    assert process.poll() is None, (directory / f"log-{batch}").read_text()
    return seen


def rows_of(file: Path) -> list[tuple[int, int, str]]:
    return [(lane, offset, text) for lane, offset, text in json.loads(file.read_text())]


def rows_of_batches(directory: Path) -> list[tuple[int, int, str]]:
    """The rows of all finished batches, in the order of batches."""
    batches = sorted(directory.glob("done-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
    return [row for file in batches for row in rows_of(file)]


COLUMNS = ["partition", "offset", "CAST(value AS STRING)"]


def read_in_a_process(store: Path, directory: Path, options: dict[str, Any]) -> None:
    """Reads all that is left, in a driver of its own."""
    with driver(store, directory, -1, options, COLUMNS) as process:
        assert process.wait(300) == 0, (directory / "log--1").read_text()


def read_here(store: Path, directory: Path, options: dict[str, Any]) -> None:
    """The same in this process, whose session runs already: a JVM takes five seconds of a core."""
    arguments = [place_of(store), str(directory), "-1", json.dumps(options), json.dumps(COLUMNS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["driver", *arguments])
        exec(compile(DRIVER, "driver", "exec"), {})


@pytest.mark.timeout(900)
def test_a_batch_comes_again_as_it_was(tmp_path: Path, spark: SparkSession, quick_java: None) -> None:
    """The driver is killed in batch 0, and another one goes on."""
    check_each_row_once(tmp_path, "last 10", (0,), read_here)


@pytest.mark.nightly
@by_all_readers_nightly
@pytest.mark.usefixtures("both_ways")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("starting", "kills"), [("last 10", (0,)), ("last 10", (0, 2)), ("latest", (0, 2))])
def test_every_row_once_by_batch_id(tmp_path: Path, quick_java: None, starting: str, kills: tuple[int, ...]) -> None:
    """All drivers are processes of their own."""
    check_each_row_once(tmp_path, starting, kills, read_in_a_process)


def check_each_row_once(
    tmp_path: Path, starting: str, kills: tuple[int, ...], read_rest: Callable[[Path, Path, dict[str, Any]], None]
) -> None:
    """The driver is killed in these batches, and the batches are replayed as they were.

    Batch 0 is empty for "latest", although the start is elsewhere by then.
    """
    directory = tmp_path / "driver"
    directory.mkdir()
    options = VALUES | {"startingOffsets": starting}
    with (
        commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store,
        store.producer() as producer,
    ):
        sent: list[str] = []

        def send(count: int) -> None:
            for _ in range(count):
                sent.append(f"message {len(sent)}")
                producer.send("orders", sent[-1].encode())
            producer.flush(timeout=30)

        def position() -> Any:
            readers = NamedReaders(StoreDirectory(store.path))
            return dict(readers.load("billing").offsets["orders"]) if readers.names() else None

        def killed_in(batch: int) -> list[tuple[int, int, str]]:
            """Starts a driver and kills it within a batch; the rows it had seen of it."""
            with driver(store.path, directory, batch, options, COLUMNS) as process:
                return rows_of(seen_file(process, directory, batch))

        send(100)
        first = 100 if starting == "latest" else 90
        seen: dict[int, list[tuple[int, int, str]]] = {}
        for batch in kills:
            seen[batch] = killed_in(batch)
            if batch == 0:
                assert [offset for _, offset, _ in seen[0]] == list(range(first, 100))
                assert position() == {0: first}
            else:
                assert position()[0] <= seen[batch][0][1]
            send(75)
        read_rest(store.path, directory, options)
        for batch in kills:
            assert rows_of(directory / f"done-{batch}.json") == seen[batch]
        assert rows_of_batches(directory) == [(0, offset, sent[offset]) for offset in range(first, len(sent))]
        assert position() == {0: len(sent)}


@by_all_readers_nightly
@pytest.mark.usefixtures("both_ways")
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_row_of_a_typed_topic_once(tmp_path: Path, quick_java: None) -> None:
    """The driver is killed in batches 0 and 2 of a stream of columns, limited by rows."""
    directory = tmp_path / "driver"
    directory.mkdir()
    columns = ["_offset", "_row", "text"]
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        store.create_topic("orders", "text STRING")
        for batch in (0, 2, -1):
            producer.send_rows("orders", [{"text": f"row {number}"} for number in range(70)], max_rows=7)
            producer.flush(timeout=30)
            with driver(store.path, directory, batch, ROWS, columns) as process:
                if batch < 0:
                    assert process.wait(300) == 0, (directory / "log--1").read_text()
                else:
                    seen_file(process, directory, batch)
        for batch in (0, 2):
            assert rows_of(directory / f"done-{batch}.json") == rows_of(directory / f"seen-{batch}.json")
        assert rows_of_batches(directory) == [(n // 7, n % 7, f"row {n % 70}") for n in range(210)]

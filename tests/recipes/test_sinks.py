"""docs/sinks.md: a batch that comes again, because Spark had not yet noted it, is written once."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import commitlog
from tests.another_user import NOBODY
from tests.programs import DOCS, PATIENT_SECONDS, blocks, files, patient, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = DOCS / "sinks.md"
ROWS = 20
Write = Callable[["DataFrame", int], None]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A stopped store with rows as JSON."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}}) as store, store.producer() as producer:
        producer.send_batch("orders", [b'{"fruit": "%d", "price": 0.5}' % number for number in range(ROWS)])
    return path


def run(spark: SparkSession, path: Path, checkpoint: Path, write: Write) -> None:
    """Writes all there is, in batches of seven messages, until the end or an error."""
    stream = (
        spark.readStream.format("commitlog")
        .options(subscribe="orders", startingOffsets="earliest", values="json", maxOffsetsPerTrigger=7)
        .schema("fruit STRING, price DOUBLE")
        .load(str(path))
    )
    query = stream.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(write)
    query.trigger(availableNow=True).start().awaitTermination()


def write_with_crashes(spark: SparkSession, path: Path, checkpoint: Path, write: Write) -> list[int]:
    """Runs the query, which dies after its first and second batch are in the database.

    Returns the numbers of the batches, in the order in which they came.
    """
    from pyspark.errors import StreamingQueryException

    came: list[int] = []

    def dying(batch: DataFrame, batch_id: int) -> None:
        came.append(batch_id)
        write(batch, batch_id)
        if came.count(batch_id) == 1 and batch_id < 2:
            raise RuntimeError("killed here")

    for _ in range(2):
        with pytest.raises(StreamingQueryException):
            run(spark, path, checkpoint, dying)
    run(spark, path, checkpoint, dying)
    return came


@pytest.mark.nightly
def test_sqlite_has_each_row_once(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    """The page's function, with a crash between its transaction and Spark's note of the batch."""
    (block,) = (text for text in blocks(PAGE, "python") if "def to_sqlite" in text)
    names: dict[str, Any] = {}
    exec(block.partition("\n\n\ndef run")[0].replace("data/orders.db", str(tmp_path / "orders.db")), names)
    assert write_with_crashes(spark, orders, tmp_path / "checkpoint", names["to_sqlite"]) == [0, 0, 1, 1, 2]
    with contextlib.closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        found = database.execute("SELECT fruit FROM orders").fetchall()
    assert sorted(int(fruit) for (fruit,) in found) == list(range(ROWS))


def _postgres() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve()] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].parent if places else None


@pytest.fixture
def postgres() -> Iterator[str]:
    """A server that listens on a socket in a directory of its own. It refuses to run as root."""
    programs = _postgres()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed here")
    directory = Path(tempfile.mkdtemp(prefix="clt-"))
    user = NOBODY if os.getuid() == 0 else os.getuid()
    os.chown(directory, user, -1)

    def start(*command: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(word) for word in command], cwd=directory, user=user, stdout=subprocess.DEVNULL)

    try:
        made = start(programs / "initdb", "--no-sync", "--username=tests", "--auth=trust", "-D", directory / "data")
        assert made.wait() == 0
        control = (programs / "pg_ctl", "-D", directory / "data", "-w")
        options = f"-k {directory} -c listen_addresses='' -c fsync=off"
        assert start(*control, "-l", directory / "log", "-o", options, "start").wait() == 0
        try:
            yield f"postgresql:///postgres?host={directory}&user=tests"
        finally:
            assert start(*control, "-m", "fast", "stop").wait() == 0
    finally:
        shutil.rmtree(directory)


@pytest.mark.nightly
def test_postgres_has_each_row_once(spark: SparkSession, orders: Path, tmp_path: Path, postgres: str) -> None:
    import psycopg

    names: dict[str, Any] = {}
    exec(files(PAGE)["postgres.py"], names)

    def write(batch: DataFrame, batch_id: int) -> None:
        names["to_postgres"](batch, batch_id, postgres)

    assert write_with_crashes(spark, orders, tmp_path / "checkpoint", write) == [0, 0, 1, 1, 2]
    with psycopg.connect(postgres) as database:
        found = database.execute("SELECT fruit FROM orders").fetchall()
    assert sorted(int(fruit) for (fruit,) in found) == list(range(ROWS))


@pytest.mark.nightly
@patient
def test_delta(tmp_path: Path, quick_java: None) -> None:
    """The page's program, with a jar that Maven brings."""
    write_files(PAGE, tmp_path)
    with commitlog.Store.open(tmp_path / "data/events") as store, store.producer() as producer:
        producer.send_batch("orders", [b"apple", b"pear"])
    for _ in range(2):  # the second run has nothing to add
        done = subprocess.run(
            [sys.executable, "delta.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT_SECONDS
        )
        assert done.stdout.endswith("2 rows\n"), done.stderr[-4000:]

"""The Spark session that all tests of a pytest worker share: small, and quick from run two on.

`commitlog.spark.session` keeps an archive of classes for that
(commitlog/spark/launching/class_data.py). The first run makes it when its session ends. Sessions in
processes that a test starts use it and never make one: their JVM would outlive the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1"
_ARCHIVE_SECONDS = 600.0
"""For a JVM that makes the archive of classes at its end: half a minute on a quiet machine."""
CONFIG = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.ui.enabled": "false",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}


@cache
def quick_options() -> str:
    """Options for all JVMs, also for those that `commitlog.spark.session` does not start."""
    from pyspark.find_spark_home import _find_spark_home

    from commitlog.spark.launching.class_data import VARIABLE, sharing_options
    from commitlog.spark.launching.java import cache_directory, find_java

    shared = sharing_options(
        cache_directory(), find_java().runtime, Path(_find_spark_home()), given="", environment={VARIABLE: "use"}
    )
    return f"{QUICK} {shared}"


@contextmanager
def small_session(directory: Path, **config: Any) -> Iterator[SparkSession]:
    """A session on two cores whose warehouse is in `directory`; afterwards its JVM is gone."""
    import commitlog.spark
    from commitlog.spark.launching.class_data import VARIABLE

    settings = CONFIG | {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "make")
        session = commitlog.spark.session("tests", master="local[2]", config=settings | config)
    try:
        yield session
    finally:
        _end(session)


_reader_options: dict[str, str] = {}


def reader_options() -> dict[str, str]:
    """Options for reads in processes that a test starts: who reads, as the test was told."""
    return dict(_reader_options)


@contextmanager
def read_by_python() -> Iterator[None]:
    """Has Python read what Spark's JVM could."""
    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

    by_python = {"reader": "python"}

    def loading(load: Any) -> Any:
        return lambda reader, *args, **options: load(reader.options(**by_python), *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (DataFrameReader, DataStreamReader):
            patch.setattr(kind, "load", loading(kind.load))
        patch.setitem(globals(), "_reader_options", by_python)
        yield


def jvm_pid(session: SparkSession) -> int:
    gateway: Any = session.sparkContext._gateway
    pid: int = gateway.proc.pid
    return pid


def _end(session: SparkSession) -> None:
    """Stops the session and its JVM, which `SparkSession.stop` leaves running."""
    from pyspark import SparkContext

    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # this ends the JVM
    wait_until(lambda: gateway.proc.poll() is not None, "the JVM has ended", patience=_ARCHIVE_SECONDS)
    SparkContext._gateway = None
    SparkContext._jvm = None


def path_without_java(directory: Path) -> str:
    """A folder with a link to every command on PATH but `java`."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            link = directory / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def spark_home(directory: Path) -> Path:
    """Spark's home with no files of its own.

    A cluster writes into SPARK_HOME/work, whatever SPARK_WORKER_DIR says.
    """
    import pyspark

    directory.mkdir()
    for part in Path(pyspark.__path__[0]).iterdir():
        (directory / part.name).symlink_to(part)
    return directory

"""The Spark session that the tests of one pytest worker share: small, and quick to start from the second run on.

Half of the time that a session takes to start, and to run its first query, is loading classes. The JVM can write those
that it loaded to an archive when it ends (class data sharing) and map it when it starts. The first run of the tests
writes one into the environment (150 MB, 10 s), later runs have their first row after 4 s instead of 14. A JVM ignores
an archive that another Java made, or that was made from other jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
CONFIG = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}


@contextmanager
def small_session(directory: Path, **config: Any) -> Iterator[SparkSession]:
    """A session on two cores whose warehouse lies in `directory`; afterwards its JVM is gone."""
    import commitlog.spark

    with _class_data() as java_options:
        settings = CONFIG | {
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.extraJavaOptions": f"{QUICK} {java_options}",
        }
        session = commitlog.spark.session("tests", master="local[2]", config=settings | config)
        try:
            yield session
        finally:
            _end(session)


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
    gateway.proc.stdin.close()  # what the JVM takes as the end
    wait_until(lambda: gateway.proc.poll() is not None, 60, "the JVM has ended")
    SparkContext._gateway = None
    SparkContext._jvm = None


def quick_java_options() -> str:
    """JVM options that make a start quick, for sessions in processes that a test starts (JDK_JAVA_OPTIONS)."""
    archive = _archive()
    return f"{QUICK} {_use(archive)}" if archive.exists() else QUICK


def _archive() -> Path:
    from commitlog.spark.java import java_home

    kind = hashlib.sha256(f"{java_home()} {version('pyspark')}".encode()).hexdigest()[:16]
    return Path(sys.prefix, f"spark-classes-{kind}.jsa")


def _use(archive: Path) -> str:
    return f"-XX:SharedArchiveFile='{archive}' {QUIET}"


@contextmanager
def _class_data() -> Iterator[str]:
    """JVM options: use the archive if there is one, else write one, unless another worker is at it."""
    archive = _archive()
    if archive.exists():
        yield _use(archive)
        return
    draft = archive.with_suffix(".draft")
    with draft.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield ""
            return
        draft.unlink(missing_ok=True)  # of a run that was killed
        yield f"-XX:ArchiveClassesAtExit='{draft}' {QUIET}"
        with suppress(FileNotFoundError):  # the JVM was killed, or its Java can't write archives
            os.replace(draft, archive)

"""Fixtures of all tests: pools of their own, a check for leaks, one Spark session a worker."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import leaks, served
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.builders.hand_made import HandMadeStore

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell does for background processes
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DISPLAY = ("CLICOLOR", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "PY_COLORS")
_PROGRAMS = ("COMMITLOG_", "PYSPARK_", "PYTHON", "SPARK_")
_KEPT = {"COMMITLOG_NATIVE"}  # the core to test
if "COVERAGE_PROCESS_START" in os.environ:  # scripts/coverage has its packages there, for all processes
    _KEPT.add("PYTHONPATH")
for _name in list(os.environ):  # settings of a user or a CI service for other programs
    if _name.startswith(_DISPLAY + _PROGRAMS) and _name not in _KEPT:
        del os.environ[_name]

# numpy's OpenBLAS starts a thread for each core at import. No process of a test needs them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# No limit of time for an example: the machine may be busy with other things.
settings.register_profile("patient", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(trylast=True)  # when those that `-m` and `-k` leave out are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has xdist start what lasts longest, and one worker alone make a Spark session or a broker.

    Each worker begins with an equal part of the list; one that has nothing to do takes tests from
    the end of another's. So tests of the session come where the first worker begins. Those that
    start a JVM of their own, and others that last long, come where the second one begins, and those
    of Kafka's broker where the third does.
    """
    of_session = [item for item in items if "spark_session" in _fixtures(item)]
    of_broker = [item for item in items if "kafka" in _fixtures(item)]
    lasting = [item for item in items if _lasts(item) and item not in of_session + of_broker]
    taken = {*of_session, *of_broker, *lasting}
    rest = iter([item for item in items if item not in taken])
    share = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ordered: list[pytest.Item] = []
    for worker, group in enumerate((of_session, lasting, of_broker)):
        ordered += itertools.islice(rest, max(worker * share - len(ordered), 0))
        ordered += group
    items[:] = [*ordered, *rest]


def _lasts(item: pytest.Item) -> bool:
    return "quick_java" in _fixtures(item) or item.get_closest_marker("lasting") is not None


def pytest_collection_finish() -> None:
    """Keeps the garbage collector away from the hundreds of thousands of objects that tests are.

    A look for leaks collects, which takes 0.2 s of a core otherwise.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Lets the collector see them again: DuckDB reports what is still there when Python ends."""
    gc.unfreeze()


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


_spark_jvm: int | None = None  # one session a worker, and one JVM


@pytest.fixture(scope="session", autouse=True)
def shm_base() -> Iterator[Path]:
    """A directory of this pytest process in /dev/shm, named in COMMITLOG_SHM_DIR.

    Its path is short, because sockets are in it, and theirs may have 107 bytes. A lock on it tells
    it from directories of runs that were killed, which are removed.
    """
    for stale in leaks.SHARED_MEMORY.glob(f"{leaks.BASE_PREFIX}*"):
        _remove_if_stale(stale)
    # A hidden name, because a directory without its lock would look stale.
    unlocked = Path(tempfile.mkdtemp(dir=leaks.SHARED_MEMORY, prefix=f".{leaks.BASE_PREFIX}"))
    lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    base = unlocked.rename(unlocked.with_name(unlocked.name[1:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMMITLOG_SHM_DIR", str(base))
        patch.setenv("COMMITLOG_CLASS_DATA", "use")
        patch.setenv("XDG_STATE_HOME", str(base / "state"))  # what copies note outside of their directories
        yield base
    shutil.rmtree(base)
    os.close(lock)


def _remove_if_stale(directory: Path) -> None:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # removed meanwhile, or another user's
    try:
        with contextlib.suppress(BlockingIOError):  # in use
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(fd)


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def shm_root(
    request: pytest.FixtureRequest,
    shm_base: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """The test's own directory for pools.

    Afterwards it must be empty, and nothing else may be left: no descriptor, thread, process,
    socket or piece of shared memory. A test that kills the process that would clean up is marked
    `leaves_pools`.
    """
    root = shm_base / str(next(_numbers))
    root.mkdir(mode=0o700)
    monkeypatch.setenv("COMMITLOG_SHM_DIR", str(root))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{root.name}"))
    before = leaks.Snapshot.take(f"COMMITLOG_SHM_DIR={root}", tmp_path_factory.getbasetemp(), _spark_jvm)
    yield root
    may_leave_pools = request.node.get_closest_marker("leaves_pools") is not None

    def left() -> list[str]:
        pools = [] if may_leave_pools else [f"pool {path}" for path in sorted(root.rglob("*"))]
        return before.leaks() + pools

    found = leaks.left_in_the_end(left, PATIENCE_SECONDS)
    if found:
        leaks.kill(before.left_processes())
    shutil.rmtree(root)
    if found:
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)


@pytest.fixture(scope="session")
def served_base() -> Iterator[str]:
    """The worker's server of any store, and this process's connection to it."""
    from commitlog.planning.address import parse_address
    from commitlog.remote import requests
    from commitlog.remote.flight_connection import connection_of

    with served.any_store_server() as base:
        address = parse_address(f"{base}/any")
        connection_of(address).ask("stores", requests.Stores())
        yield base
        served.forget_connection(address)


@pytest.fixture(params=["path", "url"])
def both_ways(request: pytest.FixtureRequest, served_base: str) -> Iterator[None]:
    """Runs a test twice: `tests.served.place_of` gives a store's path, then its URL.

    With "python" it is the path, and Spark's JVM does not read it.
    """
    with contextlib.ExitStack() as ways:
        ways.enter_context(served.by_url(served_base if request.param == "url" else None))
        if request.param == "python":
            from tests.spark_session import read_by_python

            ways.enter_context(read_by_python())
        yield


@pytest.fixture(scope="session")
def spark_session(shm_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The worker's one session; tests take `spark`."""
    global _spark_jvm
    from tests.spark_session import jvm_pid, small_session

    with small_session(tmp_path_factory.mktemp("spark")) as session:
        _spark_jvm = jvm_pid(session)
        yield session
    _spark_jvm = None


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """The worker's session on two cores.

    A streaming query that a test leaves running is stopped and fails the test.
    """
    yield spark_session
    running = [query.name or str(query.id) for query in spark_session.streams.active]
    for query in spark_session.streams.active:
        query.stop()
    spark_session.catalog.clearCache()
    assert not running, f"streaming queries left running: {running}"


@pytest.fixture(scope="session")
def polars_streams() -> None:
    """Polars 1 opens an event loop with its first stream, and keeps it."""
    import polars
    import pyarrow as pa

    polars.DataFrame(pa.table({"x": [1]}).to_reader())


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Spark start fast in processes that the test starts.

    Their standard error has one line more.
    """
    from tests.spark_session import quick_options

    monkeypatch.setenv("JDK_JAVA_OPTIONS", quick_options())


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """A stopped store: 100 messages of `orders` and of `other` in each of lanes 0 and 1.

    Files that need another store have their own fixture of this name.
    """
    from tests.builders.hand_made import small_store

    return small_store(tmp_path / "store")


@pytest.fixture
def no_segments_mapped(shm_root: Path) -> Iterator[None]:
    """Unmaps the segments that a test has read as columns, before leaks are looked for."""
    from commitlog.columns.mapped_segments import SEGMENTS

    yield
    SEGMENTS.clear()


@pytest.fixture
def look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `refresh` look at a stopped store each time, not only now and then."""
    from commitlog.reading import topic_index

    monkeypatch.setattr(topic_index, "STOPPED_REREAD_NS", 0)


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a reader's name that another process holds an error at once."""
    from commitlog.reading import named_readers

    monkeypatch.setattr(named_readers, "PATIENCE_SECONDS", 0.05)

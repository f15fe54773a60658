"""The Python processes of Spark's JVM, where they do not answer: nothing waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders.hand_made import HandMadeStore
from tests.shown import shown
from tests.spark.jvm_frames import children, failure, harm, load, store_of_one_lane
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = "spark.commitlog.plannerTimeout"


@pytest.fixture
def own_store(tmp_path: Path) -> HandMadeStore:
    return store_of_one_lane(tmp_path / "store")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does nothing in this block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)


def test_a_planner_that_is_stopped_holds_up_no_other_query(spark: SparkSession, own_store: HandMadeStore) -> None:
    """Another planner is started beside it, and one is left at the end."""
    assert load(spark, own_store.path).count() == 160
    (planner,) = children(spark, "planner")
    with ThreadPoolExecutor(3) as pool, stopped(planner):
        counts = [pool.submit(lambda: load(spark, own_store.path).count()) for _ in range(3)]
        wait_until(lambda: sum(count.done() for count in counts) == 2, "all but one have their answer")
        os.kill(planner, signal.SIGCONT)
        assert [count.result() for count in counts] == [160] * 3
    wait_until(lambda: len(children(spark, "planner")) == 1, "one planner is left")


@pytest.mark.parametrize("size", [0, 1 << 20], ids=["a short question", "more than a pipe takes"])
def test_a_planner_that_gives_no_answer_is_an_error(spark: SparkSession, own_store: HandMadeStore, size: int) -> None:
    """It names the setting that waits longer. The next query has a new planner."""
    settings: Any = spark._jvm.org.apache.spark.SparkEnv.get().conf()  # type: ignore[union-attr]
    frame = load(spark, own_store.path, startingOffsets='{"orders": %s{"3": -2}}' % (" " * size))
    (planner,) = children(spark, "planner")
    settings.set(LIMIT, "1s")
    try:
        with stopped(planner):
            said = failure(frame.count)
        assert said.startswith("PlannerFailed: the Python process that plans for Spark's JVM (")
        assert f"gave no answer in 1 s, for example because a file system hangs; {LIMIT}=1h in Spark's settings" in said
    finally:
        settings.remove(LIMIT)
    assert frame.count() == 160
    assert planner not in children(spark, "planner")


@pytest.mark.parametrize("ranges", [1, 5_000], ids=["a short question", "more than a pipe takes"])
def test_a_task_that_waits_for_python_can_be_cancelled(spark: SparkSession, tmp_path: Path, ranges: int) -> None:
    """As a task that reads by itself: its process ends with it."""
    store = HandMadeStore(tmp_path / "store")
    for _ in range(2 * ranges):
        store.lane(3).append("orders", b"")
    store.publish()
    harm(store, 0, 2)
    context = spark.sparkContext
    wanted = f"offset IN ({', '.join(map(str, range(0, 2 * ranges, 2)))})"

    def counted() -> object:
        context.setJobGroup("of this test", "a count")
        return load(spark, store.path).where(wanted).select("value").collect()

    with ThreadPoolExecutor(1) as pool:
        count = pool.submit(counted)
        (rest,) = wait_until(lambda: children(spark, "task_rest"), "Python reads the rest")
        wait_until(lambda: shown(rest) == ["task_rest", f"commitlog: task_rest {store.path}"], "it names its store")
        with stopped(rest):
            context.cancelJobGroup("of this test")
            assert "cancelled" in str(count.exception()).lower()
            wait_until(lambda: not children(spark, "task_rest"), "the task's process has ended")


@pytest.mark.parametrize(("module", "role"), [("jvm_planner", "planner"), ("jvm_rest", "task_rest")])
def test_a_process_has_its_name_before_it_is_asked(module: str, role: str) -> None:
    with subprocess.Popen([sys.executable, "-m", f"commitlog.spark.{module}"], stdin=subprocess.PIPE) as process:
        wait_until(lambda: shown(process.pid) == [role, f"commitlog: {role}"], f"ps shows {role}")
        process.kill()


@pytest.mark.parametrize("sources", [{}, {"sources": "0" * 64}])
def test_a_jar_of_another_version_gets_no_plan(own_store: HandMadeStore, sources: dict[str, str]) -> None:
    """As where `--jars` names an older one: the session then has Python read, and says why."""
    question = {"about": "reading", "options": {"path": str(own_store.path), "subscribe": "orders"}, **sources}
    done = subprocess.run(
        [sys.executable, "-m", "commitlog.spark.jvm_planner"],
        input=json.dumps(question) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["error"] == "JarNotUsable"
    assert answer["words"].startswith("the jar that Spark has is of another version of commitlog than ")

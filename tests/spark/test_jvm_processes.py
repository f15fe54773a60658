"""The Python processes of Spark's JVM, where they do not answer: nothing waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.frame
import pytest

from tests.builders.hand_made import HandMadeStore
from tests.crash.scene import halted_process
from tests.leaks import parent_and_state
from tests.nightly import with_nightly
from tests.shown import shown
from tests.spark.jvm_frames import TaskReader, children, failure, harm, load, store_of_one_lane
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = "spark.commitlog.plannerTimeout"


@pytest.fixture
def own_store(tmp_path: Path) -> HandMadeStore:
    return store_of_one_lane(tmp_path / "store")


@pytest.mark.nightly
def test_a_planner_that_is_stopped_holds_up_no_other_query(spark: SparkSession, own_store: HandMadeStore) -> None:
    """Another planner is started beside it, and one is left at the end."""
    assert load(spark, own_store.path).count() == 160
    (planner,) = children(spark, "planner")
    with ThreadPoolExecutor(3) as pool, halted_process(planner):
        counts = [pool.submit(lambda: load(spark, own_store.path).count()) for _ in range(3)]
        wait_until(lambda: sum(count.done() for count in counts) == 2, "all but one have their answer")
        os.kill(planner, signal.SIGCONT)
        assert [count.result() for count in counts] == [160] * 3
    wait_until(lambda: len(children(spark, "planner")) == 1, "one planner is left")


@pytest.mark.parametrize("size", with_nightly([1 << 20], [0]), ids=["more than a pipe takes", "a short question"])
def test_a_planner_that_gives_no_answer_is_an_error(spark: SparkSession, own_store: HandMadeStore, size: int) -> None:
    """It names the setting that waits longer. The next query has a new planner."""
    settings: Any = spark._jvm.org.apache.spark.SparkEnv.get().conf()  # type: ignore[union-attr]
    frame = load(spark, own_store.path, startingOffsets='{"orders": %s{"3": -2}}' % (" " * size))
    (planner,) = children(spark, "planner")
    settings.set(LIMIT, "1s")
    try:
        with halted_process(planner):
            said = failure(frame.count)
        assert said.startswith("PlannerFailed: the Python process that plans for Spark's JVM (")
        assert f"gave no answer in 1 s, for example because a file system hangs; {LIMIT}=1h in Spark's settings" in said
    finally:
        settings.remove(LIMIT)
    assert frame.count() == 160
    assert planner not in children(spark, "planner")


@pytest.mark.parametrize("ranges", with_nightly([5_000], [1]), ids=["more than a pipe takes", "a short question"])
def test_a_task_that_waits_for_python_can_be_cancelled(spark: SparkSession, tmp_path: Path, ranges: int) -> None:
    """As a task that reads by itself: its process ends with it, which has read no question yet."""
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

        def halted_rest() -> list[int]:
            """A process that answers before it is seen has ended its count: there is another."""
            nonlocal count
            if count.done():
                count = pool.submit(counted)
            found = children(spark, "task_rest")
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            return [pid for pid in found if parent_and_state(pid)[1] == "T"]

        (rest,) = wait_until(halted_rest, "Python reads the rest, and is halted")
        with halted_process(rest):
            context.cancelJobGroup("of this test")
            assert "cancelled" in str(count.exception()).lower()
            wait_until(lambda: not children(spark, "task_rest"), "the task's process has ended")


@pytest.mark.nightly
def test_a_process_that_reads_names_its_store(spark: SparkSession, tmp_path: Path) -> None:
    """It waits, because nobody takes its rows."""
    store = HandMadeStore(tmp_path / "store", 1 << 24)
    for _ in range(40):
        store.lane(0).append("orders", lz4.frame.compress(os.urandom(1 << 20)), sys_flag=0x101)
    store.publish()
    reader = TaskReader(spark, store.path)
    assert 0 < len(reader.values()) < 40
    (rest,) = children(spark, "task_rest")
    assert shown(rest) == ["task_rest", f"commitlog: task_rest {store.path}"]
    assert 0 < sum(reader.sizes()) < 40


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

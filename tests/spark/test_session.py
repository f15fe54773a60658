"""What importing costs, what a session is given, the lag of a progress, and executors in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import commitlog.spark
from commitlog.spark.java import find_java
from commitlog.spark.sessions import FAST, _cores
from tests.spark.hand_made import small_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def python(code: str, *arguments: str, **environment: str) -> str:
    """Standard output of a program; it must succeed and write nothing to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("NOTE: Picked up JDK_JAVA_OPTIONS")]
    assert (done.returncode, said) == (0, [])
    return done.stdout.strip()


def python_noisy(code: str, *arguments: str, **environment: str) -> str:
    """The same for a session of somebody's own, which says on standard error what Spark says."""
    return python("import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n" + code, *arguments, **environment)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("commitlog.spark", "pyspark pyarrow numpy.random zmq"),
        ("pyspark_commitlog", "numpy pyarrow zmq pydantic typer pandas rich psutil"),
        ("commitlog.spark.source, commitlog.spark.sink", "zmq pydantic typer pandas rich psutil"),
        ("commitlog.spark.daemon", "pyarrow zmq pydantic typer"),
    ],
)
def test_imports(module: str, unwanted: str) -> None:
    loaded = python(f"import sys, {module}; print(*[name for name in {unwanted.split()} if name in sys.modules])")
    assert loaded == ""


def test_readers_import_nothing_that_only_producers_need(tmp_path: Path) -> None:
    """Asked as Spark asks: made, planned, read, as a batch and as a stream."""
    store = small_store(tmp_path / "store", rows=20)
    code = """
import sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_commitlog import DefaultSource
source = DefaultSource(options={"path": sys.argv[1], "subscribe": "orders", "startingoffsets": "earliest"})
batch, stream = source.reader(source.schema()), source.streamReader(source.schema())
start = stream.initialOffset()
tasks = batch.partitions(), stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
print(*(sum(rows.num_rows for task in part for rows in batch.read(task)) for part in tasks))
print(*[name for name in ("zmq", "pydantic", "typer", "pandas") if name in sys.modules])
"""
    assert python(code, str(store.path)) == "40 40"


def test_a_running_session_is_used_as_it_is(spark: SparkSession) -> None:
    for key, value in FAST.items():
        assert spark.conf.get(key) == value
    with pytest.warns(UserWarning, match=r"running already .* spark\.sql\.shuffle\.partitions=7"):
        assert commitlog.spark.session("another", master="local[7]") is spark


@pytest.mark.usefixtures("quick_java")
def test_in_anybodys_own_session(tmp_path: Path) -> None:
    """A context made by hand: the format is found with no registration and no jar. `session` gives that context's session
    back, from any thread, with one warning that names all it lacks; it sets nothing."""
    store = small_store(tmp_path / "store", rows=20)
    code = """
import sys, threading, warnings, commitlog.spark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
context = SparkContext("local[1]", "own", conf=SparkConf().set("spark.ui.enabled", "false"))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    asked = threading.Thread(target=lambda: commitlog.spark.session("mine", "local[1]"))
    asked.start()
    asked.join()
text = str(seen[0].message)
spark = SparkSession.builder.getOrCreate()
frame = spark.read.format("commitlog").option("subscribe", "orders").load(sys.argv[1])
print(len(seen), [key for key in sys.argv[2:] if key not in text], frame.count())
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.appName)
spark.stop()
"""
    keys = [*FAST, "spark.sql.shuffle.partitions=1"]
    said = python_noisy(code, str(store.path), *keys, PYSPARK_PYTHON=sys.executable)
    assert said.splitlines() == ["1 [] 40", "200 own"]


@pytest.mark.usefixtures("quick_java")
def test_a_session_is_quiet_and_leaves_the_environment_alone(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", rows=20)
    code = """
import os, sys, commitlog.spark
spark = commitlog.spark.session("quiet", "local[1]", {"spark.ui.enabled": False})
frame = spark.read.format("commitlog").option("subscribe", "orders").load(sys.argv[1])
print(frame.count(), os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"] == sys.executable)
spark.stop()
"""
    runtime = str(find_java().runtime)
    assert python(code, str(store.path), JAVA_HOME=runtime) == f"40 {runtime} True"


def test_cores() -> None:
    assert [_cores(master) for master in ("local", "local[3]", "local-cluster[2,3,512]")] == [1, 3, 6]
    assert _cores("local[*]") == len(os.sched_getaffinity(0))
    assert _cores("spark://somewhere:7077") is None


def test_lag() -> None:
    end = {"@store": "s", "@from": {"a": {"0": 1}}, "a": {"0": 5, "1": 7}}
    latest = {"@store": "s", "a": {"0": 9, "1": 7, "2": 4}, "b": {"0": 1}}
    ours = {"endOffset": end, "latestOffset": json.dumps(latest)}
    other = {"endOffset": {"b": {"0": 3}}, "latestOffset": {"b": {"0": 9}}}
    assert commitlog.spark.lag({"sources": [ours, other]}) == {"a": {0: 4, 1: 0, 2: 4}, "b": {0: 1}}
    assert commitlog.spark.lag(None) == commitlog.spark.lag({"sources": [{"endOffset": None}]}) == {}


@pytest.mark.usefixtures("quick_java")
def test_executors_of_their_own(tmp_path: Path) -> None:
    """A local cluster: planning and reading are in different processes, which start elsewhere."""
    import pyspark

    store = small_store(tmp_path / "store", rows=50)
    home = tmp_path / "spark"  # a local cluster writes into SPARK_HOME/work, whatever SPARK_WORKER_DIR says
    home.mkdir()
    for part in Path(pyspark.__path__[0]).iterdir():
        (home / part.name).symlink_to(part)
    code = """
import os, sys, commitlog.spark
os.chdir(os.path.dirname(sys.argv[1]))
spark = commitlog.spark.session("cluster", "local-cluster[2,1,512]", {"spark.ui.enabled": False})
frame = spark.read.format("commitlog").option("subscribe", "orders,other").option("minPartitions", 4).load("store")
print(frame.count(), frame.rdd.getNumPartitions(), spark.conf.get("spark.sql.shuffle.partitions"))
spark.stop()
"""
    assert python(code, str(store.path), SPARK_HOME=str(home)) == "200 4 2"

"""The cost of imports, the settings of a session, and the lag of a progress.

Executors are in processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyspark
import pytest
from pyspark.errors import PySparkException

import commitlog
import commitlog.spark
from commitlog.spark.launching.java import find_java
from commitlog.spark.launching.sessions import CHECKPOINTS, FAST, _cores
from commitlog.spark.launching.worker_python import worker_python
from tests.builders.hand_made import BEGIN_MS, small_store
from tests.namespaces import on_a_host_called
from tests.nightly import by_url_nightly
from tests.served import is_by_url, place_of
from tests.spark_session import spark_home
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__path__[0])
OF_OTHERS = re.compile(r"^(NOTE: )?Picked up \w*JAVA\w*OPTIONS: | WARN Master: App \S+ requires more resource than ")
"""Java says the first one of any options. Spark's master says the other one to a program that is
quicker than its workers, and takes them when they come.
"""


def python(code: str, *arguments: str, program: str | Path = sys.executable, **environment: str) -> str:
    """Standard output of a program; it must succeed and write nothing to standard error."""
    done = subprocess.run(
        [program, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"} | environment,  # a shell warns of one it lacks
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = [line for line in done.stderr.splitlines() if not OF_OTHERS.search(line)]
    assert (done.returncode, said) == (0, [])
    return done.stdout.strip()


def python_noisy(code: str, *arguments: str, **environment: str) -> str:
    """The same for a session of somebody's own, which says on standard error what Spark says."""
    return python("import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n" + code, *arguments, **environment)


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_java")
def test_a_machine_whose_name_nobody_knows(tmp_path: Path) -> None:
    """As in a container without a network, nobody knows the machine's name.

    By itself, Spark looks the name up and does not start.
    """
    code = "import commitlog.spark; print(commitlog.spark.session('lonely').range(3).count())"

    def start() -> None:
        assert python(code, XDG_CACHE_HOME=str(tmp_path)) == "3"  # the user may be root there, and have no other place

    on_a_host_called("name-that-nobody-knows.invalid", start)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("commitlog.spark", "pyspark pyarrow numpy.random zmq"),
        ("pyspark_commitlog", "numpy pyarrow zmq pydantic typer pandas rich psutil"),
        ("commitlog.spark.source, commitlog.spark.sink", "zmq pydantic typer pandas rich psutil"),
        ("commitlog.spark.launching.daemon", "pyarrow zmq pydantic typer"),
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


def test_what_is_wrong_with_the_package_is_said_when_the_format_is_used(tmp_path: Path) -> None:
    """If a module fails at its import, Spark acts as if it did not exist, and gives no reason."""
    (tmp_path / "orjson.py").write_text("raise ImportError('this orjson is broken')")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pyspark_commitlog import DefaultSource
try:
    DefaultSource(options={})
except Exception as error:
    print(error)
"""
    assert "this orjson is broken" in python(code, str(tmp_path))


def test_a_running_session_is_used_as_it_is(spark: SparkSession) -> None:
    for key, value in FAST.items():
        assert spark.conf.get(key) == value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert commitlog.spark.session("another", "local[2]", {"spark.ui.enabled": False}) is spark
    with pytest.warns(
        UserWarning, match=r"running already .* without spark\.ui\.enabled=true, spark\.master=local\[7\]$"
    ):
        assert commitlog.spark.session("another", "local[7]", {"spark.ui.enabled": True}) is spark


@pytest.mark.nightly
@by_url_nightly
@pytest.mark.usefixtures("both_ways", "quick_java")
def test_under_spark_submit(tmp_path: Path) -> None:
    """What `spark-submit` is told wins over our defaults, and what `session` is told over both.

    Without a name, Spark takes that of the program.
    """
    program = tmp_path / "job.py"
    program.write_text(f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import commitlog.spark
spark = commitlog.spark.session(config={{"spark.sql.session.timeZone": "UTC"}})
names = ["shuffle.partitions", "streaming.checkpointFileManagerClass", "session.timeZone"]
print(spark.sparkContext.master, spark.sparkContext.appName, *(spark.conf.get(f"spark.sql.{{name}}") for name in names))
print(spark.read.format("commitlog").option("subscribe", "orders").load(sys.argv[1]).count())
spark.stop()
""")
    confs = ["spark.sql.shuffle.partitions=3", "spark.ui.enabled=false", "spark.sql.session.timeZone=CET"]
    settings = ["--master", "local[1]", *(f"--conf={conf}" for conf in confs)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [SPARK / "bin" / "spark-submit", *settings, program, place_of(small_store(tmp_path / "store", rows=20).path)],
        env=os.environ | {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.splitlines() == [f"local[1] job.py 3 {CHECKPOINTS} UTC", "40"], done.stderr


@by_url_nightly
@pytest.mark.usefixtures("both_ways", "quick_java")
def test_in_anybodys_own_session(tmp_path: Path) -> None:
    """In a context made by hand, the format is found without registration and without a jar.

    `session` returns that context's session, from any thread, with one warning that names
    everything that it lacks. It sets nothing.
    """
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
    variables = {"PYSPARK_PYTHON": worker_python(SPARK, same_machine=True), "JAVA_HOME": str(find_java().home)}
    said = python_noisy(code, place_of(store.path), *keys, **variables)
    assert said.splitlines() == ["1 [] 40", "200 own"]


@pytest.mark.nightly  # daily others start sessions of their own: test_driver_killed.py, the demo, the main job
@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("defaults", ["PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"])
def test_a_session_is_quiet_and_leaves_the_environment_alone(
    defaults: str, tmp_path: Path, shm_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody stops the session, and its Python's path has a space.

    Spark's own look for Python does not find it there. The path of a socket must be short. A file
    of defaults says what the call does not say. A time without a zone is in the session's. With a
    SPARK_CONF_DIR the JVM has another class path, and starts without the archive of classes: that
    takes twice as long.
    """
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)  # the session of this worker has set it
    store = small_store(tmp_path / "store", rows=20)
    home = tmp_path / "my project"
    venv.create(home, symlinks=True)
    code = """
import os, sys, commitlog.spark
config = {"spark.ui.enabled": False, "spark.python.unix.domain.socket.dir": sys.argv[2]}
config["spark.sql.session.timeZone"] = "Asia/Tokyo"
spark = commitlog.spark.session("quiet", config=config)
options = {"subscribe": "orders", "startingOffsets": sys.argv[3]}
frame = spark.read.format("commitlog").options(**options).load(sys.argv[1])
sockets = len(os.listdir(sys.argv[2]))
print(frame.count(), os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"], sockets > 0, sep="; ")
print(spark.sparkContext.master, spark.sparkContext.appName, spark.conf.get("spark.sql.shuffle.partitions"))
"""
    file = tmp_path / "spark-defaults.conf"
    file.write_text("spark.master local[1]\nspark.app.name loud\n")
    said_outside = {"PYSPARK_SUBMIT_ARGS": f"--properties-file {file} pyspark-shell", "SPARK_CONF_DIR": str(tmp_path)}
    runtime = str(find_java().runtime)
    tenth = datetime.fromtimestamp(BEGIN_MS / 1000 + 20, ZoneInfo("Asia/Tokyo"))
    said = python(
        code,
        str(store.path),
        str(shm_root),
        tenth.strftime("%Y-%m-%dT%H:%M:%S"),
        program=home / "bin" / "python",
        JAVA_HOME=runtime,
        **{defaults: said_outside[defaults]},
        PYTHONPATH=f"{ROOT}{os.pathsep}{sysconfig.get_path('purelib')}",
    )
    first, second = said.splitlines()
    assert second == "local[1] quiet 1"
    count, java, script, had_sockets = first.split("; ")
    assert (count, java, had_sockets) == ("20", runtime, "True")
    assert Path(script).read_text().endswith(f"exec '{home}/bin/python' \"$@\"\n")
    wait_until(lambda: not list(shm_root.iterdir()), "no socket is left")


def worker_modules(command: str, *path: str) -> list[str]:
    """Where a worker finds PySpark and py4j, and the PYTHONPATH that it has left of `path`."""
    code = "import os, py4j, pyspark; print(pyspark.__file__, py4j.__file__, os.environ['PYTHONPATH'], sep='; ')"
    return python(code, program=command, PYTHONPATH=os.pathsep.join(path)).split("; ")


def test_workers_import_the_installed_pyspark(tmp_path: Path) -> None:
    """Spark's archives have no bytecode and are left out of the path. The user's own are kept."""
    archives = [f"{SPARK}/python/lib/{name}" for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]
    own = str(tmp_path / "my own.zip")
    command = worker_python(SPARK, same_machine=True)
    found, py4j, path = worker_modules(command, *archives, f"{SPARK}/jars/spark-core.jar", own, str(ROOT))
    assert (found, path) == (pyspark.__file__, f"{own}:{ROOT}")
    assert py4j.endswith("/site-packages/py4j/__init__.py")


def test_workers_import_sparks_archive_where_it_may_differ(tmp_path: Path) -> None:
    """That is the case on other machines, and for a Spark that is not the installed one."""
    assert worker_python(SPARK, same_machine=False) == sys.executable
    (tmp_path / "python" / "lib").mkdir(parents=True)
    assert worker_python(tmp_path, same_machine=True) == sys.executable


def test_tasks_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def failure(action: Callable[[], object]) -> str:
    """What Spark says of an action that fails, without its empty lines and Java's."""
    with pytest.raises(PySparkException) as caught:
        action()
    return "\n".join(line for line in str(caught.value).splitlines() if line.strip())


def test_our_errors_have_no_traceback(spark: SparkSession, tmp_path: Path) -> None:
    """A user's own error keeps its traceback."""
    store = small_store(tmp_path / "store", rows=20)
    orders = spark.read.format("commitlog").option("subscribe", "orders")
    planned = failure(lambda: orders.option("endingOffsets", "soon").load(str(store.path)))
    assert "Traceback" not in planned
    assert "OptionError: option endingOffsets" in planned.splitlines()[0]
    batch_only = spark.readStream.format("commitlog").option("subscribe", "orders").option("endingOffsets", "latest")
    query = batch_only.load(str(store.path)).writeStream.format("noop").start()
    streamed = failure(query.awaitTermination)
    assert "Traceback" not in streamed
    assert "option endingOffsets: a stream has no end" in streamed
    users = spark.sparkContext.parallelize([0], 1).map(lambda number: 1 / number)
    with pytest.raises(Exception, match="Traceback"):
        users.collect()


KILLED_WORKER = """
import os, signal
import commitlog.spark

spark = commitlog.spark.session("killed", "local[1]", {"spark.ui.enabled": False})

def sink(frame, batch):
    spark.sparkContext.parallelize([0], 1).map(lambda _: os.kill(os.getpid(), signal.SIGKILL)).collect()

query = spark.readStream.format("rate").load().writeStream.foreachBatch(sink).start()
try:
    query.awaitTermination()
except Exception as error:
    assert "Python worker exited unexpectedly" in str(error)
"""


@pytest.mark.nightly  # it has a JVM of its own for its errors
def test_a_killed_worker_prints_no_frames_of_java(quick_java: None) -> None:
    """Spark's log says what has failed, and why; an error's text holds a stack of Java's, too."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", KILLED_WORKER], env=environment, stderr=subprocess.PIPE, timeout=200)
    said = done.stderr.decode().splitlines()
    assert done.returncode == 0, said
    assert "Python worker exited unexpectedly" in "".join(said)
    assert any(" ERROR MicroBatchExecution: " in line for line in said)
    assert any(line.startswith("Caused by: ") for line in said)
    assert [line for line in said if re.match(r"\s+(at |\.\.\. \d)|$", line)] == []


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


@pytest.mark.nightly  # daily a path becomes absolute (test_options.py), and planning has a process of its own
@by_url_nightly
@pytest.mark.usefixtures("both_ways", "quick_java")
def test_executors_of_their_own(tmp_path: Path) -> None:
    """A local cluster: planning and reading are in different processes, which start elsewhere."""
    store = small_store(tmp_path / "store", rows=50)
    code = """
import os, sys, commitlog.spark
os.chdir(os.path.dirname(sys.argv[1]))
spark = commitlog.spark.session("cluster", "local-cluster[1,2,512]", {"spark.ui.enabled": False})
frame = spark.read.format("commitlog").option("subscribe", "orders,other").option("minPartitions", 4).load(sys.argv[2])
print(frame.count(), frame.rdd.getNumPartitions(), spark.conf.get("spark.sql.shuffle.partitions"))
spark.stop()
"""
    home = spark_home(tmp_path / "spark")
    place = place_of(store.path) if is_by_url() else "store"
    assert python(code, str(store.path), place, SPARK_HOME=str(home)) == "200 4 2"


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone master with two workers of one core.

    Each worker is a process with its own directory.
    """
    known = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(tmp_path / "spark/bin/spark-class"), *words, "--host", "127.0.0.1", "--webui-port", "0"]
        with log.open("wb") as output:
            started.append(subprocess.Popen(command, env=known, cwd=tmp_path, stdout=output, stderr=output))
        return log

    def found(log: Path, pattern: str) -> str:
        match = re.search(pattern, log.read_text())
        return match[0] if match else ""

    try:
        master = start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
        url = wait_until(lambda: found(master, r"spark://127\.0\.0\.1:[1-9]\d*"), "the master listens")
        for name in ("one", "two"):
            options = ["--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / name)]
            log = start(name, "org.apache.spark.deploy.worker.Worker", *options, url)
            wait_until(partial(found, log, "Successfully registered with master"), "a worker is there")
        yield url
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@by_url_nightly
@pytest.mark.usefixtures("both_ways", "quick_java")
def test_a_standalone_master_with_two_workers(tmp_path: Path, standalone: str) -> None:
    """Both workers read, and write through the stages of their machine."""
    code = """
import os, sys, commitlog.spark
os.chdir(sys.argv[1])
config = {"spark.ui.enabled": False, "spark.executor.memory": "500m", "spark.executor.cores": 1}
spark = commitlog.spark.session("standalone", sys.argv[2], config)
rows = spark.range(0, 20000, 1, 4).selectExpr("CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key")
rows.write.format("commitlog").option("topic", "t").mode("append").save(sys.argv[3])
frame = spark.read.format("commitlog").option("subscribe", "t").option("minPartitions", 8).load(sys.argv[3])
read = frame.rdd.map(lambda row: (os.environ["SPARK_EXECUTOR_DIRS"], bytes(row.value)))
print(len(set(read.values().collect())), len(set(read.keys().collect())), frame.count())
spark.stop()
"""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 20}}):
        place = place_of(tmp_path / "store") if is_by_url() else "store"
        said = python_noisy(code, str(tmp_path), standalone, place, SPARK_LOCAL_IP="127.0.0.1")
    assert said == "20000 2 20000"

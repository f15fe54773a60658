"""A SparkSession for local work: quick batches, a quiet terminal, the right Java and Python."""

from __future__ import annotations

import atexit
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.disk.memory_limit import memory_limit
from commitlog.planning import session_zone
from commitlog.spark.launching.class_data import sharing_options
from commitlog.spark.launching.java import cache_directory, find_java
from commitlog.spark.launching.jvm_memory import driver_memory
from commitlog.spark.launching.jvm_reader import use_if_possible
from commitlog.spark.launching.outside_settings import DRIVER_MEMORY, JAVA_OPTIONS, MASTER, NAME, outside_settings
from commitlog.spark.launching.spark_home import spark_home
from commitlog.spark.launching.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_WORKER_PYTHON = "spark.pyspark.python"
_SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", _SUBMIT_OPTIONS)

FAST = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}
"""These two settings and that of the shuffle partitions take a micro-batch from 240 to 140 ms."""


def session(
    app_name: str | None = None, master: str | None = None, config: Mapping[str, Any] | None = None
) -> SparkSession:
    """A SparkSession with the settings that make micro-batches quick and the terminal quiet.

    The settings of this call win. After them come the settings that were made outside the program:
    by arguments of `spark-submit`, in PYSPARK_SUBMIT_ARGS, in `spark-defaults.conf`. A setting that
    nobody has made gets a good default: the name `commitlog`, the master `local[*]`, and the
    settings of `defaults`. With Spark Connect (SPARK_REMOTE) there are no such defaults, because
    the server has its own settings. A server that this process starts (SPARK_REMOTE=local) gets its
    Java and its Python from here.

    If a session is already running, it is returned as it is, with one warning that names the
    settings that it lacks. If PYSPARK_PYTHON is not set, it is set in this process's environment. A
    local session and its web page listen on this machine only; SPARK_LOCAL_IP names another
    address. Raises JavaNotFound.

    Spark's JVM reads stores itself. Where it can't, Python reads, and a warning says why
    (jvm_reader.py). COMMITLOG_SPARK_JAR=off in the environment has Python read.

    The first session of a Java and a Spark leaves an archive of classes in the user's cache. With
    it, later sessions start more quickly (class_data.py). Java's incubator module, which only MLlib
    uses, is left out, and so is Java's warning about it. To have both again, set
    `spark.driver.extraJavaOptions` to `--add-modules=jdk.incubator.vector`.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    wanted = _wanted(app_name, master, config)
    if SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
        _warn_of_missing(running, wanted)
        return running
    # At its first call of Java, PySpark imports pandas for a look, and warns of pandas 3.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning, r"pyspark\.testing\.")
    given = _outside() | wanted
    builder = SparkSession.builder.config(map={**wanted})
    if _is_connect(given):
        with _environment(**_server_variables(given)):
            return builder.getOrCreate()
    chosen = given.get(MASTER, "local[*]")
    for key, value in defaults(chosen).items():
        if key not in given:
            builder = builder.config(key, value)
    _choose_python(chosen, given)
    zone = {session_zone.VARIABLE: given[session_zone.SETTING]} if session_zone.SETTING in given else {}
    with _environment(**({} if _java_runs() else _launch_variables(chosen, given) | zone)):
        made = builder.getOrCreate()
    _remove_socket_at_exit(made)
    use_if_possible(made)
    return made


def defaults(master: str) -> dict[str, str]:
    """The default settings of a session with this master, for all that nobody has set."""
    return {MASTER: master, NAME: "commitlog"} | _fast(master) | _quiet(master)


def _wanted(app_name: str | None, master: str | None, config: Mapping[str, Any] | None) -> dict[str, str]:
    """The caller's settings, in Spark's spelling."""
    wanted = {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (config or {}).items()
    }
    named = {NAME: app_name, MASTER: master}
    return wanted | {key: value for key, value in named.items() if value is not None}


def _java_runs() -> bool:
    """Whether `spark-submit` or `pyspark` has started Java, and then this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _outside() -> dict[str, str]:
    """The settings that were made outside the program."""
    if not _java_runs():
        return outside_settings(spark_home())
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _is_connect(given: Mapping[str, str]) -> bool:
    """Whether the session is one of Spark Connect."""
    mode = given.get("spark.api.mode") or os.environ.get("SPARK_API_MODE", "")
    is_remote = any(name in os.environ for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"))
    return is_remote or "spark.remote" in given or mode.lower() == "connect"


def _choose_python(master: str, given: Mapping[str, str]) -> None:
    """Sets PYSPARK_PYTHON, unless somebody has."""
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = given.get(_WORKER_PYTHON) or worker_python(
            spark_home(), same_machine=master.startswith("local")
        )


def _server_variables(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server of Spark Connect that this process starts."""
    where = given.get("spark.remote") or os.environ.get("SPARK_REMOTE") or given.get(MASTER, "local")
    if where.startswith("sc:"):
        return {}  # it runs already
    _choose_python(where, given)
    return {"JAVA_HOME": str(find_java().home)} | _submit_options("")


def _launch_variables(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment that Java is started in.

    Its options come before those that users set as `spark.driver.extraJavaOptions`, and the later
    one wins. A query that is stopped inside foreachBatch needs the larger stacks: Spark matches a
    regular expression against its long description.
    """
    java = find_java()
    said = " ".join([given.get(JAVA_OPTIONS, ""), *(os.environ.get(name, "") for name in _JAVA_VARIABLES)])
    shared = sharing_options(cache_directory(), java.runtime, spark_home(), said)
    variables = {"JAVA_HOME": str(java.home)} | _submit_options(f"-Xss8m {shared} ") | _address(master)
    memory = driver_memory(memory_limit())
    if memory is not None and DRIVER_MEMORY not in given:
        variables["SPARK_DRIVER_MEMORY"] = memory
    return variables


def _submit_options(more: str) -> dict[str, str]:
    """The variable with Java's options: ours for Java's log, then `more`, then the user's own."""
    options = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} {more}{os.environ.get(_SUBMIT_OPTIONS, '')}"
    return {_SUBMIT_OPTIONS: options.strip()}


def _remove_socket_at_exit(session: SparkSession) -> None:
    """Removes the socket of PySpark's accumulators when this process ends.

    PySpark removes it when a session is stopped, but most scripts end without that.
    """
    address = getattr(getattr(session.sparkContext, "_accumulatorServer", None), "server_address", None)
    if isinstance(address, str):
        atexit.register(Path(address).unlink, missing_ok=True)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Sets environment variables for Spark's JVM.

    Afterwards they are as before, because other programs that this process starts need a whole
    Java.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _fast(master: str) -> dict[str, str]:
    """The settings that make a session fast. Users' own sessions could have them too."""
    cores = _cores(master)
    return FAST | ({"spark.sql.shuffle.partitions": str(cores)} if cores else {})


def _cores(master: str) -> int | None:
    """The cores of a local master, or None for a cluster, whose size is not known here."""
    if master == "local" or re.fullmatch(r"local\[\*(,.*)?\]", master):
        return 1 if master == "local" else len(os.sched_getaffinity(0))
    if found := re.fullmatch(r"local\[(\d+)(,.*)?\]", master):
        return int(found[1])
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        return int(found[1]) * int(found[2])
    return None


def _address(master: str) -> dict[str, str]:
    """The environment variable that tells a local Spark its address.

    Without it, Spark looks up this machine's own name, and does not start if nobody knows the name.
    """
    return {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if _is_local(master) else {}


def _is_local(master: str) -> bool:
    """Whether all of Spark is in one JVM. Workers of a local cluster need the machine's address."""
    return master == "local" or master.startswith("local[")


def _quiet(master: str) -> dict[str, str]:
    """The settings that keep needless lines out of the terminal."""
    quiet = {
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "commitlog.spark.launching.daemon",
    }
    if _is_local(master):
        quiet |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    if found := re.fullmatch(r"local-cluster\[.*,\s*(\d+)\s*\]", master):
        quiet["spark.executor.memory"] = f"{found[1]}m"  # Spark's default is more than a worker of this size has
    return quiet


def _warn_of_missing(running: SparkSession, wanted: Mapping[str, str]) -> None:
    """Warns if the running session lacks settings of the caller, or settings that make it fast."""
    context = running.sparkContext
    lacking = {key: value for key, value in wanted.items() if key != NAME and running.conf.get(key, None) != value}
    lacking |= {key: value for key, value in _fast(str(context.master)).items() if not context.getConf().contains(key)}
    if lacking:
        text = ", ".join(f"{key}={value}" for key, value in lacking.items())
        warnings.warn(f"a SparkSession is running already and is used as it is, without {text}", stacklevel=3)

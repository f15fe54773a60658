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

from commitlog.spark.launching import session_zone
from commitlog.spark.launching.class_data import sharing_options
from commitlog.spark.launching.java import Java, cache_directory, find_java
from commitlog.spark.launching.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

FAST = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}
"""These two settings and that of the shuffle partitions take a micro-batch from 240 to 140 ms."""


def session(
    app_name: str = "commitlog", master: str = "local[*]", config: Mapping[str, Any] | None = None
) -> SparkSession:
    """A SparkSession with the settings that make micro-batches quick and the terminal quiet.

    `config` is added, and wins over these settings. If a session is already running, it is returned
    as it is, with one warning that names what it lacks. If PYSPARK_PYTHON is not set, it is set in
    this process's environment. A local session and its web page listen on this machine only;
    SPARK_LOCAL_IP names another address. Raises JavaNotFound.

    The first session of a Java and a Spark leaves an archive of classes in the user's cache. With
    it, later sessions start more quickly (class_data.py). Java's incubator module, which only MLlib
    uses, is left out, and so is Java's warning about it. To have both again, set
    `spark.driver.extraJavaOptions` to `--add-modules=jdk.incubator.vector`.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    settings = _settings(master)
    if SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
        _warn_of_missing(running, settings)
        return running
    # At its first call of Java, PySpark imports pandas for a look, and warns of pandas 3.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning, r"pyspark\.testing\.")
    java = find_java()
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = worker_python(_spark_home(), same_machine=master.startswith("local"))
    settings |= _quiet(master)
    for key, value in (config or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        settings[key] = f"{settings[key]} {text}" if key.endswith("extraJavaOptions") and key in settings else text
    settings[_JAVA_OPTIONS] += f" {_class_data(java, settings)}"
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    zone = {session_zone.VARIABLE: settings[session_zone.SETTING]} if session_zone.SETTING in settings else {}
    with _environment(JAVA_HOME=str(java.home), **_address(master), **zone):
        made = builder.getOrCreate()
    _remove_socket_at_exit(made)
    return made


def _remove_socket_at_exit(session: SparkSession) -> None:
    """Removes the socket of PySpark's accumulators when this process ends.

    PySpark removes it when a session is stopped, but most scripts end without that.
    """
    address = getattr(getattr(session.sparkContext, "_accumulatorServer", None), "server_address", None)
    if isinstance(address, str):
        atexit.register(Path(address).unlink, missing_ok=True)


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home as find_spark_home

    return Path(find_spark_home())


def _class_data(java: Java, settings: Mapping[str, str]) -> str:
    given = " ".join([settings[_JAVA_OPTIONS], *(os.environ.get(name, "") for name in _JAVA_VARIABLES)])
    return sharing_options(cache_directory(), java.runtime, _spark_home(), given)


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


def _settings(master: str) -> dict[str, str]:
    """The settings that make it fast. Sessions that users make themselves could have them too."""
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
    """Whether everything is in one JVM. Workers of a local cluster have the machine's address."""
    return master == "local" or master.startswith("local[")


def _quiet(master: str) -> dict[str, str]:
    """The settings that keep needless lines out of the terminal."""
    logging = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    quiet = {
        "spark.ui.showConsoleProgress": "false",
        _JAVA_OPTIONS: logging,
        "spark.python.daemon.module": "commitlog.spark.launching.daemon",
    }
    if _is_local(master):
        quiet |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    if found := re.fullmatch(r"local-cluster\[.*,\s*(\d+)\s*\]", master):
        quiet["spark.executor.memory"] = f"{found[1]}m"  # Spark's default is more than a worker of this size has
    return quiet


def _warn_of_missing(running: SparkSession, settings: Mapping[str, str]) -> None:
    missing = [f"{key}={value}" for key, value in settings.items() if running.conf.get(key, None) != value]
    if missing:
        warnings.warn(
            f"a SparkSession is running already and is used as it is; without {', '.join(missing)} it is slower",
            stacklevel=3,
        )

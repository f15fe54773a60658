"""A SparkSession that suits local work: quick batches, few words, the right Java and Python."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

FAST = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}
"""These two and the shuffle partitions take a micro-batch from 240 ms to 140."""


def session(
    app_name: str = "commitlog", master: str = "local[*]", config: Mapping[str, Any] | None = None
) -> SparkSession:
    """A SparkSession with the settings that make micro-batches quick and the terminal quiet.

    `config` is added and wins. A session that runs already is returned as it is, with one warning that names what it
    lacks. Sets JAVA_HOME and, where it is not set, PYSPARK_PYTHON in this process's environment. Raises JavaNotFound.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    settings = _settings(master)
    if running is not None:
        _warn_of_missing(running, settings)
        return running
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings |= _quiet(master)
    for key, value in (config or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        settings[key] = f"{settings[key]} {text}" if key.endswith("extraJavaOptions") and key in settings else text
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _settings(master: str) -> dict[str, str]:
    """What makes it fast: settings that a session of anybody's could have as well."""
    cores = _cores(master)
    return FAST | ({"spark.sql.shuffle.partitions": str(cores)} if cores else {})


def _cores(master: str) -> int | None:
    """Cores of a local master; None for a cluster, whose size is not known here."""
    if master == "local" or re.fullmatch(r"local\[\*(,.*)?\]", master):
        return 1 if master == "local" else len(os.sched_getaffinity(0))
    if found := re.fullmatch(r"local\[(\d+)(,.*)?\]", master):
        return int(found[1])
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        return int(found[1]) * int(found[2])
    return None


def _quiet(master: str) -> dict[str, str]:
    """What keeps the terminal free of lines that nobody can do anything about."""
    logging = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    quiet = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": logging,
        "spark.python.daemon.module": "commitlog.spark.daemon",
    }
    if master == "local" or master.startswith("local["):  # a local cluster's workers have this machine's own address
        quiet |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    if found := re.fullmatch(r"local-cluster\[.*,\s*(\d+)\s*\]", master):
        quiet["spark.executor.memory"] = f"{found[1]}m"  # Spark's default asks for more than such a worker has
    return quiet


def _warn_of_missing(running: SparkSession, settings: Mapping[str, str]) -> None:
    missing = [f"{key}={value}" for key, value in settings.items() if running.conf.get(key, None) != value]
    if missing:
        warnings.warn(
            f"a SparkSession is running already and is used as it is; without {', '.join(missing)} it is slower",
            stacklevel=3,
        )

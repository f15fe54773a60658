"""On which machine, with which versions, and on which file system a run was made."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import psutil

from scripts.benchmarks import kafka_broker

_PACKAGES = (
    "commitlog",
    "numpy",
    "pyzmq",
    "zlib-ng",
    "pyarrow",
    "pyspark",
    "confluent-kafka",
    "lmdb",
    "redis",
    "faster-fifo",
)


_PROGRAMS = (("redis-server", "--version"), ("java", "-version"))


def describe(directory: Path) -> dict[str, Any]:
    """Everything of the machine that numbers depend on; nothing that names it."""
    memory = os.statvfs("/dev/shm")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_bytes": psutil.virtual_memory().total,
        "shared_memory_bytes": memory.f_blocks * memory.f_frsize,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "load": [round(value, 2) for value in os.getloadavg()],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of the packages that are installed, of SQLite, and of the servers that packages talk to."""
    found = {"sqlite": sqlite3.sqlite_version}
    for name, version in (("Kafka's broker", kafka_broker.version()), *map(_program, _PROGRAMS)):
        if version:
            found[name] = version
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def file_system(directory: Path) -> str:
    """Kind and options of the file system that the files of the benchmarks lie on."""
    here = os.stat(directory).st_dev
    for partition in reversed(psutil.disk_partitions(all=True)):
        try:
            if os.stat(partition.mountpoint).st_dev == here:
                return f"{partition.fstype} ({partition.opts})"
        except OSError:
            continue
    return "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _program(command: tuple[str, str]) -> tuple[str, str]:
    """A program's name, and the first number it says of itself; empty where it is not there."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    except OSError:
        return command[0], ""
    number = re.search(r"\d+(\.\d+)+", done.stdout)
    return command[0], number[0] if number else ""

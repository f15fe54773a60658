"""The machine, the versions and the file system of a run."""

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

import commitlog
from scripts.benchmarks import java_servers, kafka_broker, rocketmq_pair

_PACKAGES = (
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
    """All facts of the machine that numbers depend on; nothing that identifies it."""
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
    """Versions of the packages that are installed, of SQLite, and of the servers."""
    found = {"commitlog": commitlog.__version__, "sqlite": sqlite3.sqlite_version}
    brokers = [
        ("Kafka's broker", java_servers.version(kafka_broker.POM, "kafka_2.13")),
        ("RocketMQ's broker", java_servers.version(rocketmq_pair.POM, "rocketmq-broker")),
    ]
    for name, version in (*brokers, *map(_program, _PROGRAMS)):
        if version:
            found[name] = version
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def file_system(directory: Path) -> str:
    """Kind and options of the file system that holds the files of the benchmarks."""
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
    """A program's name, and the first number that it prints of itself; empty without it."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
        )
    except OSError:
        return command[0], ""
    number = re.search(r"\d+(\.\d+)+", done.stdout)
    return command[0], number[0] if number else ""

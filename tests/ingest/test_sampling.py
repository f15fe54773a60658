"""Samples are JSON of this machine, and several producers share its processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import psutil
import pytest

from commitlog.ingest.sampling import MachineSource, program_name


def kinds(source: MachineSource) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {}
    for item in source.take(100_000):
        sample = orjson.loads(item.value)
        found.setdefault(sample["kind"], []).append(sample)
    return found


def test_everything_is_sampled() -> None:
    """CPU, memory, networks, and every process, this one among them."""
    found = kinds(MachineSource())
    assert {"cpu", "memory", "network", "process"} <= found.keys()
    assert os.getpid() in {sample["pid"] for sample in found["process"]}
    assert len(found["cpu"]) == len(psutil.cpu_percent(percpu=True))
    assert all(isinstance(sample["sampled_at"], float) for samples in found.values() for sample in samples)


def test_producers_share_the_machine() -> None:
    """No process is sampled by two of them, none by nobody."""
    parts = [{sample["pid"] for sample in kinds(MachineSource(share, 2)).get("process", [])} for share in range(2)]
    assert not parts[0] & parts[1]
    assert os.getpid() in parts[0] | parts[1]


def test_there_is_always_a_next_message() -> None:
    """More messages than samples: they go round, however few are wanted at a time."""
    source = MachineSource()
    for limit in (1, 7, 256) * 50:
        source.tick()
        items = source.take(limit)
        assert 0 < len(items) <= limit


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -P -m commitlog.ingest.sampling 9", "commitlog.ingest.sampling"),
        ("python3.11 -um http.server", "http.server"),
        ("python -W ignore -Xdev /opt/tools/clean.py --now", "clean.py"),
        ("python -m pyspark.daemon pyspark.worker", "pyspark worker"),
        ("python -m commitlog.spark.launching.daemon pyspark.worker", "pyspark worker"),
        ("python -c pass", "python -c"),
        ("python --check-hash-based-pycs=never /usr/bin/borg", "borg"),
        ("python", "python"),
        ("python -m", "python"),
        ("", "python"),
        ("java -cp a.jar org.apache.spark.deploy.SparkSubmit pyspark-shell", "Spark (java)"),
        ("java -jar broker.jar", "java"),
    ],
)
def test_interpreters_are_called_by_what_they_run(command: str, name: str) -> None:
    """Python by its script or module, Spark's processes by what they do."""
    words = command.split()
    assert program_name("java" if command.startswith("java") else "python", words) == name


def test_any_name_can_be_sampled(tmp_path: Path) -> None:
    """The kernel takes any byte in a name. The sample is JSON all the same."""
    program = tmp_path / os.fsdecode(b'od\xff"d')
    shutil.copy(shutil.which("cat") or "", program)
    with (
        subprocess.Popen([program], stdin=subprocess.PIPE) as odd,
        subprocess.Popen([sys.executable, "-m", "code", "-q"], stdin=subprocess.PIPE) as module,
    ):
        names = {sample["pid"]: sample["name"] for sample in kinds(MachineSource())["process"]}
    assert names[odd.pid] == 'od?"d'
    assert names[module.pid] == "code"

"""Samples are JSON of this machine, and several producers share its processes."""

from __future__ import annotations

import os

import orjson
import psutil

from commitlog.ingest.sampling import MachineSource


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

"""What `import commitlog` gives a user: names that load when they are asked for, and types."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

import commitlog

ROOT = Path(__file__).parents[2]
MODULES = ("config", "errors", "logging", "spark", "tracing")
DOORS = (commitlog.Store, commitlog.Producer, commitlog.Reader, commitlog.Receipt, commitlog.BatchReceipt)

GOOD = """
import asyncio
import commitlog

with commitlog.Store.open("s", config={"store": {"flush_disk_type": "SYNC_FLUSH"}}) as store:
    producer: commitlog.Producer = store.producer()
    receipt: commitlog.Receipt = producer.send("t", b"x", key="k", headers={"a": "b"}, tags="g")
    batch: commitlog.BatchReceipt = producer.send_batch("t", [b"x", b"y"], keys=["a", None])
    number: int = receipt.partition + receipt.offset + len(batch)
    level: commitlog.Level = "committed"
    status: commitlog.PutMessageStatus = receipt.wait(level, timeout=5)
    lane: commitlog.LaneStatistics = producer.statistics()
    whole: commitlog.StoreStatistics = store.statistics()
    rates: tuple[commitlog.Throughput, ...] = whole.throughput
    last: commitlog.Message | None = producer.last("t")
    report: commitlog.StopReport = store.close()
    config = commitlog.Config(store=commitlog.config.StoreConfig(max_lanes=2))
try:
    for message in commitlog.Reader("s", topic="t"):
        text: str = message.topic + str(message.partition) + message.value.decode() + message.headers["a"]
except commitlog.errors.StoreNotFound as error:
    base: commitlog.CommitLogError = error

async def wait() -> commitlog.PutMessageStatus:
    return await receipt

print(asyncio.run(wait()), commitlog.__version__)
"""
BAD = {
    "commitlog.Prodcuer('s')": "Prodcuer",
    "commitlog.erors": "erors",
    "commitlog.Producer('s').send('t', 'text')": "arg-type",
    "commitlog.Producer('s').send_batch('t', [b'x'], 'key')": "positional",
    "commitlog.Producer('s').send('t', b'x', properties={})": "properties",
    "commitlog.Producer('s').send_batch('t', 'text')": "arg-type",
    "commitlog.Producer('s').send('t', b'x').wait('flusht')": "arg-type",
    "len(commitlog.Producer('s').send('t', b'x'))": "Sized",
    "commitlog.Producer('s').send('t', b'x')[0]": "not indexable",
    "commitlog.Producer('s').last('t').value": "None",
}


def test_every_name_loads() -> None:
    for name in (*commitlog.__all__, *MODULES):
        assert getattr(commitlog, name) is not None
    assert {name for name in dir(commitlog) if not name.startswith("_")} == {*commitlog.__all__, *MODULES} - {
        "__version__"
    }
    with pytest.raises(AttributeError, match="Prodcuer"):
        commitlog.Prodcuer  # type: ignore[attr-defined]  # noqa: B018
    assert commitlog.CommitLogError is commitlog.errors.CommitLogError


def test_one_place_says_the_version() -> None:
    """pyproject.toml takes it from the package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in settings["project"]
    assert settings["tool"]["hatch"]["version"]["path"] == "commitlog/__init__.py"


def parts(hint: Any) -> Iterator[type]:
    """The classes in a type hint."""
    if isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from parts(part)


def test_every_type_of_a_public_call_is_exported() -> None:
    """Of what it takes and of what it returns, and of the fields of what it returns."""
    known = {getattr(commitlog, name) for name in commitlog.__all__}
    found: set[type] = set()
    for door in DOORS:
        for name, call in vars(door).items():
            function = call.__func__ if isinstance(call, classmethod) else getattr(call, "fget", call)
            if (name == "__init__" or not name.startswith("_")) and callable(function):
                namespace = {**vars(sys.modules[door.__module__]), **vars(commitlog)}
                for hint in get_type_hints(function, globalns=namespace).values():
                    found |= set(parts(hint))
    for kind in [*found]:
        if dataclasses.is_dataclass(kind) and kind is not commitlog.Config:
            for hint in get_type_hints(kind).values():
                found |= set(parts(hint))
    ours = {kind for kind in found if kind.__module__.startswith("commitlog") and not kind.__name__.startswith("_")}
    assert {commitlog.BatchReceipt, commitlog.Throughput, commitlog.StopReport} <= ours
    assert ours <= known, "export these from commitlog"


CACHE = ROOT / ".mypy_cache" / "a-users-program"
"""It stays, because without it mypy takes ten seconds of a core."""


def test_a_users_program_is_checked(tmp_path: Path) -> None:
    """By mypy, strictly: a right one passes, and every mistake is found."""
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD)
    bad.write_text("import commitlog\n" + "".join(f"{line}\n" for line in BAD))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(CACHE)]
    skips = ["--follow-imports", "silent", "--ignore-missing-imports"]
    done = subprocess.run([*command, *skips, good, bad], cwd=tmp_path, capture_output=True, text=True)
    assert "good.py" not in done.stdout, done.stdout
    lines = {number: [] for number in range(2, len(BAD) + 2)}  # type: dict[int, list[str]]
    for line in done.stdout.splitlines():
        if line.startswith("bad.py:"):
            lines[int(line.split(":")[1])].append(line)
    for number, says in enumerate(BAD.values(), start=2):
        assert any(says in line for line in lines[number]), (number, says, done.stdout, done.stderr)


def test_a_module_is_loaded_by_name() -> None:
    """Also after a star: the standard library's `logging` is not hidden."""
    names: dict[str, Any] = {}
    exec("from commitlog import *", names)
    assert "logging" not in names
    assert isinstance(commitlog.logging, ModuleType)

"""What `import commitlog` gives a user: names that load when they are asked for, and types."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import duckdb
import pandas
import polars
import pyarrow
import pytest

import commitlog
from tests.commitlog.public_lines import FILE, MODULES, public_lines

ROOT = Path(__file__).parents[2]
FRAMES = {"duckdb": duckdb, "pa": pyarrow, "pandas": pandas, "polars": polars}
"""Modules that a Scan's types name, and that nothing imports before somebody asks for a frame."""
DOORS = (
    commitlog.Store,
    commitlog.Producer,
    commitlog.Reader,
    commitlog.Receipt,
    commitlog.BatchReceipt,
    commitlog.Scan,
)


def test_every_name_loads() -> None:
    for name in (*commitlog.__all__, *MODULES):
        assert getattr(commitlog, name) is not None
    assert {name for name in dir(commitlog) if not name.startswith("_")} == {*commitlog.__all__, *MODULES} - {
        "__version__"
    }
    with pytest.raises(AttributeError, match="Prodcuer"):
        commitlog.Prodcuer  # type: ignore[attr-defined]  # noqa: B018
    assert commitlog.CommitLogError is commitlog.errors.CommitLogError


def test_no_public_name_or_argument_comes_or_goes_unnoticed() -> None:
    """`public.txt` has all of them. Before one goes, docs/compatibility.md says how.

    `python -m tests.commitlog.public_lines` writes it anew.
    """
    assert public_lines() == FILE.read_text().splitlines()


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
                namespace = {**vars(sys.modules[door.__module__]), **vars(commitlog), **FRAMES}
                for hint in get_type_hints(function, globalns=namespace).values():
                    found |= set(parts(hint))
    for kind in [*found]:
        if dataclasses.is_dataclass(kind) and kind is not commitlog.Config:
            for hint in get_type_hints(kind).values():
                found |= set(parts(hint))
    ours = {kind for kind in found if kind.__module__.startswith("commitlog") and not kind.__name__.startswith("_")}
    assert {commitlog.BatchReceipt, commitlog.Throughput, commitlog.StopReport} <= ours
    assert ours <= known, "export these from commitlog"


def test_a_module_is_loaded_by_name() -> None:
    """Also after a star: the standard library's `logging` is not hidden."""
    names: dict[str, Any] = {}
    exec("from commitlog import *", names)
    assert "logging" not in names
    assert isinstance(commitlog.logging, ModuleType)

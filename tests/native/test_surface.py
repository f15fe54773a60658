"""What the native core and its twins in Python must have in common, besides bytes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from commitlog import native
from commitlog.client.producer import Producer
from commitlog.record import record_layout

core = pytest.importorskip("commitlog.native._core", exc_type=ImportError)  # whichever core runs in this process


def test_both_have_one_layout() -> None:
    """The core's numbers, by Python's names. Python's are the specification."""
    numbers = {**vars(record_layout.SysFlag), **vars(record_layout)}
    assert {name: numbers.get(name) for name in core.LAYOUT} == core.LAYOUT
    assert len(core.LAYOUT) >= 20


def test_every_offset_in_rust_is_that_of_the_field() -> None:
    """Also of those fields whose offsets Python does not name."""
    source = Path(native.__file__).with_name("src") / "layout.rs"
    offsets = {name.lower(): int(at) for name, at in re.findall(r"const (\w+)_AT: usize = (\d+);", source.read_text())}
    fields = record_layout.HEAD_V4.fields
    assert fields is not None
    assert {name: fields[name][1] for name in offsets} == offsets
    assert len(offsets) > 8


def test_send_is_the_same_for_its_callers() -> None:
    """Its names, defaults and text. The native `send` has the Python one beside it, as `_send`."""
    native, python = core.Appender.send, getattr(Producer, "_send", Producer.send)
    assert inspect.isfunction(python)
    assert inspect.getdoc(native) == inspect.getdoc(python)
    sides = [list(inspect.signature(send).parameters.values())[1:] for send in (native, python)]  # without self
    assert [(it.name, it.default, it.kind) for it in sides[0]] == [(it.name, it.default, it.kind) for it in sides[1]]


Surface = dict[str, list[str] | None]
"""Name → the names of its parameters; None for what is no call."""


def surface_of_stub(body: list[ast.stmt], of: str = "") -> Surface:
    """What a stub says of a module or, with its name and a dot, of a class."""
    found: Surface = {}
    for node in body:
        if isinstance(node, ast.AnnAssign):
            found[of + ast.unparse(node.target)] = None
        elif isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args if argument.arg != "self"]
            found[of.rstrip(".") if node.name == "__init__" else of + node.name] = names
        elif isinstance(node, ast.ClassDef):
            found |= {node.name: None} | surface_of_stub(node.body, f"{node.name}.")
    return found


def surface_of(members: Mapping[str, object], of: str = "") -> Surface:
    """The same of what there is."""
    found: Surface = {}
    for name, member in members.items():
        if name.startswith("__"):
            continue
        found[of + name] = None
        if callable(member):
            parameters = inspect.signature(member).parameters
            found[of + name] = [name for name in parameters if name not in ("self", "_arguments", "_keywords")] or None
        if inspect.isclass(member):
            found |= surface_of(vars(member), f"{name}.")
    return found


def test_the_stub_has_what_there_is() -> None:
    """Its names and their parameters. `send` is Python's for type checkers: see above."""
    stub = surface_of_stub(ast.parse(Path(native.__file__).with_name("_core.pyi").read_text()).body)
    there = surface_of(vars(core))
    assert there.pop("Appender.send")
    assert stub == there
    assert len(stub) > 20

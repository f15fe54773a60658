"""What the native core and its twins in Python must have in common, besides bytes."""

from __future__ import annotations

import inspect

import pytest

from commitlog.producer import Producer
from commitlog.record import layout

core = pytest.importorskip("commitlog.native._core", exc_type=ImportError)  # whichever core runs in this process


def test_both_have_one_layout() -> None:
    """The core's numbers, by Python's names. Python's are the specification."""
    numbers = {**vars(layout.SysFlag), **vars(layout)}
    assert {name: numbers.get(name) for name in core.LAYOUT} == core.LAYOUT
    assert len(core.LAYOUT) >= 19


def test_send_is_the_same_for_its_callers() -> None:
    """Its names, defaults and text. The native `send` has the Python one beside it, as `_send`."""
    native, python = core.Appender.send, getattr(Producer, "_send", Producer.send)
    assert inspect.isfunction(python)
    assert inspect.getdoc(native) == inspect.getdoc(python)
    sides = [list(inspect.signature(send).parameters.values())[1:] for send in (native, python)]  # without self
    assert [(it.name, it.default, it.kind) for it in sides[0]] == [(it.name, it.default, it.kind) for it in sides[1]]

"""What docs/compatibility.md calls public of Python, a line for each name, as the code has it now.

`python -m tests.commitlog.public_lines` writes `public.txt` beside this file. A line that goes or
changes takes something away from users: that page says how.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import commitlog

FILE = Path(__file__).with_name("public.txt")
MODULES = ("config", "errors", "logging", "spark", "tracing")
MADE_BY_CALLS = (commitlog.RemoteReceipt, commitlog.RowWriter, commitlog.Scan, commitlog.Store)
"""Nobody else makes one, so what it is made of is private."""
CALLS = (FunctionType, type(str.join))
"""Methods in Python and in the native core."""


def signature(function: Any) -> str:
    """Its arguments with their defaults, without types: those are in test_typed_uses.py."""
    found = inspect.signature(function)
    plain = []
    for one in found.parameters.values():
        is_odd = one.default is not one.empty and repr(one.default).startswith("<")  # it has an address
        plain.append(one.replace(annotation=one.empty, default=... if is_odd else one.default))
    text = str(found.replace(parameters=plain, return_annotation=found.empty))
    return text.replace("(self, /, ", "(self, ")  # as the native core's are


def class_lines(name: str, kind: type) -> Iterator[str]:
    """What it has, of its own and by its bases of ours; of an error also its bases."""
    bases = f": {', '.join(base.__name__ for base in kind.__bases__)}" if issubclass(kind, Exception) else ""
    yield f"class {name}{bases}"
    if issubclass(kind, enum.Enum):
        yield from (f"{name}.{member}" for member in kind.__members__)
        return
    if dataclasses.is_dataclass(kind):
        yield from (f"{name}.{field.name}" for field in dataclasses.fields(kind))
    ours = [base for base in kind.__mro__ if base.__module__.startswith("commitlog") or base.__name__ == "Appender"]
    for member, value in {member: value for base in reversed(ours) for member, value in vars(base).items()}.items():
        call = getattr(value, "__func__", value)  # of a class method
        if member == "__init__" and kind not in MADE_BY_CALLS and not dataclasses.is_dataclass(kind):
            yield f"{name}{signature(call)}"
        elif isinstance(call, CALLS) and not member.startswith("_"):
            yield f"{name}.{member}{signature(call)}"
        elif isinstance(value, property) and not member.startswith("_"):
            yield f"{name}.{member}"


def names_of(module: Any) -> list[str]:
    """Those that it lists, or else the classes and functions of its own; of errors the classes."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if name not in (*MODULES, "__version__")]
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    only = type if module is commitlog.errors else object
    return [name for name, value in own.items() if isinstance(value, only) and not name.startswith("_")]


def public_lines() -> list[str]:
    lines: list[str] = []
    for prefix in ("commitlog", *(f"commitlog.{module}" for module in MODULES)):
        module = importlib.import_module(prefix)
        for name in names_of(module):
            value = getattr(module, name)
            if isinstance(value, type):
                lines += class_lines(f"{prefix}.{name}", value)
            else:
                lines.append(f"{prefix}.{name}{signature(value) if inspect.isfunction(value) else ''}")
    return sorted(lines)


if __name__ == "__main__":
    FILE.write_text("\n".join(public_lines()) + "\n")

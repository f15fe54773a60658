"""The native core, and the one place that decides whether it runs.

The core is a small library in Rust. It has the few loops that Python is too slow for: an append, a
batch, a scan, a list of messages. Each of them has a twin in Python, which is the specification and
runs where the core is missing. The environment variable COMMITLOG_NATIVE says which one runs:

- `auto`, the default: the native core if it is there, otherwise Python
- `on`: the native core. An import raises NativeCoreMissing if it is not there.
- `off`: Python

All other modules take `core` from here. It is None where Python runs.

On a machine that does not keep the order of shared memory itself, the core keeps it, whichever runs
the loops (`shm/memory_order.py`).
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from commitlog.errors import IllegalArgument, NativeCoreMissing
from commitlog.shm.memory_order import KEEPS_ORDER, order_by

ABI = 6
"""The core's signatures that this Python was written for. A core of other ones is not taken."""
VARIABLE = "COMMITLOG_NATIVE"


def _find() -> tuple[ModuleType | None, str]:
    """The core if it fits, or why there is none."""
    if "t" in sys.abiflags:  # it would begin to load it, and fail with a SystemError
        return None, "a free-threaded Python can't load it"
    try:
        found = import_module("commitlog.native._core")
    except ImportError as error:
        return None, "it is not built" if isinstance(error, ModuleNotFoundError) else str(error)
    if found.ABI != ABI:
        return None, f"it has the signatures {found.ABI}, this version needs {ABI}"
    return found, ""


def _load(wish: str) -> tuple[ModuleType | None, str]:
    """The core or None, and in a few words which core runs and why."""
    if wish not in ("auto", "on", "off"):
        raise IllegalArgument(f"{VARIABLE}={wish}: it is auto, on or off")
    if wish == "off":
        return None, f"Python ({VARIABLE}=off)"
    found, reason = _find()
    if found is not None:
        return found, "native"
    if wish == "on":
        raise NativeCoreMissing(
            f"{VARIABLE}=on, and there is no native core: {reason}; install Rust and install this package again, or "
            f"unset {VARIABLE}"
        )
    return None, f"Python (no native core: {reason})"


def _keep_order() -> None:
    """Says who keeps the order of shared memory on this machine."""
    if KEEPS_ORDER:
        return
    found, reason = _find()
    order_by(
        found
        or NativeCoreMissing(
            f"a running store on {platform.machine()} needs the native core, and there is none: {reason}; install Rust and "
            f"install this package again"
        )
    )


_keep_order()
if TYPE_CHECKING:  # for type checkers it is always there, so that they know its signatures
    from commitlog.native import _core as core

    description: str
else:
    core, description = _load(os.environ.get(VARIABLE) or "auto")

"""Closes objects when the program ends, and leaves them to the parent in a forked child."""

from __future__ import annotations

import atexit
import traceback
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from commitlog.system.forks import leave_in_child


class _Closable(Protocol):
    def close(self) -> None: ...


_OPEN: weakref.WeakKeyDictionary[_Closable, Callable[[Any], None]] = weakref.WeakKeyDictionary()
"""Open objects, in the order of their making → the function that leaves one to the parent."""
_is_registered = False


def close_at_end(one: _Closable, leave_to_parent: Callable[[Any], None], *, holds_data: bool = True) -> None:
    """Has an object closed at the end of the program; the last one that was made comes first.

    So a RowWriter is closed before the producer that sends its rows. An object that `holds_data` is
    closed before everything that was registered with `atexit` until now, and so before a store is
    closed. In a forked child, `leave_to_parent` is called with the object instead.
    """
    global _is_registered
    _OPEN[one] = leave_to_parent
    if holds_data or not _is_registered:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _is_registered = True


def _close_all() -> None:
    for one in reversed(list(_OPEN)):
        try:
            one.close()
        except Exception:  # said on standard error, as for all that ends with the interpreter
            traceback.print_exc()


def _leave_all() -> None:
    for one, leave_to_parent in list(_OPEN.items()):
        leave_to_parent(one)
    _OPEN.clear()


leave_in_child(_leave_all)

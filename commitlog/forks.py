"""What a forked child leaves to its parent.

Python calls the hooks of `os.register_at_fork` in the order of their registration. A program's own
hooks may close, drop or use what is still the parent's. So the package registers its one hook when
`commitlog` is imported, not when a module is first needed. A program may register a hook even
earlier. So a call that would harm the parent begins with `settle`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in commitlog/__init__.py, which loads this module
if TYPE_CHECKING:
    from collections.abc import Callable

_leaving: list[Callable[[], None]] = []
_process = os.getpid()


def leave_in_child(leave: Callable[[], None]) -> None:
    """Has `leave` called in each forked child, before the child's own work."""
    _leaving.append(leave)


def settle() -> None:
    """Leaves to the parent what is the parent's. Only the first call in a child does something."""
    global _process
    if os.getpid() != _process:
        _process = os.getpid()
        _leave_all(_leaving)


def _leave_all(leaving: list[Callable[[], None]]) -> None:
    if leaving:
        try:
            leaving[0]()
        finally:
            _leave_all(leaving[1:])


os.register_at_fork(after_in_child=settle)

"""What a forked child leaves to its parent.

Python calls the hooks of `os.register_at_fork` in the order of their registration. A program's own
hooks may close, drop or use what is still the parent's. So the package registers its one hook when
`commitlog` is imported, not when a module is first needed. A program may register a hook even
earlier. So a call that would harm the parent begins with `settle`.
"""

from __future__ import annotations

import mmap
import os

TYPE_CHECKING = False  # as in commitlog/__init__.py, which loads this module
if TYPE_CHECKING:
    from collections.abc import Callable

_leaving: list[Callable[[], None]] = []
_process = os.getpid()
_WIPE_ON_FORK = 18  # of linux/mman.h: the kernel clears these pages in each child; Python has no name for it
_page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
try:
    _page.madvise(_WIPE_ON_FORK)
    _mark = 1
except OSError:  # a kernel that can't do it
    _mark = 0
_page[0] = _mark


def leave_in_child(leave: Callable[[], None]) -> None:
    """Has `leave` called in each forked child, before the child's own work."""
    _leaving.append(leave)


def settle() -> None:
    """Has a forked child let go of what belongs to its parent: producers, locks, sockets.

    Only the first call in a child does something. A system call for each message would cost more
    than the message. So a byte that a fork clears says whether the process is to be looked at.
    """
    global _process
    if not _page[0] and os.getpid() != _process:
        _process, _page[0] = os.getpid(), _mark
        _leave_all(_leaving)


def _leave_all(leaving: list[Callable[[], None]]) -> None:
    if leaving:
        try:
            leaving[0]()
        finally:
            _leave_all(leaving[1:])


def _mark_page(mark: int) -> None:
    """Clears the page for a fork by Python. QEMU's older versions say that they do, and do not."""
    _page[0] = mark


os.register_at_fork(before=lambda: _mark_page(0), after_in_parent=lambda: _mark_page(_mark), after_in_child=settle)

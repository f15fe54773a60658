"""The order in which processes see each other's stores to shared memory, said once.

A word may *publish* what was stored before it: bytes of a write buffer, other words, files. Who
sees its value relies on all that. `layout.py` declares which words do so. There are three ways to
such a word, and no other:

- `publish(words, at, value)` stores it. Who observes the value sees what was stored before it.
- `observe(words, at)` loads it. All loads from here on see what was stored before the value.
- `confirm(words, at)` loads it to see whether memory is used again. What was loaded before was
  there before the value. What is stored from here on comes after it.

`words` is a `memoryview.cast("Q")`: an item is one aligned load or store of 8 bytes.
`struct.pack_into` is never used on shared words, because it clears them first.

x86-64 makes stores visible in program order, and does not reorder loads with loads. So each of the
three is the plain item there. On any other machine they are a release store, an acquire load, and
an acquire load between two fences. Python has none of these, so the native core does them
(`commitlog/native/src/memory_order.rs`), and no control region is opened without it.

A column of `ControlRegion.lane_table` has no order. It tells in which lanes there may be something
to do, or what to show. What a process then relies on, it observes in the lane's row.

No machine keeps the order of a store and a later load. A producer that publishes `wrote` and then
looks whether the committer sleeps may look before its store is seen. The stage that goes to sleep
handles this (stages/base_stage.py), so that it costs the producer nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from operator import getitem, setitem
from typing import Any, Protocol

KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64")
"""Whether this machine keeps the order itself."""


class OrderedAccess(Protocol):
    """What the native core has."""

    def publish(self, words: Any, at: int, value: int, /) -> None: ...
    def observe(self, words: Any, at: int, /) -> int: ...
    def confirm(self, words: Any, at: int, /) -> int: ...


_access: OrderedAccess | Exception = ImportError("commitlog.native was not imported")


def order_by(access: OrderedAccess | Exception) -> None:
    """Says what keeps the order on a machine that does not keep it itself, or why nothing does."""
    global _access
    _access = access


def check_order() -> None:
    """Raises the error that `order_by` was given, if nothing keeps the order here."""
    if not KEEPS_ORDER and isinstance(_access, Exception):
        raise _access.with_traceback(None)


publish: Callable[[memoryview, int, int], None]
observe: Callable[[memoryview, int], int]
confirm: Callable[[memoryview, int], int]
if KEEPS_ORDER:
    publish, observe, confirm = setitem, getitem, getitem  # type: ignore[assignment] # overloads
else:

    def publish(words: memoryview, at: int, value: int, /) -> None:
        _access.publish(words, at, value)  # type: ignore[union-attr] # a region was opened, so it is there

    def observe(words: memoryview, at: int, /) -> int:
        return _access.observe(words, at)  # type: ignore[union-attr]

    def confirm(words: memoryview, at: int, /) -> int:
        return _access.confirm(words, at)  # type: ignore[union-attr]

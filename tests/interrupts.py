"""Interrupts at each place where CPython may raise one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import commitlog

PACKAGE = str(Path(commitlog.__file__).parent)
DISK = f"{PACKAGE}/disk/"
"""An interrupt there may leave a descriptor behind, which this room's tests look for."""


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupts:
    """Raises one at the n-th place where CPython may: a function begins, or a built-in one ends."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event in ("call", "c_return") and file.startswith(PACKAGE) and not file.startswith(DISK):
            self.left -= 1
            if self.left == 0:
                raise Interrupt


@contextmanager
def interrupted(number: int) -> Iterator[Interrupts]:
    interrupts = Interrupts(number)
    with suppress(Interrupt):
        sys.setprofile(interrupts)
        try:
            yield interrupts
        finally:
            sys.setprofile(None)

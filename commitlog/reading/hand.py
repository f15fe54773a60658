"""The messages that a reader has read and has not given out yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from operator import length_hint

from commitlog.message import Message


class Hand:
    """Gives messages out one by one (`next`) or many at a time (`take`), and counts them.

    `noted` is called with each message that `next` gives out, and returns it. One thread at a time
    gives out; any thread may ask for `given`.
    """

    def __init__(self, noted: Callable[[Message], Message] | None = None) -> None:
        self._noted = noted
        self._state: tuple[int, Sequence[Message], Iterator[Message]] = 0, (), iter(())
        """How many were given out before those taken last, these, and what is left of these."""
        self.next: Iterator[Message] = iter(())
        """Those that are left, as they are given out one by one."""

    def __bool__(self) -> bool:
        return length_hint(self._state[2]) > 0

    @property
    def given(self) -> int:
        """How many messages were given out."""
        before, taken, left = self._state
        return before + len(taken) - length_hint(left)

    @property
    def taken(self) -> tuple[Sequence[Message], list[Message]]:
        """Those that were taken in hand last, and those of them that are not given out."""
        _, taken, left = self._state
        return taken, list(copy(left))

    def fill(self, messages: Sequence[Message]) -> None:
        """Takes these in hand, in place of those that are left."""
        self._hold(self.given, messages)

    def take(self, most: int) -> list[Message]:
        """Gives out at most so many messages, which are not noted."""
        return list(islice(self._state[2], most))

    def count(self, more: int) -> None:
        """Counts messages that were given out in another way. There are none in hand."""
        self._hold(self.given + more, ())

    def take_back(self, messages: list[Message]) -> None:
        """Takes back messages that were given out last."""
        self._hold(self.given - len(messages), [*messages, *self._state[2]])

    def _hold(self, before: int, messages: Sequence[Message]) -> None:
        left = iter(messages)
        self._state = before, messages, left
        self.next = left if self._noted is None else map(self._noted, left)

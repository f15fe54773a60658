"""The messages that a reader has read and has not given out yet.

An interrupt may come at any call. So what gives a message out calls nothing after it: a message is
either in hand, or its user has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, islice
from operator import length_hint

from commitlog.message import Message


class Hand:
    """Gives messages out one by one (`left`) or many at a time (`first`, `drop`), and counts them.

    One thread at a time gives out; any thread may ask for `given`.
    """

    def __init__(self) -> None:
        self._state: tuple[int, Sequence[Message], Iterator[Message], tuple[Sequence[Message], ...]]
        """How many were given out before those taken first, these, what is left of them, more."""
        self.left: Iterator[Message]
        """The same as in the state: a loop over it gives them out."""
        self._hold(0, ())

    def __len__(self) -> int:
        _, _, left, behind = self._state
        return length_hint(left) + sum(map(len, behind))

    @property
    def given(self) -> int:
        """How many messages were given out."""
        before, taken, left, _ = self._state
        return before + len(taken) - length_hint(left)

    @property
    def taken(self) -> tuple[Sequence[Message], list[Message]]:
        """Those that were taken in hand first, and all that are not given out."""
        _, taken, left, behind = self._state
        return taken, [*copy(left), *chain.from_iterable(behind)]

    @property
    def passed(self) -> Sequence[Message]:
        """Those that were given out of these that were taken in hand first."""
        _, taken, left, _ = self._state
        return taken[: len(taken) - length_hint(left)]

    def next(self) -> Message | None:
        """The one that `left` gives out next. It stays in hand."""
        _, taken, left, _ = self._state
        count = length_hint(left)
        return taken[len(taken) - count] if count else None

    def fill(self, messages: Sequence[Message]) -> None:
        """Takes these in hand, behind those that are left."""
        before, taken, left, behind = self._state
        if length_hint(left):
            self._state = before, taken, left, (*behind, messages)
        else:
            self._hold(self.given, [*chain.from_iterable(behind), *messages] if behind else messages)

    def first(self, most: int) -> list[Message]:
        """At most so many, which stay in hand until they are dropped."""
        _, _, left, behind = self._state
        return list(islice(chain(copy(left), *behind), most))

    def drop(self, count: int) -> None:
        """Counts so many as given out: those that `first` gives."""
        _, left = self.taken
        self._hold(self.given + count, left[count:])

    def count(self, more: int) -> None:
        """Counts messages that were given out in another way. There are none in hand."""
        self._hold(self.given + more, ())

    def empty(self) -> None:
        """Drops what is left, which nobody gets now."""
        self._hold(self.given, ())

    def _hold(self, before: int, messages: Sequence[Message]) -> None:
        left = iter(messages)
        self._state = before, messages, left, ()
        self.left = left

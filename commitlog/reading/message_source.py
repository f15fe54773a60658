"""Where a reader's messages come from: the seam between `Reader` and a store, here or far.

A reader of a directory has StoreMessages. What a reader does for its user (waits, positions,
errors, its end) is in reader.py, once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commitlog.errors import IllegalTopic
from commitlog.message import Message
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.rests import Rest
from commitlog.reading.starting_point import QueueStarts


def topics_of(given: str | Collection[str] | None) -> set[str] | None:
    """Returns the topics that a user has named. None means all topics. Raises IllegalTopic."""
    if given is None:
        return None
    try:
        names = {given} if isinstance(given, str) else set(given)
    except TypeError:  # it can't be iterated over, or has items that are not names
        names = {""}
    if not names or not all(isinstance(name, str) and name for name in names):
        raise IllegalTopic(f"topic is a topic's name, several or None for all, not {given!r:.80}")
    return names


@dataclass(frozen=True)
class Wanted:
    """What a reader's user wants to read: see the arguments of `Reader`. `topics`: None for all."""

    topics: Collection[str] | None
    lanes: LaneChoice
    isolation: str
    follow: bool
    ignore_corrupt: bool


class QueuesOfStore(Protocol):
    """The topics and queues of a store, as of the last look."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that the store was in: see `disk/epochs.py`."""

    def topics(self, *, deleted: bool = False) -> Collection[str]:
        """The topics that have a message; with `deleted`, those that had one, too."""

    def ranges(self, topic: str) -> Mapping[int, QueueRange]:
        """Lane → the topic's first queue offset and its end there."""

    def find_by_time(self, topic: str, lane: int, ms: int) -> int | None:
        """The queue offset of the first message stored at this time or later, or None."""


class KeptPosition(Protocol):
    """The position of a named reader, where it is kept. The name is held until `let_go`."""

    @property
    def place(self) -> str:
        """The store, for errors."""

    @property
    def store_id(self) -> str:
        """The id of the store that the name was taken in."""

    def flushed(self, places: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """The places (topic and lane → next queue offset), or where less is flushed, that place.

        A power cut may take back what is not flushed, and other messages get its offsets.
        """

    def load(self) -> NamedReader | None:
        """The position, or None if the name is new. Raises ReaderError."""

    def save(self, reader: NamedReader, epoch: int | None) -> None:
        """Stores the position durably.

        `epoch` is that of the messages that were read, or None to leave it unchecked. Raises
        ReaderError if another store is there, or it was started since with a loss, or the position
        can't be written.
        """

    def check(self) -> None:
        """Raises what has taken the name away for good: ReaderInUse, ReaderError, AccessDenied."""

    def let_go(self) -> None:
        """Gives the name back. A second call does nothing, and none does so in a forked child."""


class GivesRows(Protocol):
    """What gives out messages, or rows of them."""

    @property
    def epoch(self) -> int:
        """The epoch of the store that all messages are of that were given out.

        It moves only after it was found out that the store still has them.
        """


class MessageSource(GivesRows, Protocol):
    """The messages that a reader wants. One thread at a time reads."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """The store, for errors."""

    @property
    def one_log(self) -> bool:
        """Whether it is a RocketMQ store root."""

    @property
    def is_waiting(self) -> bool:
        """Whether `messages` has nothing at the moment, and more is on its way."""

    @property
    def least_rest(self) -> float:
        """The shortest time between two looks of a follower, in seconds."""

    @property
    def index(self) -> QueuesOfStore:
        """What the store had at the last look."""

    def keep_position(self, name: str) -> KeptPosition:
        """Takes a reader's name. Raises ReaderInUse, ReaderError, StoreRefused (a replica)."""

    def look(self) -> None:
        """Looks at the store for the first time.

        Raises UnknownTopic, IllegalTopic, OptionError. Warns of a topic that a follower waits for.
        """

    def begin(self, starts: QueueStarts) -> dict[tuple[str, int], int]:
        """Says where to begin, after `look`. Another call begins anew, elsewhere.

        Returns the queue offsets, by topic and lane. Queues that are missing there begin at their
        first message. Raises OffsetOutOfRange.
        """

    def queues(self) -> dict[tuple[str, int], QueueRange]:
        """The wanted queues, by topic and lane, as of the last look."""

    def queues_now(self) -> dict[tuple[str, int], QueueRange]:
        """The wanted queues, by topic and lane, as another look finds them now.

        Reading is not touched by it, and any thread may call it. Raises DataLoss if another store
        is there.
        """

    def messages(self) -> Iterator[Sequence[Message]]:
        """Gives all wanted messages up to the last look that were not given out, in their order.

        They come in pieces of some hundreds, and an empty one after a long walk without a message.
        Damage is raised after all good messages before it and in other lanes were given out.
        """

    def values(self) -> Iterator[Sequence[bytes | memoryview]]:
        """Gives the values of the messages that `messages` would give."""

    def refresh(self, *, whole: bool = False) -> None:
        """Looks for messages that came, and damage that was healed, since the last look.

        A look that is not `whole` may leave out all but how far lanes have come, and `messages`
        then gives only what came since.

        Raises DataLoss if another store, or a restored copy, is there, or offsets are used again.
        """

    def wait(self, rest: Rest, most: float = math.inf) -> None:
        """Sleeps until there may be more, about as long as the rest, and `most` seconds at most."""

    def progress(self) -> tuple[dict[int, int], dict[int, int]]:
        """Lane → its place in the log, and lane → bytes behind it: see ReaderStatistics."""

    def close(self) -> None:
        """Frees files and memory. A second call does nothing."""

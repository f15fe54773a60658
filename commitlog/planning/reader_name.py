"""Option `readerName`: keeps a query's finished position in the store, under a name.

One process at a time holds the name. A forwarder's position is kept in the same way.

Spark tells a source in one place only which rows are done: in the `start` that it passes to
`latestOffset`. (`commit` is one batch behind and is not called for the last batch.) So `start` is
the position. It is written within that call, about once a second at most. An idle query gets the
call all the time. If a process is killed before it writes, the position in the store is too low.
Then retention keeps more than is needed, and nothing is lost.

A pattern is matched in this module and nowhere else. The position names all topics of the store:
matching topics with their offsets, the others as passed over.
"""

from __future__ import annotations

import logging
import os

from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReaderError, ReaderInUse
from commitlog.planning.options import Subscription
from commitlog.reading.named_reader import FORWARD, PYTHON, SPARK, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.starting_point import Offsets
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import for_shell

WRITE_EVERY_NS = 1_000_000_000

_WITHOUT = {SPARK: ", or read without readerName", FORWARD: ""}
_WHO = {SPARK: "query", FORWARD: "forwarder"}
_WHOSE = {SPARK: "a Spark query's", PYTHON: "one of Python's (commitlog.Reader)", FORWARD: "a forwarder's"}

log = logging.getLogger(__name__)


def position_of(name: str, subscription: Subscription, store_id: str, done: Offsets, present: list[str]) -> NamedReader:
    """Makes the position of a query that has read everything before the offsets `done`.

    The position has all subscribed topics and lanes, even those without messages. `present` are the
    topics that the store has.
    """
    passed_over: frozenset[str] = frozenset()
    if subscription.pattern is not None:
        passed_over = frozenset(present) - set(subscription.chosen(present))
    if subscription.assigned is None:
        chosen = subscription.chosen(sorted({*done, *present}))
        needs = {topic: dict(done.get(topic, {})) for topic in chosen}
    else:
        needs = {
            topic: {lane: done.get(topic, {}).get(lane, 0) for lane in lanes}
            for topic, lanes in subscription.assigned.items()
        }
    return NamedReader(
        name,
        store_id,
        needs,
        moved_ms=0,
        pattern=subscription.pattern,
        all_lanes=subscription.assigned is None,
        passed_over=passed_over,
    )


class HeldReaderName:
    """Holds a reader's name until `close`. `kind` says whose position it keeps: SPARK or FORWARD.

    The constructor raises ReaderInUse, or ReaderError if this process may only read the store.
    """

    def __init__(self, path: str | os.PathLike[str], name: str, clock: Clock = SYSTEM_CLOCK, kind: str = SPARK) -> None:
        self.readers = NamedReaders(StoreDirectory(path), clock)
        self.name, self.clock, self.kind = name, clock, kind
        self._held = self.readers.hold(name)
        self._position: NamedReader | None = None
        self._written: NamedReader | None = None
        self._written_ns = 0
        self._complaint = ""
        try:
            self._check_kind()
        except ReaderError:
            self.readers.let_go(self._held)
            raise

    def _check_kind(self) -> None:
        """Raises ReaderError if the name has a position of another kind, which would be lost.

        A position that can't be read is replaced.
        """
        try:
            kind = self.readers.load(self.name).kind
        except (OSError, ReaderError):
            return
        if kind != self.kind:
            raise ReaderError(
                f"reader {self.name} is {_WHOSE[kind]}, whose position this {_WHO[self.kind]} would replace: choose "
                f"another name, or drop that one with `commitlog readers {for_shell(self.readers.directory.path)} "
                f"--remove {for_shell(self.name)}`"
            )

    def move(self, position: NamedReader) -> None:
        """Moves the position. Raises ReaderError if the first one can't be written."""
        self._position = position
        self.write()

    def write(self, *, now: bool = False) -> None:
        """Writes the position if it has moved and the last write is a second ago.

        With `now` it is written at once. Raises ReaderInUse where another process has the name
        since somebody has removed its lock file.
        """
        if self._position == self._written or self._position is None:
            return
        if not now and self._written and self.clock.monotonic_ns() - self._written_ns < WRITE_EVERY_NS:
            return
        self._written_ns = self.clock.monotonic_ns()
        try:
            self.readers.hold_on(self._held, self.name)
            self.readers.save(self.readers.moved(self._position))
        except OSError as error:
            self._complain(error)
            return
        self._written, self._complaint = self._position, ""

    def _complain(self, error: OSError) -> None:
        """Raises ReaderError for a first position that can't be written, else logs a warning.

        If a later position can't be written, nothing is lost, so the query goes on.
        """
        place = self.readers.directory.readers_directory
        text = f"reader {self.name}: its position can't be written to {place}: {error.strerror}"
        if self._written is None:
            raise ReaderError(f"{text}; make room or fix permissions{_WITHOUT[self.kind]}") from error
        if text != self._complaint:
            log.warning("%s; until it can, more is kept for it than it needs", text)
            self._complaint = text

    def close(self) -> None:
        """Writes the position if it is not written yet, and gives the name back."""
        try:
            self.write(now=True)
        except ReaderInUse as error:  # it ends all the same
            log.warning("%s", error)
        finally:
            self.readers.let_go(self._held)

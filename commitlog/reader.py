"""Reads a store message by message, live or stopped, beside its producers and without its stages;
or a RocketMQ's.

Each lane is walked in its order; lanes are merged by store timestamp. A following reader merges
what is there and never waits for a quiet lane. Nothing beyond the limit (flushed, or committed
where asked for) is ever given out.

A RocketMQ store root is read queue by queue, as far as its consume queues go, and merged by the
places in its log.

Damage hides nothing but itself: what is good before it, and in other lanes, is given out before its
error is raised, and with `ignore_corrupt` what is behind it too.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import inspect
import os
from collections.abc import Collection, Generator, Iterator, Mapping
from operator import attrgetter
from types import TracebackType
from typing import Literal

from commitlog.clock import SYSTEM_CLOCK, Clock, limit_ns
from commitlog.disk.consume_queue import is_light
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    DamagedFile,
    DiskError,
    IllegalArgument,
    IllegalTopic,
    OptionError,
    ReaderError,
    UnknownTopic,
    disk_error,
    refuse_copy,
)
from commitlog.message import Message
from commitlog.reading.cursors import NOTHING_YET, LaneCursor, QueueCursor
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.left_out import with_way_out
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.position import ReaderPosition, check_named, check_options, read_queues
from commitlog.reading.starting_point import Offsets, QueueStarts, parse_starts
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import open_view
from commitlog.statistics import ReaderStatistics

_SEGMENTS_KEPT = 8
"""Mapped segments of a RocketMQ's log: its queues are not all at the same place."""
_WAIT_SECONDS_LEAST, _WAIT_SECONDS_MOST = 0.001, 0.02
_MESSAGES_IN_A_ROW = 64
"""After so many an `async for` lets others run."""


class Reader:
    """An iterator over messages: `for message in Reader("data/events", topic="orders"): …`, or
    `async for`.

    `topic`: a name, several, or None for all. `isolation`: "flushed" (survives power loss) or
    "committed". `start`: earliest, latest, "last 100" (of each topic and lane), "10 minutes ago",
    an ISO time, an offset for every lane, or offsets for single ones, `{"orders": {0: 42, 1: 7}}`
    (−1 latest, −2 earliest; the others begin at the earliest). `follow`: go on waiting for more at
    the end instead of stopping there.

    `lanes`: only these, such as `{0, 2}`. `members=(i, n)`: only lanes whose number modulo n is i,
    so that n readers share the work; a lane that is new while they follow belongs to one of them.

    `name`: the store keeps the reader's position under it, and the next reader of the name goes on
    there; `start` says where the first one begins. Whoever splits lanes gives each member a name of
    its own. One process at a time has a name, and retention keeps what it has not committed.
    `commit` says what is done, or `auto_commit_seconds` so often: then a message counts once the
    next one is asked for. What was given out and not committed comes again: at least once.

        with Reader("data/events", topic="orders", name="billing", follow=True) as reader:
            for message in reader:
                bill(message)
                reader.commit(message)

    `fail_on_data_loss=False`: where messages were deleted that a named reader had not read when it
    was stopped, the next one goes on with a ReadingWarning that counts them, instead of the error.
    (One that is overtaken while it reads gets DataLoss in any case: make it again.)

    `ignore_corrupt`: go on behind records that are damaged, and count them in a ReadingWarning.
    Without it they are an error, raised when all that is good before it and in other lanes was
    given out; asked again, the reader looks there again.

    Raises StoreNotFound, BadStart, UnknownTopic (a following reader waits for the topic instead),
    OffsetOutOfRange, OptionError, ReaderInUse, ReaderError (the name's position is a Spark query's,
    of another store, or can't be read or written), DataLoss, CorruptRecord, DamagedFile.

    `path` may also be a RocketMQ store root, of which `partition` is the queue id; it can't be
    followed, and has neither `isolation` nor names (OptionError). Light queues (`%LMQ%…`) are read
    where they are named.

    One thread at a time reads; `close`, `commit` and `statistics` may be called from others.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        topic: str | Collection[str] | None = None,
        isolation: Literal["flushed", "committed"] = "flushed",
        start: str | int | Mapping[str, Mapping[int, int]] = "earliest",
        follow: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        *,
        lanes: Collection[int] | None = None,
        members: tuple[int, int] | None = None,
        name: str | None = None,
        auto_commit_seconds: float | None = None,
        fail_on_data_loss: bool = True,
        ignore_corrupt: bool = False,
    ) -> None:
        if isolation not in ("flushed", "committed"):
            raise IllegalArgument(f"isolation is 'flushed' or 'committed', not {isolation!r}")
        self.topics = _topics(topic)
        self.follow, self.ignore_corrupt = follow, ignore_corrupt
        self._clock = clock
        self._starts = parse_starts(start, clock)
        self._lanes = LaneChoice.of(lanes, members)
        self._fail_on_data_loss = fail_on_data_loss
        self._position: ReaderPosition | None = None
        self._cursors: dict[tuple[int, str], LaneCursor | QueueCursor] = {}
        self._given = 0
        self._given_at_rest, self._rest_seconds, self._is_at_end = -1, 0.0, False
        self._closed, self._failure = False, ""
        self._last_statistics: ReaderStatistics | None = None
        self._messages = self._read(refresh=follow)  # what came since is given out too
        self._view = open_view(path)
        self._index = TopicIndex(self._view, isolation)
        try:
            check_options(name, self.topics, auto_commit_seconds, isolation, one_log=self._view.one_log)
            if name is not None:
                self._position = ReaderPosition(self._view, name, self.topics, self._lanes, auto_commit_seconds, clock)
            self._begin(isolation)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self._refused(error) from error
            raise

    def _begin(self, isolation: str) -> None:
        """Looks at the store for the first time."""
        path = self._view.path
        if self._view.one_log and (self.follow or isolation != "flushed"):
            option = "follow=True" if self.follow else f"isolation={isolation!r}"
            raise OptionError(
                f"{path}: {option} needs a store of ours, and this is a RocketMQ store root: leave it out"
            )
        self._index.refresh()
        if self.topics and not self.follow:
            missing = self.topics - set(self._index.topics())
            if missing:
                there = ", ".join(self._index.topics()) or "none"
                raise UnknownTopic(f"{path}: no topic {', '.join(sorted(missing))}; there are: {there}")
        starts = self._starts
        if self._position is not None:
            starts = self._position.begin(self._index, starts, fail_on_data_loss=self._fail_on_data_loss)
        else:
            check_named(starts, read_queues(self._index, self.topics))
        self._open_cursors(starts)

    def _open_cursors(self, starts: QueueStarts) -> None:
        """A cursor a lane, or a queue of a RocketMQ's, where there is none yet."""
        segments = RecentSegments(self._view.lane(0), self._view.segment_bytes, self._view.channel, keep=_SEGMENTS_KEPT)
        for lane, index in self._index.lanes.items():
            if lane not in self._lanes:
                continue
            if not self._view.one_log:
                if (lane, "") not in self._cursors:
                    self._cursors[lane, ""] = LaneCursor(index, self.topics, starts, self.ignore_corrupt)
                continue
            for topic, known in index.queues.items():
                wanted = topic in self.topics if self.topics is not None else not is_light(topic)
                if wanted and known.first < known.end:
                    self._cursors[lane, topic] = QueueCursor(index, topic, segments, starts, self.ignore_corrupt)

    # ---- messages -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while (message := self._take()) is None:
            if self._is_at_end:
                self._clock.sleep(self._rest())
        return message

    def poll(self, timeout: float | None = 0.0) -> Message | None:
        """The next message, or None where none came within `timeout` seconds (None: without a
        limit), at the end, and after `close` (`closed` tells). For loops that do other things too.

        A reader that walks through much of other topics may answer None although there is something
        behind it. Raises IllegalArgument for a timeout that is none, and what `next` raises.
        """
        deadline = self._clock.monotonic_ns() + limit_ns(timeout)
        while True:
            try:
                message = self._take()
            except StopIteration:
                return None
            if message is not None:
                return message
            left = (deadline - self._clock.monotonic_ns()) / 1e9
            if left <= 0:
                return None
            if self._is_at_end:
                self._clock.sleep(min(self._rest(), left))

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        """The next message, without blocking the event loop while there is none.

        It reads in the loop's thread, a few MiB of each lane at a time, and sleeps on the loop in
        between. A thread of its own would cost more than most messages do; and one whose task is
        cancelled would have taken a message that nobody gets: here no message is in hand where a
        cancellation can come. `commit` waits for the disk, so rather `await
        asyncio.to_thread(reader.commit)`.
        """
        if self._given % _MESSAGES_IN_A_ROW == 0:
            await asyncio.sleep(0)  # others want to run too, also while there is always a message
        while True:
            try:
                message = self._take()
            except StopIteration:
                raise StopAsyncIteration from None
            if message is not None:
                return message
            await asyncio.sleep(self._rest() if self._is_at_end else 0)

    def _take(self) -> Message | None:
        """The next message; None where there is none at the moment. Raises StopIteration at the end
        and after `close`.
        """
        try:
            message = next(self._messages)
        except StopIteration:
            if self._closed:
                self.close()  # once more: an error may have begun the reading anew when it was closed
            else:
                self._note_end()
            raise
        except BaseException as error:
            self._note_error(error)
            if isinstance(error, OSError):
                raise self._refused(error) from error
            raise
        if self._closed:  # meanwhile, by another thread or a signal handler
            self.close()
            raise StopIteration
        if message is NOTHING_YET:
            if self._position is not None:
                self._position.waits()
            return None
        self._given += 1
        if self._position is not None:
            self._position.given(message)
        return message

    def _refused(self, error: OSError) -> DiskError:
        """What the system refuses, by its name."""
        place = error.filename or self._view.path
        return disk_error(error.errno or errno.EIO, f"{place}: {error.strerror}, while it was read")

    def _read(self, *, refresh: bool) -> Generator[Message, None, None]:
        """All messages in their order, and NOTHING_YET where it came to the end or walked for long
        without finding any.

        `refresh`: look for what has come, or was healed, since the index was read last.
        """
        if refresh:
            self._index.refresh()
        order = attrgetter("physical_offset" if self._view.one_log else "timestamp")
        while True:
            given_before = self._given
            yield from heapq.merge(*(cursor.read() for cursor in list(self._cursors.values())), key=order)
            for cursor in self._cursors.values():
                if cursor.damage is not None:
                    raise with_way_out(cursor.damage)
            if not self.follow:
                return
            if self._given == given_before:
                self._is_at_end = True
                yield NOTHING_YET
                self._is_at_end = False
            self._index.refresh()
            self._open_cursors(QueueStarts())  # a lane that is new since the start: all of it is

    def _rest(self) -> float:
        """How long to wait before the next look (s): longer each time, until something comes."""
        fresh = self._given != self._given_at_rest
        self._given_at_rest = self._given
        self._rest_seconds = _WAIT_SECONDS_LEAST if fresh else min(self._rest_seconds * 2, _WAIT_SECONDS_MOST)
        return self._rest_seconds

    def _note_end(self) -> None:
        """There is no message any more. Raises ReaderError where that is for an error, which was
        raised before.
        """
        if self._failure:
            raise ReaderError(f"this reader ended with {self._failure}: make another to go on") from None
        if self._position is not None:
            self._position.ended()

    def _note_error(self, error: BaseException) -> None:
        """What `next` raised. Raises ReaderError where this call is inside another one's."""
        if isinstance(error, ValueError) and inspect.getgeneratorstate(self._messages) == inspect.GEN_RUNNING:
            raise ReaderError(
                "this reader is inside `next` already, and serves one thread at a time: give each a reader of its own"
            ) from error
        if self._closed:
            self.close()
        elif isinstance(error, CorruptRecord | DamagedFile):
            self._messages = self._read(refresh=True)
        else:
            self._failure = f"{type(error).__name__}: {error}"

    # ---- the position of a named reader ---------------------------------------------------------

    def commit(self, message: Message | None = None) -> None:
        """Stores, durably, that all messages given out so far are done; or those of one topic and
        lane, up to `message` and with it. A position never goes back. It takes as long as a sync of
        the disk.

        Raises ReaderError: no name, closed, in a forked child, not this reader's message, or it
        can't be written; IllegalArgument: no message.
        """
        self._named().commit(message)

    def position(self) -> Offsets:
        """The next queue offset that is given out, of each topic and lane: `{"orders": {0: 43}}`.

        Raises ReaderError: no name.
        """
        return self._named().position()

    def committed(self) -> Offsets:
        """The queue offsets at which a reader of the name would begin now. Raises ReaderError: no
        name.
        """
        return self._named().committed()

    def _named(self) -> ReaderPosition:
        if self._position is None:
            raise ReaderError(
                "this reader has no name, and so no position: make it with one, Reader(…, name='billing')"
            )
        return self._position

    # ---- the end --------------------------------------------------------------------------------

    def statistics(self) -> ReaderStatistics:
        """What it has given out so far, and what lies before it; of a closed reader, what that was
        at its end.
        """
        try:
            return self._last_statistics or self._statistics()
        except ValueError:  # closed meanwhile: the shared memory is released
            if self._last_statistics is None:
                raise
            return self._last_statistics

    def _note_last_statistics(self) -> None:
        try:
            self._last_statistics = self._statistics()
        except (CommitLogError, OSError):  # the store is gone, or damaged: to close a reader of it is no error
            self._last_statistics = ReaderStatistics(self._given, {}, {})

    def _statistics(self) -> ReaderStatistics:
        positions: dict[int, int] = {}
        behind: dict[int, int] = {}
        for (lane, _), cursor in list(self._cursors.items()):
            positions[lane] = min(cursor.where, positions.get(lane, cursor.where))
            behind[lane] = max(cursor.end() - cursor.where, behind.get(lane, 0))
        return ReaderStatistics(self._given, positions, behind)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Ends the iteration, for good and from anywhere: the loop's body, a signal handler,
        another thread.

        `next` raises StopIteration then, also one that waits. What was read ahead is not given out.
        Files and memory are free when this returns; or as soon as the `next` that is being
        interrupted, or runs in another thread, has come to its end, which is at once. To call it
        again does no harm. With `auto_commit_seconds` what is done is committed: the message given
        out last is not, unless the reader was asked for another.
        """
        self._closed = True
        try:
            self._messages.close()
        except ValueError:  # somebody is inside: he sees that it is closed when he comes out, and calls this
            return
        if self._last_statistics is None:
            self._note_last_statistics()
        self._cursors.clear()
        self._index.lanes.clear()  # they hold mapped segments
        self._view.close()
        if self._position is not None:
            self._position.close()

    __reduce_ex__ = refuse_copy

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _topics(given: str | Collection[str] | None) -> set[str] | None:
    """The topics that a user has named; None: all. Raises IllegalTopic."""
    if given is None:
        return None
    try:
        names = {given} if isinstance(given, str) else set(given)
    except TypeError:  # nothing to go through, or things that are no names
        names = {""}
    if not all(isinstance(name, str) and name for name in names):
        raise IllegalTopic(f"topic is a topic's name, several or None for all, not {given!r:.80}")
    return names

"""Reads a store message by message, live or stopped, beside its producers and without its stages.

Each lane is walked in its order, and lanes are merged by the messages' timestamps. A reader that
follows merges the messages that are there, and never waits for a quiet lane. It gives out flushed
messages only, or committed ones if the user asked for that.

A RocketMQ store root is read queue by queue, as far as its consume queues reach. Its queues are
merged by the places of their records in the log.

Damage hides nothing but itself. The good messages before it, and those of other lanes, are given
out before its error is raised. With `ignore_corrupt` the messages behind it are given out too.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from commitlog.client.statistics import ReaderStatistics
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    DamagedFile,
    IllegalArgument,
    OptionError,
    ReaderError,
    read_error,
    refuse_copy,
)
from commitlog.message import Message
from commitlog.reading.given_places import GivenPlaces
from commitlog.reading.hand import Hand
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.message_source import MessageSource, Wanted, topics_of
from commitlog.reading.reader_position import ReaderPosition, check_named, check_options, read_queues
from commitlog.reading.rests import Rests
from commitlog.reading.starting_point import QueueStarts, parse_starts
from commitlog.remote.columns_reader import ColumnsReader
from commitlog.remote.reader_source import open_source
from commitlog.system.clock import SYSTEM_CLOCK, Clock, limit_ns
from commitlog.system.threads import if_free

if TYPE_CHECKING:
    from commitlog.appending.followed_store import FollowedStore

_Read = TypeVar("_Read")
_MESSAGES_IN_A_ROW = 64
"""After this number of messages an `async for` lets other tasks run."""


class Reader(ColumnsReader):
    """An iterator over the messages of a store.

    `for message in Reader("data/events", topic="orders")`; `async for` works as well. One thread at
    a time reads; `close`, `commit` and `statistics` may be called from others.

    What is read:
    - `path`: a store; or a RocketMQ store root, of which `partition` is the queue id. A root can't
      be followed, and has neither `isolation` nor names. Its light queues (`%LMQ%…`) are read only
      where `topic` names them. Or the URL of a store that `commitlog serve` serves:
      `commitlog+tls://host:4433/events`, with `token`, `token_file`, `ca_file`, `cert_file` and
      `key_file` as for `read_arrow`. A server that is away is waited for, for 30 seconds.
    - `topic`: a name, several, or None for all.
    - `start`: "earliest", "latest", "last 100" (of each topic and partition), "10 minutes ago", an
      ISO time or a datetime, an offset for every partition, or offsets for single ones, as in
      `{"orders": {0: 42, 1: 7}}` (−1 latest, −2 earliest; the others begin at the earliest).
    - `isolation`: "flushed" survives a power loss. "committed" is in the segment files, and
      survives the end of all processes. "accepted" is what producers have written to shared memory,
      which survives that as well. A power loss may take back what was only committed or accepted,
      and other messages get its offsets: a reader that goes on then raises DataLoss.
    - `lanes`: only these, as in `{0, 2}`.
    - `members=(i, n)`: only lanes whose number modulo n is i, so that n readers share the work. A
      lane that is added while they follow belongs to one of them, too.
    - `follow`: wait for more at the end, instead of stopping there.
    - `hurry`: a message is committed and flushed at once while this reader follows, as if somebody
      waited for its receipt. That costs more syncs, and more of the stages' CPU.

    With a `name` the reader goes on where the last reader of that name was; `start` says where the
    first reader of the name begins. `commit` says which messages are done. Messages that were given
    out and not committed come again: each message comes at least once. One process at a time holds
    a name. Retention keeps the messages that the reader of a name has not committed. Readers that
    share the lanes by `members` have a name each. A position is never ahead of what is flushed:
    where `isolation` lets the reader be ahead, `commit` waits for the flush, for ten seconds at
    most, and an automatic commit takes what is flushed.

        with Reader("data/events", topic="orders", name="billing", follow=True) as reader:
            for message in reader:
                bill(message)
                reader.commit(message)

    - `auto_commit_seconds`: the time between two commits. A message counts as done when the next
      one is asked for.
    - `fail_on_data_loss=False`: retention may delete messages that a named reader had not read when
      it was stopped. The next reader of the name then goes on with a ReadingWarning that counts
      them, instead of raising DataLoss. So it does where the name has places that are not read now,
      instead of raising ReaderError. Who is overtaken while it reads gets DataLoss in any case.

    A damaged record raises an error, after all good messages before it and in other lanes were
    given out. The next call of `next` looks at that record again. With `ignore_corrupt=True` the
    reader goes on behind damaged records, and counts them in a ReadingWarning.

    Raises:
    - StoreNotFound
    - UnknownTopic: no such topic is there; a reader that follows waits for it, and warns once
    - IllegalTopic, BadStart, OptionError, IllegalArgument: an argument is wrong, or impossible here
    - OffsetOutOfRange: a start is before the first message kept, or beyond the last
    - ReaderInUse, ReaderError: the name is in use, or its position can't be used here
    - DataLoss, CorruptRecord, DamagedFile: messages are gone or damaged
    - by URL also ServerUnavailable, ServerBusy, AccessDenied, CertificateRefused, ServerError
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        topic: str | Collection[str] | None = None,
        *,
        start: str | int | datetime | Mapping[str, Mapping[int, int]] = "earliest",
        follow: bool = False,
        isolation: Literal["flushed", "committed", "accepted"] = "flushed",
        lanes: Collection[int] | None = None,
        members: tuple[int, int] | None = None,
        name: str | None = None,
        auto_commit_seconds: float | None = None,
        fail_on_data_loss: bool = True,
        ignore_corrupt: bool = False,
        hurry: bool = False,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if isolation not in ("flushed", "committed", "accepted"):
            raise IllegalArgument(f"isolation is 'flushed', 'committed' or 'accepted', not {isolation!r}")
        self.topics = topics_of(topic)
        self.follow, self.ignore_corrupt = follow, ignore_corrupt
        self._clock = clock
        starts = parse_starts(start, clock)
        self._lanes = choice = LaneChoice.of(lanes, members)
        self._isolation, self._fail_on_data_loss = isolation, fail_on_data_loss
        self._position: ReaderPosition | None = None
        self._hand, self._given = Hand(), GivenPlaces(has_gaps=ignore_corrupt)
        self._is_at_end = self._is_torn = False
        self._lock = threading.Lock()
        """Held by what reads, and by what frees."""
        self._columns: Generator[object, None, None] | None = None
        self._behind = None
        self._closed, self._failure = False, ""
        self._held: Exception | None = None
        """An error that is raised at the next call, because a batch was given out before it."""
        self._last_statistics: ReaderStatistics | None = None
        self._pieces = self._read(refresh=follow)  # messages that came since are given out too
        wanted = Wanted(self.topics, choice, isolation, follow, ignore_corrupt)
        files = token_file, ca_file, cert_file, key_file
        self._place = path, token, files
        self._followed = _followed_store(isolation) if hurry and follow else None
        self._source: MessageSource = open_source(path, wanted, clock, self._followed, token, *files)
        self._rests = Rests(clock, isolation, self._source.least_rest)
        try:
            check_options(name, self.topics, auto_commit_seconds, one_log=self._source.one_log)
            if name is not None:
                kept = self._source.keep_position(name)
                self._position = ReaderPosition(kept, name, self.topics, choice, auto_commit_seconds, clock)
            self._begin(starts, fail_on_data_loss=fail_on_data_loss)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise read_error(error, self._source.path) from error
            raise

    def _begin(self, starts: QueueStarts, *, fail_on_data_loss: bool) -> None:
        """Looks at the store for the first time."""
        self._source.look()
        if self._position is not None:
            starts = self._position.begin(self._source, starts, fail_on_data_loss=fail_on_data_loss)
        else:
            check_named(starts, read_queues(self._source.index, self.topics))
        self._given.begin(self._source.begin(starts))

    @property
    def one_log(self) -> bool:
        """Whether the path is a RocketMQ store root."""
        return self._source.one_log

    # ---- messages -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        for given in self._hand.left if self._position is None else ():
            return given  # the same as below, in less time
        message = self._out_of_hand()
        while message is None:
            self._rest()
            message = self._take()
        return message

    def poll(self, timeout: float | None = 0.0) -> Message | None:
        """Returns the next message, or None if none came within `timeout` seconds (None: no limit).

        It is for loops that do other things too. At the end and after `close` it also returns None;
        `closed` tells the two apart. A reader that passes many messages of other topics may return
        None although a wanted message is behind them. Raises what `next` raises, and
        IllegalArgument for a timeout that is not a time.
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
            self._rest(left)

    def batches(self, most: int = 1000, timeout: float | None = None) -> Iterator[list[Message]]:
        """Gives the messages in lists: those that are there, and at most `most` of them.

            for messages in reader.batches():
                store(messages)
                reader.commit()

        A reader that follows waits for the first message of a list, at most `timeout` seconds
        (None: no limit). If none came it gives an empty list, so that the loop can do other things
        too. Otherwise the lists end with the messages.

        A list counts as given out, and as done when the next one is asked for: see `commit`. Lists
        and single messages may take turns. An error is raised after the good messages before it,
        and `next` may be called again as for the reader itself. Raises what `next` raises, and
        IllegalArgument for a `most` or a timeout that can't be.
        """
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise IllegalArgument(f"batches: most is a number of messages from 1 on, not {most!r}")
        return iter(partial(self._batch, most, limit_ns(timeout)), None)

    def _batch(self, most: int, limit: float) -> list[Message]:
        deadline = self._clock.monotonic_ns() + limit
        try:
            if self._is_torn:
                self._take_in_hand()  # what is in hand comes anew
            while (had := len(self._hand)) < most:
                self._take_in_hand()
                if len(self._hand) == had:
                    left = (deadline - self._clock.monotonic_ns()) / 1e9
                    if had or left <= 0:
                        break
                    self._rest(left)
        except StopIteration:
            if not self._hand:
                raise
        except CommitLogError as error:
            if not self._hand:
                raise
            self._held = error
        batch, position = self._hand.first(most), self._position
        if position is None:
            self._given.note(self._hand.passed)
            self._given.note(batch)
            self._hand.drop(len(batch))
        else:
            last = {(each.topic, each.partition): each.offset + 1 for each in batch}
            position.asked()
            self._hand.drop(len(batch))
            position.last = last
        return batch  # nothing was called since it was dropped

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        """Returns the next message. While there is none, the event loop is not blocked.

        The reader reads in the loop's thread, a few MiB of each lane at a time, and sleeps on the
        loop in between. A thread of its own would cost more than most messages do. It would also
        lose a message if its task is cancelled; without one, no message is in hand at the places
        where a cancellation can come. `commit` waits for the disk: use `await
        asyncio.to_thread(reader.commit)`.
        """
        import asyncio

        if self._hand.given % _MESSAGES_IN_A_ROW == 0:
            await asyncio.sleep(0)  # lets other tasks run, even if there is always a message
        while True:
            try:
                message = self._take()
            except StopIteration:
                raise StopAsyncIteration from None
            if message is not None:
                return message
            await asyncio.sleep(self._rests.next(self._hand.given).seconds if self._must_rest else 0)

    def _take(self) -> Message | None:
        """Returns the next message, or None if there is none at the moment.

        Raises StopIteration at the end and after `close`.
        """
        message = self._out_of_hand()
        if message is None:
            if self._hand:  # for a list that was interrupted
                self._put_in_hand(())
            else:
                self._take_in_hand()
            message = self._out_of_hand()
        return message

    def _take_in_hand(self) -> None:
        """Takes the next piece of the log in hand, when all messages in hand were given out.

        Raises StopIteration at the end and after `close`.
        """
        self._check_columns()
        self._alone(self._take_piece)
        if self._closed:  # meanwhile, by another thread or a signal handler
            raise StopIteration

    def _alone(self, read: Callable[[], _Read]) -> _Read | None:
        """Reads, in one thread at a time. A `close` meanwhile leaves its work to the end of this.

        It returns None if the reader is closed. Raises ReaderError inside of another read.
        """
        for _ in if_free(self._lock):
            try:
                return None if self._closed else read()
            finally:
                self._lock.release()
                if self._closed:
                    self.close()
        if self._closed:
            return None
        raise ReaderError(
            "this reader is inside `next` already, and serves one thread at a time: give each a reader of its own"
        )

    def _take_piece(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            raise held
        try:
            if self._is_torn:
                self._begin_again(self._places())
            self._is_torn = True  # by an interrupt, if this does not come to its end: then nobody has the piece
            piece = next(self._pieces)
        except StopIteration:
            self._is_torn = False
            if not self._closed:
                self._note_end()
            raise
        except CommitLogError as error:
            self._note_error(error)
            raise
        except OSError as error:
            if error.errno is None:  # a signal handler's TimeoutError
                raise
            self._note_error(error)
            raise read_error(error, self._source.path) from error
        if piece:
            self._put_in_hand(piece)
        self._is_torn = False
        if not piece and self._position is not None:
            self._position.asked()

    def _read(self, *, refresh: bool) -> Generator[Sequence[Message], None, None]:
        """Gives all messages in their order, a piece of the log at a time.

        Gives an empty piece at the end, and after a long walk without a message. With `refresh` it
        first looks for messages that came, and damage that was healed, since the last look.
        """
        if refresh:
            self._source.refresh(whole=True)
        while True:
            is_any = False
            for piece in self._source.messages():
                is_any = is_any or len(piece) > 0
                yield piece
            if not self.follow:
                return
            if not is_any:
                self._is_at_end = True
                yield ()
                self._is_at_end = False
            self._source.refresh()

    def value_lists(self) -> Iterator[Sequence[bytes | memoryview]]:
        """Gives the values of all messages in their order, in lists, in a fraction of the time.

        It is for callers that need only the values, such as `commitlog cat`. A value may be a view
        of a mapped file: copy the values that you keep. The reader must have no `follow`, `name` or
        `ignore_corrupt`, its path must be a store of ours, and nobody may call `next` on it. Its
        statistics stay as they are. Raises what `next` raises, and OptionError for another reader.
        """
        if self.follow or self._position is not None or self.ignore_corrupt or self.one_log:
            raise OptionError("value_lists: follow, name, ignore_corrupt and RocketMQ's roots are read by message")
        try:
            yield from self._each(self._source.values())
        except OSError as error:
            raise read_error(error, self._source.path) from error

    @property
    def _must_rest(self) -> bool:
        return self._is_at_end or self._source.is_waiting

    def _rest(self, most: float = math.inf) -> None:
        """Waits for more if there is nothing at the moment, at most so many seconds."""
        if self._must_rest:
            self._source.wait(self._rests.next(self._hand.given), most)

    def _note_end(self) -> None:
        """Notes that there are no more messages. Raises ReaderError if an error was the end."""
        if self._failure:
            raise ReaderError(f"this reader ended with {self._failure}: make another to go on") from None
        if self._position is not None:
            self._position.ended()

    def _note_error(self, error: CommitLogError | OSError) -> None:
        """Notes the error that `next` raised: the end, or damage, where `next` looks again."""
        self._is_torn = False
        if isinstance(error, CorruptRecord | DamagedFile):
            self._pieces = self._read(refresh=True)
        else:
            self._end_with(error)

    # ---- the end --------------------------------------------------------------------------------

    def statistics(self) -> ReaderStatistics:
        """Returns how many messages were given out, and how many bytes are not read yet.

        For a closed reader, these are the numbers at the time of the close.
        """
        return self._last_statistics or self._statistics()

    def _note_last_statistics(self) -> None:
        try:
            self._last_statistics = self._statistics()
        except (CommitLogError, OSError):  # the store is gone, or damaged: to close a reader of it is no error
            self._last_statistics = ReaderStatistics(self._hand.given, {}, {})

    def _statistics(self) -> ReaderStatistics:
        return ReaderStatistics(self._hand.given, *self._source.progress())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Ends the iteration for good.

        It may be called anywhere: in the loop's body, a signal handler, another thread. From then
        on `next` raises StopIteration, and so does a `next` that waits. Messages that were read
        ahead are not given out. Files and memory are free when `close` returns. If a read is
        running, it ends soon and frees them itself. A second call does nothing.

        With `auto_commit_seconds` the messages that are done are committed. The message that was
        given out last counts only if the reader was asked for another one.
        """
        self._closed = True
        self._hand.empty()
        for _ in if_free(self._lock):  # otherwise what reads sees at its end that the reader is closed, and calls this
            try:
                self._free()
            finally:
                self._lock.release()

    def _free(self) -> None:
        self._pieces.close()
        nothing: Sequence[Sequence[Message]] = ()
        self._pieces = (piece for piece in nothing)  # Python 3.12.3 keeps what a closed generator has
        if self._columns is not None:
            self._columns.close()
        if self._last_statistics is None:
            self._note_last_statistics()
        self._source.close()
        if self._followed is not None:
            self._followed.close()
        if self._position is not None:
            self._position.close()

    __reduce_ex__ = refuse_copy

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _followed_store(isolation: str) -> FollowedStore:
    from commitlog.appending.followed_store import FollowedStore  # needs ZeroMQ

    return FollowedStore(isolation)

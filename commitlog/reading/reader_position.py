"""The position of a named reader: `Reader(path, name="billing")` goes on where it was.

The position is kept in the store (named_readers.py). Retention keeps the messages that are not
committed, `commitlog readers` shows how far the reader is behind, and only one process at a time
has the name.

**At least once.** A position is written after messages were given out, never before. So a reader
that is started again gets all messages that were not committed, some of them a second time. Three
counts matter, each by topic and lane:

- *given out*: the messages that the reader has handed to its user;
- *done*: the same without the last message (or batch), until the user asks for another one: the
  user may still be working on it;
- *committed*: what the file says.

`commit()` commits all messages that were given out: its caller says that the last message is done,
too. An automatic commit takes only the messages that are done. A position never goes back, except
by `seek`.

Threads: the thread that reads calls `asked` and `ended`, and sets `last`. Any thread or signal
handler may call `commit` and `close`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import (
    CommitLogError,
    DataLoss,
    IllegalArgument,
    OffsetOutOfRange,
    OptionError,
    ReaderError,
    ReadingWarning,
)
from commitlog.message import Message
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.message_source import GivesRows, KeptPosition, MessageSource, QueuesOfStore
from commitlog.reading.named_reader import PYTHON, NamedReader, check_name
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.starting_point import EARLIEST, EARLIEST_OFFSET, Offsets, QueueStarts, parse_starts, resolve
from commitlog.reading.stored_position import check_owner, unwritable
from commitlog.reading.topic_index import TopicIndex
from commitlog.record.topic_names import check_topic
from commitlog.system.clock import SYSTEM_CLOCK, Clock, limit_ns
from commitlog.system.threads import if_free
from commitlog.text.lines import for_shell

log = logging.getLogger(__name__)

Places = dict[tuple[str, int], int]
"""(topic, lane) → next queue offset."""

_FLUSH_NS_MOST, _LOOK_SECONDS = 10 * 10**9, 0.001
"""How long a commit waits until what it commits is flushed, and how often it looks."""


class ReaderPosition:
    """The position of one reader, whose name `kept` holds until `close`."""

    def __init__(
        self,
        kept: KeptPosition,
        name: str,
        topics: Collection[str] | None,
        lanes: LaneChoice,
        auto_commit_seconds: float | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name, self.topics, self.lanes, self.clock = name, topics, lanes, clock
        self._kept = kept
        self._every_ns = None if auto_commit_seconds is None else limit_ns(auto_commit_seconds)
        self._done: Places = {}
        self._committed: Places = {}
        self.given_by: GivesRows | None = None
        """What has given out the last rows: it knows of which epoch of the store all are."""
        self.last: Places = {}
        """Where the messages end that the user may still be working on.

        Who gives them out sets it, and calls nothing in between: an interrupt may come at a call.
        """
        self._tried_ns = clock.monotonic_ns()
        self._complaint = ""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._is_writing = self._is_closing = self._is_closed = False

    # ---- the beginning --------------------------------------------------------------------------

    def begin(self, source: MessageSource, starts: QueueStarts, *, fail_on_data_loss: bool) -> QueueStarts:
        """Returns where to begin in each queue.

        A known reader begins at its position, a new one at `starts`. The position is in the file
        when this returns, so that retention knows it. Raises ReaderError (a position of another
        store, or of a Spark query; one that can't be read or written, or of topics and lanes that
        are not read now), DataLoss, OffsetOutOfRange.
        """
        index, known = source.index, self._kept.load()
        if known is None:
            check_named(starts, read_queues(index, self.topics))
            self._done = {
                (topic, lane): _resolved(index, starts, topic, lane, queue)
                for topic, lane, queue in queues_of(index, self.topics, self.lanes)
            }
        else:
            self._name_dropped(known, fail_on_data_loss)
            self._done = self._gone_on(known, index, fail_on_data_loss)
        committed = self._kept.flushed(self._done)
        reader = self._registered(committed)
        if known != reader:
            self._kept.save(reader, source.epoch)
        self.given_by, self._committed = source, committed
        return QueueStarts(EARLIEST, by_topic(self._done))

    def _gone_on(self, known: NamedReader, index: QueuesOfStore, fail_on_data_loss: bool) -> Places:
        """Returns the places of a known reader in the present queues.

        A queue that is new to the reader begins with its first message that is kept.
        """
        found: Places = {}
        lost: list[str] = []
        missing = 0
        for topic, lane, queue in queues_of(index, self.topics, self.lanes):
            offset = known.offset(topic, lane)
            if offset is None:
                offset = queue.first
            elif offset > queue.end:
                raise OffsetOutOfRange(
                    f"reader {self.name}: it was at {offset:,} in topic {topic}, lane {lane}, and the store ends at "
                    f"{queue.end:,}. If the store was killed, start it once (`commitlog run`), and it recovers; otherwise "
                    f"move the reader: `{self._seek()} earliest`, or to another place"
                )
            elif offset < queue.first:
                missing += queue.first - offset
                lost.append(f"{queue.first - offset:,} of topic {topic}, lane {lane} (from {offset:,} on)")
            found[topic, lane] = max(offset, queue.first)
        for topic, lanes in known.offsets.items():
            for lane, offset in lanes.items():
                if offset and self._is_read(topic, lane) and (topic, lane) not in found:
                    lost.append(f"the whole of topic {topic}, lane {lane}, where it was at {offset:,}")
        if lost:
            shown = "; ".join(lost[:5]) + "; …" * (len(lost) > 5)
            text = f"reader {self.name}: {missing:,} messages were deleted before it read them: {shown}"
            if fail_on_data_loss:
                raise DataLoss(f"{text}. Go on without them: fail_on_data_loss=False, or `{self._seek()} earliest`")
            warnings.warn(f"{text}; it goes on without them", ReadingWarning, stacklevel=5)
        return found

    def _name_dropped(self, known: NamedReader, fail_on_data_loss: bool) -> None:
        """Says which places of a known reader are forgotten, because it does not read there now.

        Retention keeps nothing for them any more, and who reads there again begins anew. Raises
        ReaderError unless `fail_on_data_loss` is not set.
        """
        dropped = [
            f"topic {topic}, lane {lane} (at {offset:,})"
            for topic, lanes in known.offsets.items()
            for lane, offset in lanes.items()
            if not self._is_read(topic, lane)
        ]
        if not dropped:
            return
        shown = "; ".join(dropped[:5]) + "; …" * (len(dropped) > 5)
        text = f"reader {self.name} has places that it does not read now: {shown}"
        if fail_on_data_loss:
            raise ReaderError(
                f"{text}. Read these, too, or give this reader a name of its own; or forget them: fail_on_data_loss=False"
            )
        warnings.warn(f"{text}; they are forgotten, and nothing is kept for them", ReadingWarning, stacklevel=5)

    def _is_read(self, topic: str, lane: int) -> bool:
        return (self.topics is None or topic in self.topics) and lane in self.lanes

    def _seek(self) -> str:
        return f"commitlog readers {for_shell(self._kept.place)} --seek {for_shell(self.name)}"

    def _registered(self, places: Places) -> NamedReader:
        offsets: Offsets = {topic: {} for topic in self.topics or ()} | by_topic(places)
        everything = self.topics is None
        store_id = self._kept.store_id
        return NamedReader(
            self.name, store_id, offsets, moved_ms=0, kind=PYTHON, all_topics=everything, lanes=self.lanes
        )

    # ---- what is given out ----------------------------------------------------------------------

    def asked(self) -> None:
        """Notes that the user asks for more. So all messages that were given out are done.

        Raises what has taken the name away: somebody else may be reading the same messages.
        """
        self._no_child()
        self._last_is_done()
        if self._every_ns is not None:
            self._commit_if_due(self._every_ns)
        self._kept.check()

    def ended(self) -> None:
        """Notes that the user has asked for more and there are no more messages.

        So all messages are done.
        """
        self._last_is_done()
        if self._every_ns is not None:
            self._commit_if_due(0)

    def _last_is_done(self) -> None:
        if self.last:
            self._done.update(self.last)
            self.last = {}

    def places(self) -> Places:
        """For each topic and lane, the queue offset that will be given out next."""
        return self._done | self.last

    def move(self, places: Places) -> None:
        """Notes that the reader has moved to these places: all before them counts as done."""
        self._no_child()
        self._done, self.last = dict(places), {}

    def committed(self) -> Offsets:
        """For each topic and lane, the queue offset where a new reader of this name would begin."""
        return by_topic(self._committed)

    # ---- commits --------------------------------------------------------------------------------

    def commit(self, message: Message | None = None) -> None:
        """Commits what was given out.

        With a message it commits only the message's topic and lane, up to that message and with it.
        Raises ReaderError (closed, in a forked child, not this reader's message, inside another
        commit of this thread, or the file can't be written), IllegalArgument (not a message).
        """
        self._no_child()
        places = self.places()
        if message is not None:
            if not isinstance(message, Message):
                raise IllegalArgument(
                    f"reader {self.name}: commit takes a message that this reader has given out, or nothing for all of them, "
                    f"not {type(message).__name__}"
                )
            key = message.topic, message.partition
            if message.offset >= places.get(key, 0):
                raise ReaderError(
                    f"reader {self.name}: offset {message.offset:,} of topic {key[0]}, lane {key[1]} was not given out by "
                    "this reader: commit its own messages"
                )
            places = {key: message.offset + 1}
        try:
            with self._lock:
                self._check_is_free()
                self._write(self._when_flushed(places))
        finally:
            self._close_if_wanted()

    def _check_is_free(self) -> None:
        if self._is_writing:
            raise ReaderError(
                f"reader {self.name}: this thread is in the middle of a commit: commit when the signal handler has ended"
            )
        if self._is_closed:
            raise ReaderError(f"reader {self.name} is closed: commit before you close it")

    def _when_flushed(self, places: Places) -> Places:
        """Waits until all before these places is flushed. Raises ReaderError if it takes long."""
        deadline = self.clock.monotonic_ns() + _FLUSH_NS_MOST
        self._is_writing = True
        try:
            while self._kept.flushed(places) != places:
                if self.clock.monotonic_ns() > deadline:
                    raise ReaderError(
                        f"reader {self.name}: what is to be committed was accepted and is not flushed after "
                        f"{_FLUSH_NS_MOST // 10**9} seconds, so nothing was committed: see `commitlog health "
                        f"{for_shell(self._kept.place)}`, and commit again"
                    )
                self.clock.sleep(_LOOK_SECONDS)
        finally:
            self._is_writing = False
        return places

    def _commit_if_due(self, every_ns: float) -> None:
        """Does an automatic commit when it is time.

        If the file can't be written, nothing is lost: the commit is tried again, and one warning is
        logged.
        """
        if self.clock.monotonic_ns() - self._tried_ns < every_ns:
            return
        self._no_child()
        for _ in if_free(self._lock):  # otherwise another thread is committing
            try:
                if not (self._is_writing or self._is_closed):
                    self._write_or_complain()
            finally:
                self._lock.release()
                self._close_if_wanted()

    def _write_or_complain(self) -> None:
        try:
            self._write(self._kept.flushed(self._done.copy()))
            self._complaint = ""
        except CommitLogError as error:
            text = str(error)
            if text != self._complaint:
                log.warning("%s; until then more is kept and comes again", text)
                self._complaint = text

    def _write(self, places: Places) -> None:
        """Moves the committed places forward to these. No place moves back.

        Raises ReaderError.
        """
        self._tried_ns = self.clock.monotonic_ns()
        wanted = self._committed | {key: max(to, self._committed.get(key, 0)) for key, to in places.items()}
        if wanted == self._committed:
            return
        self._is_writing = True
        try:
            self._kept.save(self._registered(wanted), None if self.given_by is None else self.given_by.epoch)
            self._committed = wanted
        finally:
            self._is_writing = False

    def _no_child(self) -> None:
        if os.getpid() != self._pid:
            raise ReaderError(
                f"reader {self.name} was made before a fork, by the parent process: make one with another name in the child"
            )

    # ---- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Commits what is done, if commits are automatic, and gives the name back.

        In a forked child it does nothing. If a commit is running (in another thread, or in this one
        under a signal handler), that commit does both at its end.
        """
        self._is_closing = True
        if os.getpid() == self._pid:
            self._close_if_wanted()

    def _close_if_wanted(self) -> None:
        if not self._is_closing or self._is_closed:
            return
        for _ in if_free(self._lock):
            try:
                if not self._is_writing and not self._is_closed:
                    if self._every_ns is not None:
                        self._write_or_complain()
                    self._is_closed = True
                    self._kept.let_go()
            finally:
                self._lock.release()


def check_options(
    name: str | None,
    topics: Collection[str] | None,
    auto_commit_seconds: float | None,
    *,
    one_log: bool,
) -> None:
    """Checks that the options of a reader go together.

    Raises OptionError, ReaderError (the name is not allowed), IllegalTopic.
    """
    if auto_commit_seconds is not None:
        is_number = isinstance(auto_commit_seconds, int | float) and not isinstance(auto_commit_seconds, bool)
        if not is_number or not 0 <= auto_commit_seconds < math.inf:
            raise OptionError(
                f"auto_commit_seconds: {auto_commit_seconds!r} is not allowed; give seconds, from 0 on, or None"
            )
        if name is None:
            raise OptionError("auto_commit_seconds: only a reader with a name has a position to commit; give it one")
    if name is None:
        return
    check_name(name)
    for topic in topics or ():
        check_topic(topic)
    if one_log:
        raise OptionError(f"name={name!r}: a RocketMQ store root is only read, and keeps no position: leave it out")


def seek(index: TopicIndex, name: str, to: str) -> NamedReader:
    """Moves a reader that does not run to a start, or some of its queues to offsets (JSON).

    Queues that the offsets do not name stay where they are. Returns the reader as it is now. Raises
    BadStart, OffsetOutOfRange, ReaderInUse, ReaderError (no such reader, a Spark query's, one of
    another store, one that can't be read or written).
    """
    starts = parse_starts(to)
    readers = NamedReaders(StoreDirectory(index.view.path, index.view.channel))
    readers.check_is_registered(name)
    held = readers.hold(name)
    try:
        reader = readers.load(name)
        check_owner(reader, index.view.store_id, readers)
        offsets: Offsets = {topic: dict(lanes) for topic, lanes in reader.offsets.items()}
        queues = {(topic, lane): queue for topic, lane, queue in queues_of(index, None, reader.lanes)}
        queues = {key: queue for key, queue in queues.items() if reader.offset(*key) is not None}
        named = {(topic, lane) for topic, lanes in starts.offsets.items() for lane in lanes}
        check_named(starts, set(queues), least=EARLIEST_OFFSET)
        for topic, lane in named or queues:
            offsets.setdefault(topic, {})[lane] = _resolved(index, starts, topic, lane, queues[topic, lane])
        moved = readers.moved(replace(reader, offsets=offsets))
        try:
            readers.save(moved)
        except OSError as error:
            raise unwritable(name, readers, error) from error
        return moved
    finally:
        readers.let_go(held)


def check_named(starts: QueueStarts, present: Collection[tuple[str, int]], least: int = 1) -> None:
    """Checks that each queue that is given an offset of at least `least` exists and is read.

    Raises OffsetOutOfRange.
    """
    for topic, lanes in starts.offsets.items():
        for lane, number in lanes.items():
            if number >= least and (topic, lane) not in present:
                raise OffsetOutOfRange(
                    f"offset {number:,} of topic {topic}, lane {lane}: this queue has no messages, or is not read: give "
                    "offsets of other queues (`commitlog stat` shows them)"
                )


def read_queues(index: QueuesOfStore, topics: Collection[str] | None) -> set[tuple[str, int]]:
    """Topic and lane of all queues of these topics.

    Lanes of other members count too, because all members may be given the same starts.
    """
    named = [topic for topic in index.topics(deleted=True) if topics is None or topic in topics]
    return {(topic, lane) for topic in named for lane in index.ranges(topic)}


def queues_of(
    index: QueuesOfStore, topics: Collection[str] | None, lanes: LaneChoice
) -> Iterator[tuple[str, int, QueueRange]]:
    """Topic, lane and range of the queues that are present and read."""
    for topic in index.topics(deleted=True):
        if topics is None or topic in topics:
            ranges = index.ranges(topic)
            for lane in sorted(filter(lanes.__contains__, ranges)):
                yield topic, lane, ranges[lane]


def _resolved(index: QueuesOfStore, starts: QueueStarts, topic: str, lane: int, queue: QueueRange) -> int:
    where = f"{topic}, lane {lane}"
    return resolve(
        starts.of(topic, lane), queue.first, queue.end, partial(index.find_by_time, topic, lane), where=where
    )


def by_topic(places: Places) -> Offsets:
    found: Offsets = {}
    for (topic, lane), offset in sorted(places.items()):
        found.setdefault(topic, {})[lane] = offset
    return found

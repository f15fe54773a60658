"""What a Reader knows of its place: positions, commits, how far it is behind, and how it moves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar

from commitlog.errors import CommitLogError, DataLoss, OffsetOutOfRange, ReaderError
from commitlog.message import Message
from commitlog.reading.given_places import GivenPlaces, Places
from commitlog.reading.hand import Hand
from commitlog.reading.message_source import GivesRows, MessageSource
from commitlog.reading.reader_position import ReaderPosition, by_topic, check_named, read_queues
from commitlog.reading.starting_point import EARLIEST, Offsets, QueueStarts, parse_starts, resolve
from commitlog.system.clock import Clock
from commitlog.text.notebook import html_table, shortened

_Read = TypeVar("_Read")


class RowsGiven(GivesRows, Protocol):
    """What has given out rows as columns."""

    def check_read(self, places: Places) -> None:
        """Raises DataLoss if the store has lost messages before these places meanwhile."""


class PlacedReader:
    """The part of Reader that has to do with its place. `Reader.__init__` makes all attributes."""

    topics: set[str] | None
    follow: bool
    _clock: Clock
    _source: MessageSource
    _position: ReaderPosition | None
    _hand: Hand
    _given: GivenPlaces
    _pieces: Generator[Sequence[Message], None, None]
    _held: Exception | None
    _is_at_end: bool
    _is_torn: bool
    _columns: Generator[object, None, None] | None
    _behind: RowsGiven | None
    """What has given out rows, if these came last."""
    _closed: bool
    _failure: str

    def _read(self, *, refresh: bool) -> Generator[Sequence[Message], None, None]:
        raise NotImplementedError

    def _alone(self, read: Callable[[], _Read]) -> _Read | None:
        raise NotImplementedError

    def _out_of_hand(self) -> Message | None:
        """Gives out the next message in hand, if there is one. See Hand for interrupts."""
        position = self._position
        if position is not None and (message := self._hand.next()) is not None:
            position.asked()
            position.last = {(message.topic, message.partition): message.offset + 1}
        for given in self._hand.left:  # a loop takes it without a call
            return given
        return None

    def _put_in_hand(self, messages: Sequence[Message]) -> None:
        if self._position is None:
            self._given.note(self._hand.passed)
        self._hand.fill(messages)

    def commit(self, message: Message | None = None) -> None:
        """Stores durably that all messages given out so far are done.

        With a `message`, only messages of its topic and partition are done, up to this message and
        with it. A position never goes back. The call takes as long as a sync of the disk.

        Raises:
        - ReaderError: the reader has no name, is closed, is a forked child's, did not give out this
          message, or can't write its position
        - IllegalArgument: the argument is no message
        """
        self._named().commit(message)

    def committed(self) -> Offsets:
        """Returns the offsets at which a new reader of this name would begin, as `position` does.

        Raises ReaderError for a reader without a name.
        """
        return self._named().committed()

    def _named(self) -> ReaderPosition:
        if self._position is None:
            raise ReaderError("this reader has no name, and so no commits: make it with one, Reader(…, name='billing')")
        return self._position

    def position(self) -> Offsets:
        """Returns the next offset to be given out, by topic and partition: `{"orders": {0: 43}}`.

        It is a `start` for another reader. Any thread may call it. Raises ReaderError for a closed
        reader without a name.
        """
        return by_topic(self._places())

    def _places(self) -> Places:
        if self._position is not None:
            return self._position.places()
        self._check_open()
        return self._first_places() | self._given.places(*self._hand.taken)

    def _first_places(self) -> Places:
        """The first offset that is kept of each queue that this reader reads."""
        return {key: queue.first for key, queue in self._source.queues().items()}

    def lag(self) -> Offsets:
        """Returns how many messages are there and were not given out, by topic and partition.

        So `{"orders": {0: 7}}` means that seven messages of lane 0 are to come. It looks at the
        store anew, which takes some milliseconds. Any thread may call it. What the reader of a name
        has not committed is in `commitlog readers`. Raises ReaderError for a closed reader,
        DataLoss if another store took its store's place, and what opening the store raises.
        """
        self._check_open()
        queues, places = self._source.queues_now(), self._places()
        return by_topic({key: max(queue.end - places.get(key, queue.first), 0) for key, queue in queues.items()})

    def seek(self, start: str | int | datetime | Mapping[str, Mapping[int, int]]) -> None:
        """Moves to a place: the messages from there on are given out next.

        It takes the words of `start`: "earliest", "latest", "last 100", "10 minutes ago", a time,
        an offset; they count from now. Offsets of single queues, `{"orders": {0: 42}}`, move these,
        and the others stay. `{}`, which is the position in an empty store, is the earliest.

        The reader of a name may go back, and gives messages out once more; what was committed stays
        committed. If it goes forward, the next commit says that what it passed over is done.

        Where it can't move, it stays where it is. Raises BadStart, OffsetOutOfRange, ReaderError
        (closed, ended by an error, inside `next` or of `arrow_batches`), and what looking at the
        store raises.
        """
        self._check_open()
        if self._failure:
            raise ReaderError(f"this reader ended with {self._failure}: make another to go on")
        self._check_columns()
        self._alone(partial(self._seek, parse_starts(start, self._clock)))

    def _seek(self, starts: QueueStarts) -> None:
        here = self._places()
        for (topic, lane), queue in self._source.queues_now().items():  # by a look that touches nothing
            if (wanted := starts.of(topic, lane)).kind == "offset":
                resolve(wanted, queue.first, queue.end, lambda _ms: None, where=f"{topic}, lane {lane}")
        self._source.refresh(whole=True)
        if starts.offsets:
            check_named(starts, read_queues(self._source.index, self.topics))
            named = {topic: dict(lanes) for topic, lanes in starts.offsets.items()}
            offsets = by_topic(here)
            starts = QueueStarts(
                EARLIEST, {topic: offsets.get(topic, {}) | named.get(topic, {}) for topic in {*offsets, *named}}
            )
        try:
            self._begin_at(starts)
        except CommitLogError as error:
            try:
                self._begin_again(here)
            except (CommitLogError, OSError):
                self._end_with(error)
            raise

    def _end_with(self, error: Exception) -> None:
        """Notes that the reader has ended with an error."""
        self._failure, self._is_torn = f"{type(error).__name__}: {error}", False
        self._pieces.close()

    def _check_columns(self) -> None:
        if self._columns is not None:
            raise ReaderError("this reader gives arrow_batches: go on when that iterator has ended, or close it")

    def _begin_again(self, places: Places) -> None:
        """Begins anew where the reader was. Raises DataLoss if the messages there are gone."""
        if self.follow:
            self._source.refresh(whole=True)  # the index may not know yet what was given out since its last look
        try:
            self._begin_at(QueueStarts(EARLIEST, by_topic(places)))
        except OffsetOutOfRange as error:
            raise overtaken(error) from error

    def _begin_at(self, starts: QueueStarts) -> None:
        """Begins anew at other places. What is in hand is dropped."""
        self._is_torn = True  # until it is there, it is where it was: see `Reader._take_piece`
        begun = self._source.begin(starts)
        if self._behind is not None:
            self._behind.check_read(self._places())
        places = self._first_places() | begun
        self._pieces.close()
        self._given.begin(self._given.places(*self._hand.taken))
        self._hand.empty()
        self._held, self._is_at_end = None, False
        self._pieces = self._read(refresh=self.follow)  # messages that came since are given out too
        self._given.begin(begun)
        self._behind = None
        if self._position is not None:
            self._position.move(places)
            self._position.given_by = self._source
        self._is_torn = False

    def __repr__(self) -> str:
        source = getattr(self, "_source", None)
        if source is None:  # its making was refused
            return "Reader()"
        topics = None if self.topics is None else sorted(self.topics)
        shown = f"topic={shortened(topics[0] if topics is not None and len(topics) == 1 else topics)}"
        name = "" if self._position is None else f", name={self._position.name!r}"
        state = ", closed" if self._closed else ", follow=True" if self.follow else ""
        return f"Reader({str(source.path)!r}, {shown}{name}{state}, given={self._hand.given})"

    def _repr_html_(self) -> str:
        """Its place in each queue, in a notebook, by one look at the store."""
        try:
            places, lag = self.position(), self.lag()
        except (CommitLogError, OSError) as error:  # it is closed, or its store is gone
            return html_table(repr(self), [(str(error),)])
        rows = [
            (topic, lane, places.get(topic, {}).get(lane), behind)
            for topic, lanes in lag.items()
            for lane, behind in lanes.items()
        ]
        return html_table(repr(self), rows, ("topic", "lane", "next offset", "messages behind"))

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderError("this reader is closed: ask it before, or make another")


def overtaken(error: OffsetOutOfRange) -> DataLoss:
    """The error of a reader whose place is not there any more."""
    return DataLoss(f"{error}; these messages were deleted or trimmed before this reader had read them: start it again")

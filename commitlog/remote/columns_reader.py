"""The part of Reader that gives columns in place of messages."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from commitlog.errors import DataLoss, OffsetOutOfRange, OptionError, named_while_loading, read_error
from commitlog.reading.given_places import Places
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.placed_reader import PlacedReader, overtaken
from commitlog.reading.rests import Rests

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlog.planning.address import Address
    from commitlog.remote.rows_behind import RowsBehind

Path = str | os.PathLike[str]
_Item = TypeVar("_Item")
_Rows = tuple["pa.RecordBatch", Places, Places]


class ColumnsReader(PlacedReader):
    """See Reader, whose `__init__` makes all attributes."""

    ignore_corrupt: bool
    _isolation: Literal["flushed", "committed", "accepted"]
    _fail_on_data_loss: bool
    _lanes: LaneChoice
    _place: tuple[Path | Address, str | None, tuple[Path | None, ...]]
    _rests: Rests

    def _note_end(self) -> None:
        raise NotImplementedError

    def arrow_batches(
        self,
        columns: Collection[str] | None = None,
        *,
        metadata: bool = False,
        values: Literal["bytes", "columns"] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Gives the rows of the reader's one topic in Arrow's batches, from the reader's place on.

            for batch in reader.arrow_batches(["customer", "amount"]):
                store(batch)
                reader.commit()

        The columns are those of `commitlog.read`. A batch has rows of one lane, and lanes are not
        merged by time. A batch counts as given out, and as done when the next one is asked for. A
        reader that follows waits for more, and a later version of the topic's schema may add
        columns. Raises what `commitlog.read` and reading its batches raise, and OptionError for
        another number of topics and for what is only accepted.

        As in `commitlog.read`, the CRCs of values are not compared: `next` and `batches` do that,
        and `commitlog verify`. When the iterator has ended or is closed, `next` goes on behind its
        batches. Until then `next` and `seek` raise ReaderError.
        """
        if self.topics is None or len(self.topics) != 1 or self._isolation == "accepted":
            raise OptionError("arrow_batches is for a reader of one topic, of what is flushed or committed")
        with named_while_loading("Reader.arrow_batches"):
            from commitlog.columns.read_plan import ReadOptions
            from commitlog.remote.rows_behind import RowsBehind
        options = ReadOptions(self._isolation, self._fail_on_data_loss, self.ignore_corrupt, reader="reader")
        (topic,) = self.topics
        rows = RowsBehind(self._place, topic, self._lanes, options, columns, metadata=metadata, values=values)
        return self._one_by_one(self._rows(rows))

    def _each(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Gives the items, each by a read of its own. It keeps none: an item may hold a segment."""
        while (item := self._alone(partial(next, items, None))) is not None:
            given = [item]
            del item
            yield given.pop()

    def _one_by_one(self, rows: Generator[_Rows, None, None]) -> Iterator[pa.RecordBatch]:
        self._check_columns()
        self._columns = rows
        try:
            for batch, before, reached in self._each(rows):
                giving = iter([None, batch].pop, None)
                del batch  # it may hold a segment
                if self._is_closed():
                    return
                self._hand.count(sum(max(end - before.get(key, end), 0) for key, end in reached.items()))
                if self._position is None:
                    self._given.begin(before | reached)
                else:
                    self._position.last = reached
                yield from giving  # nothing is called in between, where an interrupt may come
        finally:
            try:
                self._alone(rows.close)
            finally:
                self._columns = None

    def _rows(self, rows: RowsBehind) -> Generator[_Rows, None, None]:
        """Gives batches, with all places before each and those that it moves."""
        places = self._places()
        self._begin_again(places)
        rows.epoch = self._source.epoch
        self._behind = rows
        if self._position is not None:
            self._position.given_by = rows
        self._is_torn = True  # what reads messages afterwards begins again, behind the batches
        try:
            while not self._is_closed():
                self._source.refresh(whole=True)
                queues = self._source.queues().items()
                if any(queue.end > places.get(key, queue.first) for key, queue in queues):
                    for batch, reached in rows.batches(places):
                        yield batch, places.copy(), reached
                        del batch
                        places.update(reached)
                        if self._position is not None:
                            self._position.asked()
                    places.update(rows.ends)  # what is left out at an end is read, too
                    self._pass_to(places)
                    continue
                if not self.follow:
                    self._note_end()
                    return
                if self._position is not None:
                    self._position.asked()
                self._source.wait(self._rests.next(self._hand.given))
        except (DataLoss, OffsetOutOfRange) as error:
            loss = error if isinstance(error, DataLoss) else overtaken(error)
            self._end_with(loss)
            raise loss from error
        except OSError as error:
            raise read_error(error, self._source.path) from error

    def _pass_to(self, places: Places) -> None:
        if self._position is None:
            self._given.begin(places)
        else:
            self._position.move(places)

    def _is_closed(self) -> bool:
        return self._closed  # by the loop's body, a signal handler, another thread

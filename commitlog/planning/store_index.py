"""The questions of planning to a store: a local directory, or a store on another machine."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from commitlog.columns import arrays
from commitlog.columns.arrow_columns import Decoder
from commitlog.columns.mapped_segments import SegmentCache
from commitlog.columns.read_plan import ReadOptions, ReadPlan, Slice, slices_of
from commitlog.columns.slice_reader import SliceReader
from commitlog.columns.typed_rows import row_counts
from commitlog.disk.epochs import Epoch
from commitlog.errors import ReadingWarning, named_while_reading
from commitlog.planning.reader_name import HeldReaderName
from commitlog.planning.row_limit import Messages, QueueKey, limit_rows
from commitlog.planning.task_sizes import Work
from commitlog.planning.topic_queues import TopicQueues
from commitlog.reading.earlier_epochs import shared_ends
from commitlog.reading.lane_choice import NO_LANES
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.small_queues import SMALL_ENTRIES
from commitlog.reading.time_search import find_by_time, older_than
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import open_view
from commitlog.text.lines import for_shell

SAMPLES = 16
"""How many consume queue entries are read to find the mean size of a range's records."""
UNKNOWN_RECORD_BYTES = 512.0

Ranges = Mapping[QueueKey, tuple[int, int]]
"""Queue offsets [begin, end) by topic and lane."""


class HeldName(Protocol):
    """A reader's name that is held: nobody else has it until `close`."""

    def move(self, position: NamedReader) -> None:
        """Moves the position: see `position_of`. Raises ReaderError."""

    def write(self, *, now: bool = False) -> None:
        """Writes the position if it has moved: once a second at most, or `now`."""

    def close(self) -> None:
        """Writes the position and gives the name back."""


class StoreIndex(Protocol):
    """Which topics and queues a store has. Only `refresh` brings the answers up to date."""

    @property
    def path(self) -> str:
        """The store's path or URL, for errors and plans."""

    @property
    def store_id(self) -> str:
        """The id of the store, or "" for a RocketMQ store root, which has none."""

    @property
    def identity(self) -> tuple[object, ...]:
        """See LogView.identity: it differs once another store, or another copy, is at the path."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that the store is in: see `disk/epochs.py`."""

    @property
    def one_log(self) -> bool:
        """Whether the store is a RocketMQ store root."""

    @property
    def live(self) -> bool:
        """Whether the store has a pool, so that more messages may come without a recovery."""

    def refresh(self, wait_ms: int = 0) -> bool:
        """Looks at the store again. Returns whether anything has moved.

        A server may wait up to `wait_ms` before it answers "nothing has moved". A directory never
        waits.
        """

    def topics(self, *, deleted: bool = False) -> list[str]:
        """The topics, sorted.

        With `deleted`, those count too that were deleted and had no message since.
        """

    def declared_topics(self) -> Collection[str]:
        """The topics that have a schema now; they may have no messages yet."""

    def ranges(self, topic: str) -> Mapping[int, QueueRange]:
        """Lane → the range of the topic's messages that may be read there.

        A damaged lane that has the topic is among the lanes: see TopicQueues.
        """

    def shared_ends(self, epoch: int, queues: Collection[QueueKey]) -> dict[QueueKey, int]:
        """The queue offset up to which each queue has the messages of an earlier epoch.

        Queues whose messages are all the same are left out. Raises DataLoss for an epoch of another
        store.
        """

    def find_by_times(self, times: Mapping[QueueKey, int]) -> Mapping[QueueKey, int | None]:
        """The offset of each queue's first message stored at or after its time (ms), or None."""

    def slices(self, ranges: Ranges) -> list[Slice]:
        """The slices of these ranges, all of which the store must have."""

    def work(self, ranges: Ranges) -> list[Work]:
        """The slices of these ranges, with the sizes of their records."""

    def limit_rows(self, ranges: Ranges, most: int, first: QueueKey, options: ReadOptions) -> dict[QueueKey, int]:
        """How far to read each range, for `most` rows of a typed topic: see `row_limit`.

        The options say how lost and corrupt records are treated.
        """

    def plan(self, slices: tuple[Slice, ...], options: ReadOptions) -> ReadPlan:
        """The plan that reads these slices of this store."""

    def hold_name(self, name: str) -> HeldName:
        """Takes a reader's name. Raises ReaderInUse, ReaderError."""

    def close(self) -> None:
        """Lets go of the store."""


class LocalIndex:
    """The index of a directory: a store of ours, or a RocketMQ store root.

    `on_step` is called between the steps of long work, and may raise an error to end it. Raises
    StoreNotFound, StoreDamaged, StoreTooNew, StoreRefused. It is not for several threads.
    """

    def __init__(
        self, path: str | os.PathLike[str], isolation: str = "flushed", on_step: Callable[[], None] = lambda: None
    ) -> None:
        self.path, self._on_step = os.fspath(path), on_step
        self._view = open_view(path)
        self.index = TopicIndex(self._view, isolation, NO_LANES, names_unwritten=True)
        self._damage_warning = ""
        self._left_out: dict[int, set[str]] = {}
        """Lane of which nothing can be read → the topics that may be in it."""

    @property
    def store_id(self) -> str:
        return self._view.store_id

    @property
    def identity(self) -> tuple[object, ...]:
        return self._view.identity

    @property
    def epoch(self) -> int:
        return self._view.epoch

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs of the store, the oldest first."""
        return self._view.epochs

    @property
    def one_log(self) -> bool:
        return self._view.one_log

    @property
    def live(self) -> bool:
        return self._view.live

    def refresh(self, wait_ms: int = 0) -> bool:
        del wait_ms
        with named_while_reading(self.path):
            has_moved = self.index.refresh()
        self._left_out = {lane: self._topics_of_damaged(lane) for lane in self.index.left_out}
        self._warn_of_damage()
        return has_moved

    def unmap(self) -> None:
        """Unmaps the segments that were looked at: they count as memory of this process."""
        for index in self.index.lanes.values():
            index.log.unmap()

    @property
    def warning(self) -> str:
        """The text of a ReadingWarning about the store at the last look; "" if all is well."""
        return "; ".join(filter(None, (self.index.rest_warning, self._damage_warning)))

    def _warn_of_damage(self) -> None:
        """Warns once of damage whose messages have no known topic.

        If no consume queue knows the messages in the damage, no slice has them, and so no read
        would meet the damage.
        """
        lanes = self.index.lanes.items()
        holes = [(lane, index.open_hole) for lane, index in lanes if index.queues and index.open_hole is not None]
        holes += [(lane, where) for lane, index in lanes for where in (*index.nameless_holes, *index.passed_holes)]
        damaged = [f"lane {lane} is damaged from offset {where:,} on" for lane, where in holes]
        damaged += [f"nothing of lane {lane} can be read" for lane in self.index.left_out]
        places = ", ".join(damaged)
        known, self._damage_warning = self._damage_warning, ""
        if places:
            self._damage_warning = (
                f"{self.path}: {places}: what is there is not read, of whatever topic; "
                f"`commitlog verify {for_shell(self.path)}` says more"
            )
        if self._damage_warning not in ("", known):
            warnings.warn(self._damage_warning, ReadingWarning, stacklevel=3)

    @property
    def pool(self) -> Path | None:
        """The directory of the store's pool, if it has one on this machine."""
        return self._view.pool

    def topics(self, *, deleted: bool = False) -> list[str]:
        return sorted({*self.index.topics(deleted=deleted)}.union(*self._left_out.values()))

    def declared_topics(self) -> list[str]:
        with named_while_reading(self.path):
            return self.index.declared_topics()

    def ranges(self, topic: str) -> TopicQueues:
        damaged = {lane: self.index.left_out[lane] for lane, topics in self._left_out.items() if topic in topics}
        return TopicQueues(self.index.ranges(topic), damaged)

    def _topics_of_damaged(self, lane: int) -> set[str]:
        """The topics that may be in a lane of which nothing can be read.

        These are those with a consume queue there; all topics if it has no consume queues.
        """
        found = list[str]()
        with contextlib.suppress(NotADirectoryError):  # something else is in place of the lane, or of its queues
            found = self._view.channel.list(self._view.lane_directory(lane).consumequeue)
        return set(found or self.index.topics(deleted=True))

    def shared_ends(
        self, epoch: int, queues: Collection[QueueKey], history: tuple[Epoch, ...] = ()
    ) -> dict[QueueKey, int]:
        return shared_ends(self._view, epoch, queues, history)

    def find_by_times(self, times: Mapping[QueueKey, int]) -> dict[QueueKey, int | None]:
        with named_while_reading(self.path):
            return {key: self._find_by_time(key, ms) for key, ms in times.items()}

    def _find_by_time(self, key: QueueKey, ms: int) -> int | None:
        self._on_step()
        return self.index.find_by_time(*key, ms)

    def stored_between(self, key: QueueKey, since_ms: int | None, until_ms: int | None) -> tuple[int, int | None]:
        """Queue offsets [first, behind) that have all messages of these times (ms, both included).

        It has others, too, wherever that is not sure: see `older_than`. `behind` is None for "all".
        """
        lane = self.index.lanes.get(key[1])
        if lane is None:
            return 0, None
        with named_while_reading(self.path):
            first = 0 if since_ms is None else older_than(lane, key[0], since_ms)
            return first, None if until_ms is None else find_by_time(lane, key[0], until_ms + 1)

    def slices(self, ranges: Ranges) -> list[Slice]:
        found: list[Slice] = []
        with named_while_reading(self.path):
            for (topic, lane), (begin, end) in ranges.items():
                self._on_step()
                found += slices_of(self.index.lane(lane), topic, begin, end)
        return found

    def work(self, ranges: Ranges) -> list[Work]:
        return [Work(piece, self._record_bytes(piece)) for piece in self.slices(ranges)]

    def limit_rows(self, ranges: Ranges, most: int, first: QueueKey, options: ReadOptions) -> dict[QueueKey, int]:
        return limit_rows(ranges, most, first, lambda key: self._messages(key, ranges[key], options))

    def plan(self, slices: tuple[Slice, ...], options: ReadOptions) -> ReadPlan:
        return ReadPlan(self.path, self.store_id, self._view.segment_bytes, slices, options, self.epoch)

    def hold_name(self, name: str) -> HeldReaderName:
        return HeldReaderName(self.path, name)

    def close(self) -> None:
        self._view.close()

    def _messages(self, key: QueueKey, bounds: tuple[int, int], options: ReadOptions) -> Messages:
        """Gives the messages of a range.

        Messages that are deleted, or left out as corrupt, are passed over.
        """
        own = self.plan(tuple(work.slice for work in self.work({key: bounds})), options)
        segments = SegmentCache(limit=1)
        with named_while_reading(self.path):
            for piece in own.slices:
                for batch in SliceReader(own, piece, segments).batches(_count_rows):
                    self._on_step()
                    yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)

    def _record_bytes(self, piece: Slice) -> float:
        self._on_step()
        if piece.walk_from >= 0:  # there are no entries
            return min((piece.limit - piece.walk_from) / piece.rows, UNKNOWN_RECORD_BYTES)
        begin, end = piece.start, piece.end
        known = self.index.lane(piece.lane).queues[piece.topic].record_bytes
        if known and piece.rows <= SMALL_ENTRIES:
            return known
        with named_while_reading(self.path), self.index.lane(piece.lane).consume_queues.open(piece.topic) as queue:
            picked = np.unique(np.linspace(begin, end - 1, min(SAMPLES, end - begin)).astype(np.int64))
            sizes = [int(entry["size"][0]) for at in picked.tolist() if len(entry := queue.entries(at, 1))]
        return sum(sizes) / len(sizes) if sizes else UNKNOWN_RECORD_BYTES


def _count_rows(decoder: Decoder) -> list[pa.RecordBatch]:
    counts = arrays.fixed(np.array(row_counts(decoder), np.int64), pa.int64())
    behind = arrays.fixed(np.arange(decoder.count, dtype=np.int64) + decoder.places.offset + 1, pa.int64())
    return [pa.RecordBatch.from_arrays([counts, behind], names=["rows", "behind"])]

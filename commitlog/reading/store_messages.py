"""The messages of a store's directory, or of a RocketMQ store root, for a reader."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from commitlog.disk.consume_queue import is_light
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DataLoss, OptionError, ReadingWarning
from commitlog.message import Message
from commitlog.native import core
from commitlog.reading.earlier_epochs import check_read
from commitlog.reading.forms import MESSAGES, VALUES, Form, Item
from commitlog.reading.known_topics import check_known, waiting_for
from commitlog.reading.lane_cursor import LaneCursor
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.merged_lanes import merged
from commitlog.reading.message_source import Wanted
from commitlog.reading.queue_cursor import QueueCursor
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.reader_position import queues_of
from commitlog.reading.rests import Rest
from commitlog.reading.skipped_damage import with_way_out
from commitlog.reading.starting_point import QueueStarts
from commitlog.reading.stored_position import StoredPosition
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import POSITION_WORDS, LogView, open_view
from commitlog.reading.watched_words import WatchedWords
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.region import RegionError
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK, Clock

_LOOK_ANYWAY_NS = 250_000_000
"""A reader also learns of other things than messages: of a restart, a promotion, a trim."""
_LONG_IDLE_NS = 2_000_000_000
"""After so long without a message it looks half as often."""
_SEGMENTS_KEPT = 8
"""How many segments of a RocketMQ log stay mapped: its queues are at different places."""


def _moved(before: bytes, now: bytes) -> list[int]:
    """The lanes whose words are not the same."""
    moved: list[int] = np.flatnonzero(np.frombuffer(before, np.uint64) != np.frombuffer(now, np.uint64)).tolist()
    return moved


class StoreMessages:
    """What a reader of a directory reads: see MessageSource. Making one opens the store.

    Raises StoreNotFound, StoreDamaged, StoreTooNew, StoreRefused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        wanted: Wanted,
        clock: Clock,
        follow_pool: Callable[[Path | None], object],
    ) -> None:
        """`follow_pool` is told at each look where the store's pool is."""
        self._wanted, self._clock, self._follow_pool = wanted, clock, follow_pool
        self._topics = None if wanted.topics is None else set(wanted.topics)
        self._view = open_view(path)
        self._identity = self._view.identity
        self.index = TopicIndex(self._view, wanted.isolation, wanted.lanes, names_unwritten=True)
        self._watched: WatchedWords | None = None
        self._seen: tuple[ControlRegion | None, bytes] = None, b""
        """The control region at the last look, and how far all lanes had come there."""
        self._moved: list[int] | None = None
        """The lanes that have moved since the index has looked; None if it has just looked."""
        self._looked_ns = LONG_AGO_NS
        self._cursors: dict[tuple[int, str], LaneCursor | QueueCursor] = {}

    @property
    def path(self) -> os.PathLike[str]:
        return self._view.path

    @property
    def epoch(self) -> int:
        return self.index.epoch

    @property
    def least_rest(self) -> float:
        return 50e-6 if self._view.live else 1e-3

    @property
    def one_log(self) -> bool:
        return self._view.one_log

    @property
    def is_waiting(self) -> bool:
        return False

    def keep_position(self, name: str) -> StoredPosition:
        directory, isolation = StoreDirectory(self._view.path, self._view.channel), self._wanted.isolation
        return StoredPosition(directory, self._view.store_id, name, self._clock, isolation=isolation)

    def look(self) -> None:
        wanted = self._wanted
        if self._view.one_log and (wanted.follow or wanted.isolation != "flushed"):
            given = "follow=True (-f)" if wanted.follow else f"isolation={wanted.isolation!r} (--isolation)"
            text = f"{given} needs a store of ours, and this is a RocketMQ store root: leave it out"
            raise OptionError(f"{self._view.path}: {text}")
        self.index.refresh()
        if self._topics:
            self._check_topics(self._topics)

    def _check_topics(self, wanted: set[str]) -> None:
        """Raises UnknownTopic for a topic that is not there, IllegalTopic for one that can't be.

        A reader that follows waits for it. It warns once where it may be misspelt: where others are
        there, and this one was neither deleted nor declared.
        """
        if not self._wanted.follow:
            check_known(self._view.path, self.index, wanted)
        elif text := waiting_for(self._view.path, self.index, wanted, "the reader"):
            warnings.warn(text, ReadingWarning, stacklevel=5)

    def begin(self, starts: QueueStarts) -> dict[tuple[str, int], int]:
        before, self._cursors = self._cursors, {}
        try:
            self._open_cursors(starts)
        except BaseException:
            self._cursors = before
            raise
        return {key: offset for cursor in self._cursors.values() for key, offset in cursor.begins().items()}

    def queues(self) -> dict[tuple[str, int], QueueRange]:
        return self._queues_of(self.index)

    def _queues_of(self, index: TopicIndex) -> dict[tuple[str, int], QueueRange]:
        has_light = self.one_log and self._topics is None  # which are not read
        queues = queues_of(index, self._topics, self._wanted.lanes)
        return {(topic, lane): queue for topic, lane, queue in queues if not (has_light and is_light(topic))}

    def queues_now(self) -> dict[tuple[str, int], QueueRange]:
        view = open_view(self._view.path, self._view.channel)
        index = TopicIndex(view, self._wanted.isolation, self._wanted.lanes)
        try:
            self._check_identity(view)
            index.refresh()
            return self._queues_of(index)
        finally:
            index.lanes.clear()  # they hold mapped segments
            view.close()

    def _check_identity(self, view: LogView) -> None:
        if view.identity != self._identity:
            raise DataLoss(
                f"{view.path} is another store ({view.store_id}) than the one that was read ({self._identity[0]}), or a "
                "restored copy of it: make a new reader"
            )

    def _open_cursors(self, starts: QueueStarts) -> None:
        """Makes the missing cursors: one for each lane, or each queue of a RocketMQ store root."""
        view, topics, ignore_corrupt = self._view, self._topics, self._wanted.ignore_corrupt
        segments = RecentSegments(view.lane_directory(0), view.segment_bytes, view.channel, keep=_SEGMENTS_KEPT)
        for lane, index in self.index.lanes.items():
            if lane not in self._wanted.lanes:
                continue
            if not view.one_log:
                if (lane, "") not in self._cursors:
                    self._cursors[lane, ""] = LaneCursor(index, topics, starts, ignore_corrupt)
                continue
            for topic, known in index.queues.items():
                wanted = topic in topics if topics is not None else not is_light(topic)
                if wanted and known.first < known.end:
                    self._cursors[lane, topic] = QueueCursor(index, topic, segments, starts, ignore_corrupt)

    def messages(self) -> Iterator[Sequence[Message]]:
        return self._pieces(MESSAGES)

    def values(self) -> Iterator[Sequence[bytes | memoryview]]:
        return self._pieces(VALUES)

    def _pieces(self, form: Form[Item]) -> Iterator[Sequence[Item]]:
        if self._moved is None:
            yield from merged(cursor.read(form) for cursor in list(self._cursors.values()))
            self._raise_damage()
            return
        followed = [self._cursors.get((lane, "")) for lane in self._moved if lane in self._wanted.lanes]
        cursors = [cursor for cursor in followed if isinstance(cursor, LaneCursor)]
        yield from merged(cursor.follow(form) for cursor in cursors)
        if len(cursors) < len(followed) or any(cursor.where < cursor.looked_to for cursor in cursors):
            self._looked_ns = LONG_AGO_NS  # the index has to look what that is

    def _raise_damage(self) -> None:
        for cursor in self._cursors.values():
            if cursor.damage is not None:
                raise with_way_out(cursor.damage)

    def refresh(self, *, whole: bool = False) -> None:
        """Reads the index again. A reader that follows reads a new lane from its first message on.

        The index looks four times a second. In between the words of shared memory are enough.
        Raises DataLoss if another store, or a restored copy, is there, or offsets are used again.
        """
        if whole:
            self._looked_ns = LONG_AGO_NS
        if self._only_words_moved():
            return
        self._view.refresh()
        self._check_identity(self._view)
        self._follow_pool(self._view.pool)
        check_read(self.index, self._topics, self._wanted.lanes)
        self.index.refresh()
        if self._wanted.follow:
            self._open_cursors(QueueStarts())

    def _only_words_moved(self) -> bool:
        """Whether it is enough to look at the lanes' positions in shared memory, and notes them."""
        (known, before), control, now = self._seen, self._view.control, self._clock.monotonic_ns()
        self._moved = None
        if control is None:
            return False
        if self._watched is not None and self._watched.control is control:
            words, moved = self._watched.look(before)
        else:
            words = control.lane_table()[:, POSITION_WORDS[self._wanted.isolation]].tobytes()
            moved = [] if control is not known else _moved(before, words)
        self._seen = control, words
        if control is not known or now - self._looked_ns >= _LOOK_ANYWAY_NS:
            self._looked_ns = now
            return False
        self._moved = moved
        return True

    def wait(self, rest: Rest, most: float = math.inf) -> None:
        watched = self._watched_words()
        if watched is None:
            self._clock.sleep(min(rest.seconds, most))
            return
        _, seen = self._seen
        looks_ns = _LOOK_ANYWAY_NS if rest.idle_ns < _LONG_IDLE_NS else 2 * _LOOK_ANYWAY_NS
        left = self._looked_ns + looks_ns - self._clock.monotonic_ns()
        watched.wait(seen, rest, max(int(min(left, most * 1e9)), 0))

    def _watched_words(self) -> WatchedWords | None:
        """The words of the last look, if they are the pool's, and a stage there wakes readers."""
        control, watched = self._view.control, self._watched
        if watched is None or watched.control is not control:
            self._watched = watched = None
            if core is not None and control is not None and self._clock is SYSTEM_CLOCK:
                with suppress(OSError, RegionError):  # it is gone, or can't be mapped now
                    self._watched = watched = WatchedWords(control, self._wanted.isolation)
        is_seen = control is self._seen[0]
        return watched if watched is not None and is_seen and watched.are_published else None

    def progress(self) -> tuple[dict[int, int], dict[int, int]]:
        positions: dict[int, int] = {}
        behind: dict[int, int] = {}
        for (lane, _), cursor in list(self._cursors.items()):
            positions[lane] = min(cursor.where, positions.get(lane, cursor.where))
            behind[lane] = max(cursor.end() - cursor.where, behind.get(lane, 0))
        return positions, behind

    def close(self) -> None:
        self._cursors.clear()
        self._watched = None
        self.index.lanes.clear()  # they hold mapped segments
        self._view.close()

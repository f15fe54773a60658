"""The messages of a served store, for a Reader by URL."""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import cast, get_args

from commitlog.columns.read_plan import Isolation
from commitlog.disk.consume_queue import is_light
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss, OptionError, ReaderError, ReadingWarning
from commitlog.message import Message, message_of, messages_of
from commitlog.native import core
from commitlog.planning.address import Address
from commitlog.planning.topic_ranges import offsets_of
from commitlog.reading.known_topics import check_known, waiting_for
from commitlog.reading.message_source import Wanted
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.rests import Rest
from commitlog.reading.skipped_damage import with_way_out
from commitlog.reading.starting_point import QueueStarts
from commitlog.record.record import decode
from commitlog.record.record_layout import HOSTS_V6, SysFlag
from commitlog.remote.fetching import Fetching
from commitlog.remote.leased_position import LeasedPosition
from commitlog.remote.record_pieces import Merged, QueueKey, Records
from commitlog.remote.remote_index import RemoteIndex
from commitlog.system.clock import Clock

_MESSAGES_AT_ONCE = 1_000
"""How many messages are made together."""

Made = list[Message | CorruptRecord]


class ServedMessages:
    """What a reader by URL reads: see MessageSource. Making one asks the server.

    Raises ServerUnavailable, AccessDenied, CertificateRefused, ServerError, StoreNotFound.
    """

    def __init__(self, address: Address, wanted: Wanted, clock: Clock) -> None:
        if wanted.isolation not in get_args(Isolation):
            raise OptionError(
                f"isolation={wanted.isolation!r} is for the store's own machine: read its directory there, or leave it out"
            )
        self._wanted, self._clock, self._pid = wanted, clock, os.getpid()
        self.path = str(address)
        self._topics = None if wanted.topics is None else tuple(sorted(wanted.topics))
        self.index = RemoteIndex(address, cast(Isolation, wanted.isolation), self._topics)
        self.index.refresh()
        self._fetching: Fetching | None = None
        self._taken: deque[Records | Merged] = deque()
        """What was read, and is not made into messages yet."""
        self._made: Made = []
        """Those that are not given out yet, because one of them is damaged."""
        self.is_waiting = False
        self.least_rest = 1e-3

    @property
    def one_log(self) -> bool:
        return self.index.one_log

    @property
    def epoch(self) -> int:
        return self.index.epoch if self._fetching is None else self._fetching.epoch

    def keep_position(self, name: str) -> LeasedPosition:
        if self._wanted.isolation != "flushed":
            raise OptionError(
                f"name={name!r}: by URL a position needs flushed messages, because a power loss may take others: leave "
                "isolation out"
            )
        return LeasedPosition(self.index, name)

    def look(self) -> None:
        wanted = self._wanted
        if wanted.follow and self.one_log:
            raise OptionError(
                f"{self.path}: follow=True (-f) needs a store of ours, and this is a RocketMQ store root: leave it out"
            )
        self.index.refresh()
        if wanted.topics is None:
            return
        if not wanted.follow:
            check_known(self.path, self.index, wanted.topics)
        elif text := waiting_for(self.path, self.index, wanted.topics, "the reader"):
            warnings.warn(text, ReadingWarning, stacklevel=4)

    def begin(self, starts: QueueStarts) -> dict[QueueKey, int]:
        if self._fetching is not None:  # the index is its thread's alone
            self._fetching.close()
            self._taken.clear()
            self._made, self.is_waiting = [], False
            self.index.refresh()
            self._fetching.check_store(self.index)
        topics = self.index.topics() if self._topics is None else self._topics
        first = offsets_of(self.index, topics, starts, self._wanted.lanes)
        self._fetching = fetching = Fetching(self.index, self._wanted, first, self._clock)
        self.index.warn = fetching.warn
        weakref.finalize(self, fetching.end).atexit = False
        return first

    def queues(self) -> dict[QueueKey, QueueRange]:
        if self._fetching is not None and self._wanted.follow and os.getpid() == self._pid:
            self._fetching.follow()  # whoever asks for queues may read them by himself
        return self._queues_of(self.index)

    def _queues_of(self, index: RemoteIndex) -> dict[QueueKey, QueueRange]:
        found = {}
        for topic in self._topics or [topic for topic in index.topics() if not is_light(topic)]:
            known = index.ranges(topic)
            for lane in filter(self._wanted.lanes.__contains__, known):
                with suppress(DamagedFile):  # whoever reads it hears of that
                    found[topic, lane] = known[lane]
        return found

    def queues_now(self) -> dict[QueueKey, QueueRange]:
        known = self.index
        index = RemoteIndex(known.address, known.isolation, self._topics)
        index.refresh()
        if index.store_id != known.store_id or (index.epoch == known.epoch and index.identity != known.identity):
            raise DataLoss(
                f"{self.path} is another store ({index.store_id}) than the one that was read ({known.store_id}), or a "
                "restored copy of it: make a new reader"
            )
        return self._queues_of(index)

    # ---- messages -------------------------------------------------------------------------------

    def messages(self) -> Iterator[Sequence[Message]]:
        while True:
            if self._made:
                yield from self._up_to_damage()
            elif self._taken:
                made, is_damaged = _made_of(self._taken.popleft())
                if is_damaged:
                    self._made = made
                elif made:
                    yield cast(list[Message], made)
            elif not self._take():
                return
            elif not self._taken:
                self.is_waiting = True
                yield ()
                self.is_waiting = False

    def _take(self) -> bool:
        """Takes what was read, if there is something. Returns False at the end."""
        if os.getpid() != self._pid:
            raise ReaderError(
                f"{self.path}: this reader was made before a fork, by the parent process: make one in the child, which must "
                "be started by multiprocessing's method spawn or forkserver"
            )
        assert self._fetching is not None
        try:
            found = self._fetching.take()
        except StopIteration:
            return False
        if isinstance(found, str):
            warnings.warn(found, ReadingWarning, stacklevel=5)
            return self._take()
        if found is None:
            return True
        if found.order is not None:
            self._taken.append(found)
            return True
        for part in found.parts:
            cuts = range(0, len(part), _MESSAGES_AT_ONCE)
            self._taken.extend(part.cut(begin, begin + _MESSAGES_AT_ONCE) for begin in cuts)
        return True

    def _up_to_damage(self) -> Iterator[list[Message]]:
        """Gives the messages before the first that can't be made, and then raises its error."""
        while self._made:
            count = next((at for at, one in enumerate(self._made) if isinstance(one, CorruptRecord)), len(self._made))
            good, self._made = self._made[:count], self._made[count:]
            if good:
                yield cast(list[Message], good)
                continue
            error = cast(CorruptRecord, self._made[0])
            if not self._wanted.ignore_corrupt:
                raise with_way_out(error)
            del self._made[0]
            warnings.warn(f"{self.path}: a corrupt record was left out: {error}", ReadingWarning, stacklevel=5)

    def values(self) -> Iterator[Sequence[bytes | memoryview]]:
        for piece in self.messages():
            if piece:
                yield [message.value for message in piece]
            else:
                self._wait(1.0)

    def refresh(self, *, whole: bool = False) -> None:
        """Goes on behind damage that was healed. New messages are looked for all the time."""
        assert self._fetching is not None
        self._fetching.go_on()

    def wait(self, rest: Rest, most: float = math.inf) -> None:
        self._wait(min(rest.seconds, most))

    def _wait(self, seconds: float) -> None:
        assert self._fetching is not None
        self._fetching.wait(seconds)

    def progress(self) -> tuple[dict[int, int], dict[int, int]]:
        return {}, {}

    def close(self) -> None:
        self._taken.clear()
        self._made = []
        if self._fetching is not None and os.getpid() == self._pid:
            self._fetching.end()


def _made_of(taken: Records | Merged) -> tuple[Made, bool]:
    """Makes messages in their order. Says whether one of them is an error."""
    if isinstance(taken, Records):
        return _messages_of(taken)
    parts = [_messages_of(part) for part in taken.parts]
    made = list(chain.from_iterable(found for found, _ in parts))
    order = range(len(made)) if taken.order is None else taken.order.tolist()
    return [made[number] for number in order], any(is_damaged for _, is_damaged in parts)


def _messages_of(records: Records) -> tuple[Made, bool]:
    table = records.table
    if core is not None and records.light_offset < 0 and not (table.sys_flags & (SysFlag.COMPRESSED | HOSTS_V6)).any():
        return cast(Made, messages_of(table, records.buffer)), False
    made: Made = []
    is_damaged = False
    for number, (at, size) in enumerate(zip(table.positions.tolist(), table.sizes.tolist(), strict=True)):
        try:
            message = message_of(decode(records.buffer, at, limit=at + size, check_crc=False))
        except CorruptRecord as error:
            where = int(records.places[number])
            made.append(CorruptRecord(f"topic {records.key[0]}, lane {records.key[1]}: {error.reason}", where, None))
            is_damaged = True
            continue
        if records.light_offset >= 0:
            topic, lane = records.key
            message = replace(message, topic=topic, partition=lane, offset=records.light_offset + number)
        made.append(message)
    return made, is_damaged

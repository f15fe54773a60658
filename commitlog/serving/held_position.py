"""The position of a Python reader whose name a server holds for a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReaderError
from commitlog.reading.earlier_epochs import shared_ends
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.named_reader import PYTHON, Client, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.queue_range import QueueRange
from commitlog.reading.starting_point import Offsets
from commitlog.reading.stored_position import StoredPosition
from commitlog.reading.view import StoreView
from commitlog.remote import requests
from commitlog.system.clock import Clock

Queues = Mapping[str, Mapping[int, QueueRange]]
"""topic → lane → the queue's range, of all queues of which that is known."""


class HeldPosition:
    """Holds a reader's name until `close`, and checks each step of its position.

    Raises ReaderInUse, StoreRefused (a replica), and ReaderError if the name is no Python reader's,
    or its position can't be read.
    """

    def __init__(self, directory: StoreDirectory, name: str, host: str, clock: Clock) -> None:
        facts = directory.load()
        self.name, self.store_id, self.epoch, self._host = name, facts.id, facts.epoch, host
        self._directory = directory
        self._kept = StoredPosition(directory, facts.id, name, clock)
        try:
            self.position = self._kept.load()
            if self.position is not None and self.position.host != host:
                NamedReaders(directory, clock).save(replace(self.position, host=host))  # it has not moved
        except BaseException:
            self._kept.let_go()
            raise

    def told(self) -> requests.Position | None:
        """The position as a client gets it."""
        if self.position is None:
            return None
        lanes, found = self.position.lanes, self.position
        offsets = {topic: dict(known) for topic, known in found.offsets.items()}
        numbers = None if lanes.numbers is None else tuple(sorted(lanes.numbers))
        return requests.Position(
            found.store_id, offsets, all_topics=found.all_topics, lanes=numbers, members=lanes.member
        )

    def commit(
        self, wanted: requests.Position, epoch: int | None, queues: Queues, client: Client | None, host: str
    ) -> None:
        """Moves the position, durably. A client that was away may repeat a step.

        Raises ReaderError for a step back or beyond the end, and what StoredPosition raises.
        """
        if wanted.store_id != self.store_id:
            raise ReaderError(f"reader {self.name}: its messages were another store's: make a new reader")
        moved = NamedReader(
            self.name,
            self.store_id,
            wanted.offsets,
            moved_ms=0,
            kind=PYTHON,
            all_topics=wanted.all_topics,
            lanes=LaneChoice.of(wanted.lanes, wanted.members),
            client=client,
            host=host,
        )
        NamedReaders.check(moved)
        self._check_step(wanted.offsets, queues)
        facts = self._directory.load()
        if epoch is not None and epoch != facts.epoch:
            self._check_epoch(wanted.offsets, epoch)
        self._kept.save(moved, None if epoch is None else facts.epoch)
        self.position = moved

    def _check_step(self, offsets: Offsets, queues: Queues) -> None:
        before: Mapping[str, Mapping[int, int]] = {} if self.position is None else self.position.offsets
        for topic, lanes in offsets.items():
            for lane, offset in lanes.items():
                known = before.get(topic, {}).get(lane, 0)
                if offset == known:
                    continue
                where = f"reader {self.name}: offset {offset:,} of topic {topic[:200]}, lane {lane}"
                if offset < known:
                    raise ReaderError(f"{where}, which is committed up to {known:,}: a position never goes back")
                queue = queues.get(topic, {}).get(lane)
                if queue is None or offset > queue.end:
                    end = "has no messages that can be read" if queue is None else f"ends at {queue.end:,}"
                    raise ReaderError(f"{where}, which {end}: commit what was given out")

    def _check_epoch(self, offsets: Offsets, epoch: int) -> None:
        """Raises ReaderError if messages of an earlier epoch that were read are lost."""
        view = StoreView(self._directory.path)
        try:
            ends = shared_ends(view, epoch, [(topic, lane) for topic, lanes in offsets.items() for lane in lanes])
        finally:
            view.close()
        for (topic, lane), end in sorted(ends.items()):
            if offsets[topic][lane] > end:
                raise ReaderError(
                    f"reader {self.name}: the store was started since and has lost messages of topic {topic}, lane {lane}, "
                    f"from {end:,} on: make a new reader of this name, which begins with the new ones"
                )

    def close(self) -> None:
        """Gives the name back."""
        self._kept.let_go()

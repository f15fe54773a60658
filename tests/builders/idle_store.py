"""A store with a pool and no processes: for tests that turn one stage by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from commitlog.config import Config
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import PoolPlace, StoreDirectory, StoreFacts, boot_id, new_store_id
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Header, Lane

SEGMENT = 1 << 16


class IdleStore:
    """A store without processes.

    `directory` is its StoreDirectory, `control` its control region, `facts` the content of
    store.json.
    """

    def __init__(self, directory: StoreDirectory, control: ControlRegion, facts: StoreFacts) -> None:
        self.directory, self.control, self.facts = directory, control, facts

    def get(self, lane: int, word: int) -> int:
        return self.control.row(lane)[word]

    def set(self, lane: int, **words: int) -> None:
        """Stores words of a lane by their names in the layout: `set(0, WROTE=5)`."""
        for name, value in words.items():
            self.control.row(lane)[getattr(Lane, name)] = value

    def lease(self, lane: int, slots: int = 3) -> None:
        """The words of a lane to write into; no buffers are made."""
        lane_directory = self.directory.lane_directory(lane)
        for part in (lane_directory.commitlog, lane_directory.consumequeue, lane_directory.tmp):
            self.directory.channel.create_directory(part)
        self.set(lane, SEGMENT_SIZE=self.facts.segment_bytes, SLOTS=slots, BUFFERS=1)

    def segments(self, lane: int) -> list[int]:
        return [int(name) for name in self.directory.channel.list(self.directory.lane_directory(lane).commitlog)]


@contextmanager
def idle_store(
    path: Path,
    pool: Path,
    lanes: Sequence[int] = (0,),
    config: Config | None = None,
    segment_bytes: int = SEGMENT,
    channel: FileChannel = DISK,
) -> Iterator[IdleStore]:
    """Makes a store at `path` with its pool at `pool`, and removes the pool afterwards."""
    directory = StoreDirectory(path, channel)
    directory.channel.create_directory(path / "locks")
    directory.channel.create_directory(directory.lanes_directory)
    pool.mkdir(mode=0o700)
    facts = StoreFacts(new_store_id(), segment_bytes, generation=1, config=(config or Config()).to_json())
    control = ControlRegion.create(pool, facts.id, path)
    control.words[Header.GENERATION] = 1
    place = PoolPlace(str(pool), os.stat(pool).st_dev, boot_id(), os.geteuid())
    directory.save(replace(facts, pool=place))
    store = IdleStore(directory, control, facts)
    for lane in lanes:
        store.lease(lane)
    try:
        yield store
    finally:
        control.close()
        for name in os.listdir(pool):
            os.unlink(pool / name)
        pool.rmdir()

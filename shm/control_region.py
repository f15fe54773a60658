"""The control region as an object: its words, by lane and by stage.

Words that publish what was stored before them are stored and loaded by `memory_order.py` only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitlog.shm.layout import (
    ALL_STAGES,
    CONTROL_BYTES,
    ENTRY_COUNTS,
    LANE_ROW_WORDS,
    LANE_ROWS,
    LANES_AT,
    LAYOUT_VERSION,
    MAGIC,
    STAGE_ROW_WORDS,
    STAGES_AT,
    Header,
    Lane,
)
from commitlog.shm.memory_order import check_order, confirm, observe, publish
from commitlog.shm.region import Region, RegionError

CONTROL_NAME = "control"


class ControlRegion:
    """The `control` file of a pool, mapped.

    `words` are all its words, `row` gives those of a lane and `stage_row` those of a stage. Raises
    RegionError, and NativeCoreMissing on a machine that needs the native core for the order.
    """

    def __init__(self, region: Region) -> None:
        check_order()
        if region.size != CONTROL_BYTES or region.words[Header.MAGIC] != MAGIC:
            raise RegionError(f"{region.path} is not a control region of this version")
        if region.words[Header.LAYOUT_VERSION] != LAYOUT_VERSION:
            raise RegionError(f"{region.path} has layout {region.words[Header.LAYOUT_VERSION]}, not {LAYOUT_VERSION}")
        self.region = region
        self.words = words = region.words
        lanes, stages = map(self.row_at, range(LANE_ROWS)), map(self.stage_row_at, ALL_STAGES)
        self._rows = [words[at : at + LANE_ROW_WORDS] for at in lanes]
        self._stage_rows = dict(zip(ALL_STAGES, (words[at : at + STAGE_ROW_WORDS] for at in stages), strict=True))

    @classmethod
    def create(cls, directory: Path, store_id: str, store_path: Path) -> ControlRegion:
        """Makes the control region of a new pool: all words are 0 except those of its identity.

        Raises FileExistsError, RegionFull.
        """
        path = directory / CONTROL_NAME
        temporary = directory / f".{CONTROL_NAME}.tmp"
        temporary.unlink(missing_ok=True)
        region = Region.create(temporary, CONTROL_BYTES)
        region.words[Header.LAYOUT_VERSION] = LAYOUT_VERSION
        for index, word in zip(_IDENTITY, _identity(store_id, store_path), strict=True):
            region.words[index] = word
        region.words[Header.MAGIC] = MAGIC
        os.link(temporary, path)  # fails where `control` exists; nobody ever sees a half-made file
        os.unlink(temporary)
        region.path = path
        return cls(region)

    @classmethod
    def attach(cls, directory: Path, *, writable: bool = False) -> ControlRegion:
        """Maps the control region of a pool.

        Raises FileNotFoundError, PermissionError, RegionError.
        """
        region = Region.attach(directory / CONTROL_NAME, writable=writable)
        try:
            return cls(region)
        except RegionError:
            region.close()
            raise

    @staticmethod
    def check_file(directory: Path) -> None:
        """Checks that the control file of a pool is a plain file of this user.

        Raises RegionError.
        """
        facts = os.lstat(directory / CONTROL_NAME)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise RegionError(f"{directory / CONTROL_NAME} is not a plain file of user {os.geteuid()}")

    def belongs_to(self, store_id: str, store_path: Path, generation: int) -> bool:
        """Whether this is the pool of the store's last start, and not that of a copy of the store.

        A start raises the generation here first and in `store.json` next. So if a start is killed
        in between, the generation here is one ahead.
        """
        identity = tuple(self.words[index] for index in _IDENTITY)
        return identity == _identity(store_id, store_path) and 0 <= self.generation - generation <= 1 and generation > 0

    def is_at(self, store_path: Path) -> bool:
        """Whether the directory at a path is still the pool's store.

        It may have been renamed, removed or replaced. Returns True if the system does not tell: a
        later open of the path raises the cause.
        """
        try:
            facts = os.stat(store_path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return (facts.st_dev, facts.st_ino) == (self.words[Header.STORE_DEVICE], self.words[Header.STORE_INODE])

    @property
    def generation(self) -> int:
        return self.words[Header.GENERATION]

    def row(self, lane: int) -> memoryview:
        """The words of a lane: `row[Lane.WROTE]`. The same view each time, until `close`."""
        if not 0 <= lane < LANE_ROWS:
            raise ValueError(f"lane {lane} is not in 0…{LANE_ROWS - 1}")
        return self._rows[lane]

    def stage_row(self, stage: str) -> memoryview:
        """The words of a stage: `stage_row[Stage.PID]`.

        It is the same view each time; `close` ends it.
        """
        return self._stage_rows[stage]

    @staticmethod
    def row_at(lane: int) -> int:
        """Where the row of a lane begins in `words`. `Producer.send` uses it to see two rows."""
        return LANES_AT + lane * LANE_ROW_WORDS

    @staticmethod
    def stage_row_at(stage: str) -> int:
        """Where the row of a stage begins in `words`."""
        return STAGES_AT + ALL_STAGES.index(stage) * STAGE_ROW_WORDS

    def lane_table(self) -> npt.NDArray[np.uint64]:
        """All lane rows as a live array of words, of shape (128, 128).

        `table[:, Lane.WROTE]` is that position of every lane. The array shares the memory: drop it
        before `close`.
        """
        words = np.frombuffer(self.words, dtype=np.uint64, count=LANE_ROWS * LANE_ROW_WORDS, offset=LANES_AT * 8)
        return words.reshape(LANE_ROWS, LANE_ROW_WORDS)

    def positions(self, word: int) -> dict[int, int]:
        """Lane → this position of it (`Lane.FLUSHED`), for lanes that have ever had a message.

        Lanes whose directory was removed meanwhile are among them.
        """
        found = {lane: observe(self._rows[lane], word) for lane in range(LANE_ROWS)}
        return {lane: position for lane, position in found.items() if position}

    def close(self) -> None:
        """Unmaps the region: `words` and all rows end.

        Raises BufferError while a `lane_table` exists: the memory stays mapped then. A second call,
        once the table is dropped, unmaps it.
        """
        for row in (*self._rows, *self._stage_rows.values()):
            row.release()
        self.region.close()


def first_kept(row: memoryview) -> int:
    """The first offset of a lane's log that is kept.

    Retention raises two words. What somebody has written over one of them retires no segment.
    """
    return min(observe(row, Lane.FIRST), observe(row, Lane.RETIRED))


def set_first(row: memoryview, first: int) -> None:
    """Sets the first offset of a lane's log that is kept."""
    publish(row, Lane.FIRST, first)
    publish(row, Lane.RETIRED, first)


def counted_entries(row: memoryview, where: int) -> int:
    """How many entries the consume queues of a lane have in all, up to a log offset.

    More exactly, it is the sum of the ends of all topics' queues. The end of a queue is one past
    its last entry of a record below `where`. Returns −1 where nobody has counted. It is safe beside
    a running dispatcher.
    """
    if where == 0:
        return 0
    for place in range(ENTRY_COUNTS):
        at = Lane.ENTRIES_AT + place
        if observe(row, at) == where:
            entries = observe(row, Lane.ENTRIES + place)
            if confirm(row, at) == where:  # otherwise it was replaced meanwhile
                return entries
    return -1


def indexed_entries(row: memoryview) -> tuple[int, int]:
    """Returns `dispatch_synced`, and the answer of `counted_entries` for it.

    It is safe beside a running dispatcher.
    """
    while True:
        synced = observe(row, Lane.DISPATCH_SYNCED)
        counted = counted_entries(row, synced)
        if counted >= 0 or observe(row, Lane.DISPATCH_SYNCED) == synced:  # otherwise the dispatcher went on meanwhile
            return synced, counted


def count_entries(row: memoryview, where: int, entries: int) -> None:
    """Notes the answer of `counted_entries` for a log offset.

    It is called before `dispatched` or `dispatch_synced` is raised to the offset. The counts at the
    present two positions stay, so they survive a dispatcher that is killed at any point. Only the
    dispatcher may call this, or a supervisor that recovers the store.
    """
    kept = {observe(row, Lane.DISPATCHED), observe(row, Lane.DISPATCH_SYNCED)}
    for place in range(ENTRY_COUNTS):
        at = Lane.ENTRIES_AT + place
        if (counted := observe(row, at)) not in kept or counted == where:
            break
        kept.discard(counted)
    publish(row, at, _NOWHERE)
    publish(row, Lane.ENTRIES + place, entries)
    publish(row, at, where)


def forget_entries(row: memoryview) -> None:
    """Forgets all counts: the log has changed, and nobody has counted its entries."""
    for place in range(ENTRY_COUNTS):
        publish(row, Lane.ENTRIES_AT + place, _NOWHERE)


_NOWHERE = (1 << 64) - 1
_IDENTITY = (Header.STORE_ID_HIGH, Header.STORE_ID_LOW, Header.STORE_DEVICE, Header.STORE_INODE)


def _identity(store_id: str, store_path: Path) -> tuple[int, ...]:
    """The words that tell a pool's store from others.

    They are the store id (32 hex digits) as two words, and device and inode of its directory.
    """
    facts = os.stat(store_path)
    return int(store_id[:16], 16), int(store_id[16:], 16), facts.st_dev, facts.st_ino

"""The consume queues of one lane on disk: their files, and their sound entries."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitlog.disk.consume_queue import (
    ENTRY,
    ENTRY_BYTES,
    FILE_BYTES,
    PRE_FILL_SIZE,
    ConsumeQueue,
    Entries,
    queue_directories,
)
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.open_queues import OpenQueues
from commitlog.disk.store_directory import LaneDirectory, is_segment_name, segment_name
from commitlog.errors import DamagedFile
from commitlog.record.record_layout import RECORD_BYTES_MIN

LOG_END = 1 << 48
"""No log reaches so far: an entry that names such an offset is damaged."""
_READ_BYTES = 64 << 20
"""How many bytes at the end of each queue are read. Earlier starts have read older entries."""
_PART_ENTRIES_LEAST, _PART_ENTRIES_MOST = 1 << 10, 1 << 16
_SECTOR_BYTES = 512
_STAT_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""
_PAGE_BYTES = 4096
"""The usual block of a disk. Where blocks are larger, more of a hole is read than has to be."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The plausible part of a queue: its entries [first, sound)."""

    first: int
    sound: int
    junk: bool
    """Whether anything but zeros comes after the sound entries."""
    junk_low: int
    junk_high: int
    """The lowest and the highest physical offset in the junk; −1 if it has none."""
    torn: bool = False
    """Whether the junk has an entry that a power cut may have torn."""


class QueueFiles:
    """All consume queues of one lane. The queues that `queue` opened stay open until `close`.

    `file_bytes` is the configured size of a queue's file. If most files of the lane have another
    size, that size counts.
    """

    def __init__(self, lane_directory: LaneDirectory, channel: FileChannel, file_bytes: int = FILE_BYTES) -> None:
        self.lane_directory, self.channel = lane_directory, channel
        self.file_bytes = self._usual_file_bytes(file_bytes)
        self._open = OpenQueues(channel, self.file_bytes)

    # ---- open queues ----------------------------------------------------------------------------

    def queue(self, topic: str) -> ConsumeQueue:
        """The lane's own queue of a topic, which stays open. Raises OSError if a sync fails."""
        return self._open.get(self.lane_directory.queue_path(topic))

    def opened(self, directory: Path) -> ConsumeQueue:
        """A queue for the length of a with-block."""
        return ConsumeQueue(directory, self.file_bytes, self.channel)

    def sync(self) -> None:
        """Makes everything durable that was placed. Raises OSError."""
        self._open.sync()

    def close(self) -> None:
        """Closes the queues that are open, whatever else happened."""
        self._open.close()

    # ---- what is there --------------------------------------------------------------------------

    def directories(self) -> Iterator[Path]:
        """The directory of every queue in the lane.

        A RocketMQ that had the lane open may have made queues of other numbers.
        """
        return queue_directories(self.lane_directory.consumequeue, self.channel)

    def files(self, directory: Path) -> list[tuple[int, int]]:
        """Start and length of each file, ascending.

        Raises DamagedFile for anything that is not a plain file.
        """
        found = []
        for name in self.channel.list(directory):
            if is_segment_name(name):
                facts = os.lstat(directory / name)
                if not stat.S_ISREG(facts.st_mode):
                    raise DamagedFile(f"{directory / name}: no regular file")
                found.append((int(name), facts.st_size))
        return found

    def _usual_file_bytes(self, configured: int) -> int:
        """The size that most files of the lane's queues have.

        If two sizes are equally common, the larger one counts, because a file may have been cut.
        """
        sizes = Counter({configured: 1})
        for directory in self.directories():
            with contextlib.suppress(DamagedFile):
                sizes.update(size for start, size in self.files(directory) if size and start % size == 0)
        usual = [(count, size) for size, count in sizes.items() if size % ENTRY_BYTES == 0]
        return max(usual)[1]

    # ---- what makes sense -----------------------------------------------------------------------

    def state(self, directory: Path) -> QueueState:
        """Reads a queue. Raises DamagedFile if its files don't fit together."""
        files = self.files(directory)
        for start, size in files:
            if size not in (0, self.file_bytes) or start % self.file_bytes:
                raise DamagedFile(f"{directory}/{start:020d}: {size:,} bytes, a file here has {self.file_bytes:,}")
        starts = [start for start, size in files if size]
        if not starts:
            return QueueState(0, 0, False, -1, -1)
        with self.opened(directory) as queue:
            return self._state_of(queue, starts)

    def _state_of(self, queue: ConsumeQueue, starts: list[int]) -> QueueState:
        skipped = max(len(starts) - max(_READ_BYTES // self.file_bytes, 2), 0)
        sound, before, broken, junk, torn = starts[skipped] // ENTRY_BYTES, -1, False, False, False
        named: list[int] = []
        for first, entries in self._parts(queue, starts[skipped:]):
            if not broken:
                good = _sound_entries(entries, before) if first == sound else 0
                sound += good
                if good and int(entries["size"][good - 1]) != PRE_FILL_SIZE:
                    before = int(entries["physical_offset"][good - 1])
                broken = good < len(entries)
                entries, first = entries[good:], first + good
            parts = _may_be_parts(entries, first * ENTRY_BYTES % self.file_bytes)
            torn = torn or bool(parts.any())
            entries = entries[~parts]
            if np.frombuffer(entries.tobytes(), np.uint8).any():
                junk = True
                offsets = entries["physical_offset"][entries["size"] != 0]
                named += [int(offsets.min()), int(offsets.max())] if len(offsets) else [0]
        low, high = min(named, default=-1), max(named, default=-1)
        return QueueState(starts[0] // ENTRY_BYTES, sound, junk, low, high, torn)

    def told_end(self, directory: Path, below: int) -> int:
        """The offset behind a queue's last plausible entry that names a place below a log offset.

        There may be damaged entries before it. Raises DamagedFile.
        """
        starts, end = [start for start, size in self.files(directory) if size], 0
        with self.opened(directory) as queue:
            for first, entries in self._parts(queue, starts[-max(_READ_BYTES // self.file_bytes, 2) :]):
                where, size = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
                plausible = (size >= RECORD_BYTES_MIN) & (where >= 0) & (where < below)
                if plausible.any():
                    end = first + len(entries) - int(plausible[::-1].argmax())
        return end

    def _parts(self, queue: ConsumeQueue, starts: list[int]) -> Iterator[tuple[int, Entries]]:
        """Gives the entries of these files, some at a time, with the queue offset of the first.

        If the part that was read takes all blocks that the file has on the disk, the rest of the
        file is a hole, and is not read.
        """
        per_file = self.file_bytes // ENTRY_BYTES
        for start in starts:
            given = os.lstat(queue.directory / segment_name(start)).st_blocks * _STAT_BLOCK_BYTES
            first, at, entries = start // ENTRY_BYTES, 0, np.empty(0, ENTRY)
            while at < per_file:
                at += len(entries)
                entries = queue.entries(
                    first + at, min(max(at, _PART_ENTRIES_LEAST), _PART_ENTRIES_MOST, per_file - at)
                )
                if not len(entries):
                    break
                yield first + at, entries
                empty = entries["size"] == 0
                if empty[-1]:
                    used = (at + int(empty.argmax())) * ENTRY_BYTES
                    if given <= -(-used // _PAGE_BYTES) * _PAGE_BYTES:
                        break


def place_of(queue: ConsumeQueue, offset: int) -> int:
    """The log offset in the entry of a queue offset; −1 if there is no entry."""
    entries = queue.entries(max(offset, 0), min(offset + 1, 1))
    return int(entries["physical_offset"][0]) if len(entries) else -1


def _sound_entries(entries: Entries, before: int) -> int:
    """How many of the first entries are plausible.

    They have a size, and physical offsets that never go back.
    """
    offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    filled = sizes == PRE_FILL_SIZE
    offsets[filled & (offsets == 0)] = -1
    previous = np.empty_like(offsets)
    previous[0], previous[1:] = before, offsets[:-1]
    good = (sizes >= RECORD_BYTES_MIN) & (offsets >= previous) & (offsets >= -1)
    return len(good) if good.all() else int(good.argmin())


def _may_be_parts(entries: Entries, position: int) -> npt.NDArray[np.bool_]:
    """Which entries may be torn: only a part of them was written.

    A torn entry lies in two sectors. One sector has its part and the other has zeros, because a
    power cut tears between sectors. The offset that it names means nothing. `position` is where the
    first entry is in its file, in bytes.
    """
    into = (position + np.arange(len(entries)) * ENTRY_BYTES) % _SECTOR_BYTES
    parts = into > _SECTOR_BYTES - ENTRY_BYTES
    for i in np.flatnonzero(parts).tolist():
        data, cut = entries[i].tobytes(), _SECTOR_BYTES - int(into[i])
        parts[i] = any(data[:cut]) != any(data[cut:])
    return parts

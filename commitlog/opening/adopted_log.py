"""Checks the segment files of a lane whose pool is adopted: they must hold all flushed bytes.

The pool says how far the log was flushed. Somebody may have put older files back while no process
ran. So the bytes that the write buffers still hold are compared with the files, and written back if
a file lacks them. An older segment must exist and reach to its end. Otherwise the pool is newer
than the directory, and the start refuses the pool with an error. No other byte of the log is read,
however large the log is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.direct_segment import check_whole, whole_end
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file import read_ahead
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import Quarantine, is_noted
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, PoolNotAdopted
from commitlog.opening import Report
from commitlog.record.record_layout import RECOGNISABLE_BYTES
from commitlog.record.scan import LARGEST_BYTES, MAX_BYTES, scan
from commitlog.record.table import Stop
from commitlog.shm.control_region import ControlRegion, first_kept
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import confirm, observe, publish
from commitlog.shm.region import RegionError
from commitlog.shm.write_buffers import WriteBuffers, buffers_path, is_direct

_BLOCK_BYTES = 1 << 18


def attach_buffers(control: ControlRegion, lane: int) -> WriteBuffers:
    """Opens a lane's write buffers in a pool to read them.

    Raises FileNotFoundError if they are gone, and PoolNotAdopted if something else is in their
    place.
    """
    row, pool = control.row(lane), control.region.path.parent
    try:
        return WriteBuffers.attach(pool, lane, row[Lane.SEGMENT_SIZE], row[Lane.SLOTS], writable=False)
    except RegionError as error:
        raise not_its_buffers(control, lane, str(error)) from error


def not_its_buffers(control: ControlRegion, lane: int, why: str) -> PoolNotAdopted:
    """Makes the error for something else in the place of a lane's write buffers."""
    row, pool = control.row(lane), control.region.path.parent
    lost = observe(row, Lane.WROTE) - observe(row, Lane.COMMITTED)
    return PoolNotAdopted(
        f"lane {lane}: {why}: its write buffers are damaged, or another's. Put them back if you can. Or keep a copy, "
        f"then remove {buffers_path(pool, lane)} to go on with what the lane's files say: "
        f"{lost:,} bytes that were accepted and not written to them are given up then"
    )


@dataclass
class AdoptedLog:
    """The segment files of one lane. `store_id` is the store whose `positions` count."""

    control: ControlRegion
    lane_directory: LaneDirectory
    segment_bytes: int
    store_id: str
    channel: FileChannel
    report: Report
    _held: set[int] = field(default_factory=set)
    """Starts of the segments that a buffer holds, and whose files hold the same bytes."""
    _doubtful: set[int] = field(default_factory=set)
    """Starts of the segments that may have been half-full when somebody copied the files."""

    def __post_init__(self) -> None:
        self._lane = self.lane_directory.number
        self._row = self.control.row(self._lane)

    def check(self) -> None:
        """Compares files with buffers, writes missing bytes back, and makes missing files.

        Raises PoolNotAdopted, OSError.
        """
        row, size = self._row, self.segment_bytes
        first, flushed = first_kept(row), observe(row, Lane.FLUSHED)
        self._fit_sizes(flushed)
        if observe(row, Lane.BUFFERS) & 1 and row[Lane.SLOTS]:
            self._compare_buffers(first, flushed)
        positions = PositionsFile(self.lane_directory, self.store_id, self.channel)
        recorded = positions.load()
        for finding in positions.findings:
            self.report(f"lane {self._lane}: {finding}")
        if recorded is not None:
            self._doubtful.update(range(segment_start(recorded.flushed_where, size), flushed, size))
        segments = MappedFileQueue(self.lane_directory.commitlog, size, self.channel)
        for start in range(segment_start(first, size), flushed, size):
            if start not in self._held:
                self._check_old(segments, start, min(start + size, flushed))
        self._make_missing(segments, flushed)

    def _fit_sizes(self, flushed: int) -> None:
        """Gives files that are too long their size, and all files that have nothing flushed.

        In direct mode such a file may have messages that nothing else has. An allocator would put a
        new file into its place.
        """
        segments = MappedFileQueue(self.lane_directory.commitlog, self.segment_bytes, self.channel)
        quarantine = Quarantine(self.lane_directory, self.segment_bytes, self.channel)
        for start, length in segments.wrong_sizes.items():
            if length > self.segment_bytes or start >= flushed:
                self.report(f"lane {self._lane}: {quarantine.fit(start, length)}")

    # ---- what buffers hold ----------------------------------------------------------------------

    def _compare_buffers(self, first: int, flushed: int) -> None:
        """Compares each slot with its file.

        Segment S is in slot S mod N until a producer reaches segment S + N.
        """
        row, size = self._row, self.segment_bytes
        slots, current = row[Lane.SLOTS], observe(row, Lane.WROTE) // size
        buffers = attach_buffers(self.control, self._lane)
        try:
            for segment in range(max(current - slots + 1, first // size), current + 1):
                start = segment * size
                if start >= flushed or is_direct(row, segment):
                    continue
                wrote = observe(row, Lane.WROTE)
                end = row[Lane.DATA_END + segment % slots] if wrote >= start + size else wrote
                length = min(max(end - start, 0), size)
                is_same = self._is_same(start, buffers.slot(segment), min(length, flushed - start))
                held = b"" if is_same else bytes(buffers.slot(segment)[:length])
                if confirm(row, Lane.WROTE) // size >= segment + slots:
                    continue  # a live producer has reused the slot meanwhile
                if is_same:
                    self._held.add(start)
                else:
                    self._write_back(start, held, min(length, flushed - start))
        finally:
            buffers.close()

    def _is_same(self, start: int, slot: memoryview, count: int) -> bool:
        """Whether a segment file has its full size and the first `count` bytes of a buffer.

        Blocks are compared one by one, because a small one stays in the core's own cache.
        """
        try:
            with self.channel.opened(self.lane_directory.segment_path(start)) as fd:
                return self.channel.size(fd) == self.segment_bytes and all(
                    self.channel.pread(fd, min(_BLOCK_BYTES, count - at), at)
                    == bytes(slot[at : min(at + _BLOCK_BYTES, count)])
                    for at in range(0, count, _BLOCK_BYTES)
                )
        except FileNotFoundError:
            return False

    def _write_back(self, start: int, held: bytes, count: int) -> None:
        """Writes the first `count` bytes of a buffer to its file, which differs.

        The bytes must be whole records.
        """
        file = self.lane_directory.segment_path(start)
        if not self._is_whole(held, start):
            if held.count(0) < len(held):  # else the buffers were made later: the segment was never in them
                self.report(
                    f"lane {self._lane}: its write buffer of {file} was damaged: what was flushed stays as it is"
                )
            return
        on_disk = self._read(file).ljust(self.segment_bytes, b"\0")
        whole = whole_end(self.lane_directory, on_disk[:count], 0, start)
        if has_other_bytes(on_disk, held[:whole]):
            raise PoolNotAdopted(
                f"{file} holds other messages than those that were flushed there from the pool "
                f"{self.control.region.path.parent}; {self._way_out()}"
            )
        with self.channel.opened(file, write=True, create=True) as fd:
            self.channel.truncate(fd, self.segment_bytes)
            self.channel.allocate(fd, self.segment_bytes)
            self.channel.pwrite(fd, held[:count], 0)
            self.channel.fdatasync(fd)
        self.channel.sync_directory(self.lane_directory.commitlog)
        self._held.add(start)
        if not any(on_disk[:RECOGNISABLE_BYTES]):
            self._doubtful.add(start - self.segment_bytes)
        different = np.count_nonzero(np.frombuffer(on_disk, np.uint8, count) != np.frombuffer(held, np.uint8, count))
        self.report(
            f"lane {self._lane}: {file}: of what was flushed {different:,} bytes were missing or others: written back "
            f"from memory"
        )

    def _read(self, file: Path) -> bytes:
        try:
            with self.channel.opened(file) as fd:
                return self.channel.pread(fd, self.segment_bytes, 0)
        except FileNotFoundError:
            return b""

    def _is_whole(self, data: bytes, start: int) -> bool:
        try:
            check_whole(self.lane_directory, data, 0, start)
        except CorruptRecord:
            return False
        return bool(data)

    # ---- what only files hold -------------------------------------------------------------------

    def _check_old(self, segments: MappedFileQueue, start: int, end: int) -> None:
        """Checks a segment that no buffer holds: its file must exist and have a record.

        If it may have been copied half-full, it must also reach to its end. Raises PoolNotAdopted.
        """
        what = ""
        if start not in segments or start in segments.wrong_sizes:
            what = f"has {segments.wrong_sizes[start]:,} bytes" if start in segments else "is missing"
        else:
            with self.channel.opened(segments.segment_path(start)) as fd:
                if not any(self.channel.pread(fd, min(RECOGNISABLE_BYTES, end - start), 0)):
                    what = "is empty"
            if not what and start in self._doubtful:
                found = self._end_of(segments, start)
                if found < end:
                    what = f"ends at offset {found:,}"
        if what and not is_noted(self.lane_directory, start):
            raise PoolNotAdopted(
                f"{segments.segment_path(start)} {what}, and all below {end:,} was flushed: these files are older than the "
                f"pool {self.control.region.path.parent}; {self._way_out()}"
            )

    def _end_of(self, segments: MappedFileQueue, start: int) -> int:
        """The end of a segment's records, if only zeros follow them.

        Otherwise the end of the segment.
        """
        size, at = segments.size, 0
        mapped = segments.map(start)
        while True:
            read_ahead(mapped, at, at + MAX_BYTES + LARGEST_BYTES)
            table = scan(mapped, at, size, start, self._lane, check_crc=False, segment_end=size)
            at = table.stop_position
            if table.stop is not Stop.FULL:
                break
        is_older = table.stop is Stop.ZERO and segments.last_nonzero(start, at) == at
        return start + at if is_older else start + size

    def _way_out(self) -> str:
        return (
            "put the newer files back. Or keep a copy of both, then remove the pool to go on with what the files say: "
            "messages of any lane that are in the pool only are given up then"
        )

    # ---- what was not flushed yet ---------------------------------------------------------------

    def _make_missing(self, segments: MappedFileQueue, flushed: int) -> None:
        """Makes the missing files of segments that were committed and not flushed.

        It also tells the allocator from which offset on the files that were made ahead are gone.
        """
        segments.refresh()
        size, row = self.segment_bytes, self._row
        begin = segment_start(flushed, size)
        for start in self._missing(segments, begin, observe(row, Lane.COMMITTED)):
            with self.channel.opened(segments.segment_path(start), write=True, create=True) as fd:
                self.channel.allocate(fd, size)
                self.channel.fdatasync(fd)
            self.channel.sync_directory(self.lane_directory.commitlog)
        segments.refresh()
        quarantine = Quarantine(self.lane_directory, size, self.channel)
        for start in segments.misplaced:
            if start >= observe(row, Lane.COMMITTED):
                self.report(f"lane {self._lane}: {quarantine.set_misplaced_aside(start)}")
        gone = next(self._missing(segments, begin, observe(row, Lane.ALLOCATED)), None)
        if gone is not None:
            publish(row, Lane.ALLOCATED, gone)

    def _missing(self, segments: MappedFileQueue, begin: int, end: int) -> Iterator[int]:
        """The starts of segments in [begin, end) that have no file of full size."""
        for start in range(begin, end, segments.size):
            if start not in segments or start in segments.wrong_sizes:
                yield start


def has_other_bytes(on_disk: bytes, held: bytes) -> bool:
    """Whether a byte of the file is neither zero nor that of the buffer."""
    one, other = np.frombuffer(on_disk, np.uint8, len(held)), np.frombuffer(held, np.uint8)
    return bool(np.any((one != other) & (one != 0)))

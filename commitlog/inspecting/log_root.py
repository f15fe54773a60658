"""What can be inspected at a path: a store of ours, one of its lanes, or a RocketMQ store root."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue, guess_segment_bytes
from commitlog.disk.store_directory import STORE_FILE, LaneDirectory, StoreDirectory, checked_path
from commitlog.errors import DamagedFile, StoreDamaged, StoreNotFound, StoreRefused
from commitlog.reading.log_scan import LogScan
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe
from commitlog.shm.row_check import check_row


@dataclass(frozen=True, slots=True)
class LogRoot:
    """One log: a directory with `commitlog/` and `consumequeue/` in it."""

    path: Path
    lane: int | None
    """The lane's number, the queue id of all its records; None for a log of RocketMQ's."""
    segment_bytes: int
    limit: int | None = None
    """Log offset up to which it may be read while somebody appends; None where nobody appends."""
    dispatched: int = 0
    """Log offset up to which the consume queues are complete; 0 where that is not known."""
    flushed: int | None = None
    """Log offset up to which the log was synced: its recorded end; None where it is not known."""
    ends_whole: bool = False
    """Whether a record ends at `flushed`: where not all is flushed, one may go on behind it."""

    def scan(self, channel: FileChannel = DISK, *, check_crc: bool = True) -> LogScan:
        """A scan of its log."""
        return LogScan(MappedFileQueue(self.path / "commitlog", self.segment_bytes, channel), self.lane, check_crc)


def find_roots(path: str | os.PathLike[str], channel: FileChannel = DISK) -> tuple[list[LogRoot], list[str]]:
    """The logs at a path in the order of their numbers, and what is wrong with the store itself.

    Raises StoreNotFound if there is no log, StoreTooNew, StoreRefused.
    """
    path = checked_path(path)
    directory = StoreDirectory(path, channel)
    try:
        is_store = (path / STORE_FILE).exists() or directory.lanes_directory.is_dir()
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror}; check owner and permissions") from error
    if is_store:
        return _roots_of_store(directory)
    if not (path / "commitlog").is_dir():
        raise StoreNotFound(
            f"{path}: neither a store nor a RocketMQ store root: it has no {STORE_FILE} and no commitlog/"
        )
    number = _number_of(path)
    if number is not None:
        return _lane_roots([LaneDirectory(path, number)], 0, "", channel)
    return [LogRoot(path, None, guess_segment_bytes(path / "commitlog", channel) or 1 << 30)], []


def _number_of(path: Path) -> int | None:
    """The number of a lane of ours, or None for any other root."""
    ours = (path / "positions").exists() or (path.parent.name == "lanes" and (path.parents[1] / STORE_FILE).exists())
    return int(path.name) if ours and path.name.isdecimal() else None


def _roots_of_store(directory: StoreDirectory) -> tuple[list[LogRoot], list[str]]:
    channel = directory.channel
    lane_directories = [directory.lane_directory(number) for number in directory.lane_numbers()]
    try:
        view = StoreView(directory.path, channel)
    except (StoreDamaged, StoreNotFound) as error:
        roots, findings = _lane_roots(lane_directories, 0, "", channel)
        return roots, [str(error), *findings]
    try:
        lost = [
            f"{directory.lane_directory(lane).path} is missing, and {view.limits(lane).flushed:,} bytes were flushed there"
            for lane in view.lanes()
            if not directory.lane_directory(lane).path.exists()
        ]
        if not view.live:
            roots, findings = _lane_roots(lane_directories, view.segment_bytes, view.store_id, channel)
            return roots, lost + findings
        return [_live_root(lane_directory, view) for lane_directory in lane_directories], lost + _damaged_rows(view)
    finally:
        view.close()


def _damaged_rows(view: StoreView) -> list[str]:
    """A line for each lane whose words in shared memory make no sense."""
    assert view.control
    rows = ((lane, check_row(view.control.row(lane), view.segment_bytes)) for lane in view.lanes())
    return [f"lane {lane}: its positions in {view.control.region.path}: {wrong}" for lane, wrong in rows if wrong]


def _live_root(lane_directory: LaneDirectory, view: StoreView) -> LogRoot:
    path, number = lane_directory.path, lane_directory.number
    limits = view.limits(number)
    ends_whole = view.control is not None and observe(view.control.row(number), Lane.WROTE) == limits.flushed
    return LogRoot(
        path, number, view.segment_bytes, limits.flushed, limits.dispatched, limits.flushed, ends_whole=ends_whole
    )


def _lane_roots(
    lane_directories: list[LaneDirectory], segment_bytes: int, store_id: str, channel: FileChannel
) -> tuple[list[LogRoot], list[str]]:
    """Lanes of a store that does not run, and what is wrong with their `positions`."""
    roots, findings = [], []
    for lane_directory in lane_directories:
        file = PositionsFile(lane_directory, store_id, channel)
        try:
            known = file.load()
            findings += file.findings
        except DamagedFile as error:
            known = None
            findings.append(str(error))
        path, number = lane_directory.path, lane_directory.number
        size = segment_bytes or guess_segment_bytes(lane_directory.commitlog, channel) or 1 << 30
        if known is None:
            roots.append(LogRoot(path, number, size))
        else:
            end = known.flushed_where
            roots.append(LogRoot(path, number, size, None, known.dispatched_where, end, known.drained))
    return roots, findings

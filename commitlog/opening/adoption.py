"""Adopts the pool of the last start: its positions go on, whatever the size of the log.

The files must fit the pool, because somebody may have changed them while no process ran. If they do
not fit, the start refuses the pool with an error. No old buffer is ever written over newer data.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.direct_segment import check_whole, whole_end
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import is_leased
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.errors import CorruptRecord, PoolNotAdopted, disk_error
from commitlog.opening import Report
from commitlog.opening.adopted_log import AdoptedLog, attach_buffers, has_other_bytes, not_its_buffers
from commitlog.opening.adopted_queues import check_queues
from commitlog.opening.held_records import write_out_held
from commitlog.opening.new_pool import queue_file_bytes, recover_into
from commitlog.reading.log_begin import damage_of_index_word
from commitlog.record.record_layout import BLANK_BYTES
from commitlog.record.scan import scan
from commitlog.shm.control_region import ControlRegion, first_kept, set_first
from commitlog.shm.layout import LANE_ROW_WORDS, LANE_ROWS, Lane, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.shm.row_check import check_row, may_have_messages
from commitlog.shm.write_buffers import is_direct, remove_buffers

_COMPARED_BYTES = 1 << 18
_NO_SIZE = 1
"""No segment has this size: the words of a lane are not sound while they are set anew."""
_LOSSES_MOST = 1 << 32
_ZEROS = bytes(_COMPARED_BYTES)
_OF_THE_LAST_RUN = (
    Lane.COMMITTER_FAULT,
    Lane.FLUSHER_FAULT,
    Lane.ALLOCATOR_FAULT,
    Lane.DISPATCHER_FAULT,
    Lane.BLOCKED,
    Lane.FLUSH_REQUESTED,
    Lane.FIRST_RECORDED,
)
"""The words that are 0 at the begin of every run."""


@dataclass(frozen=True)
class Adoption:
    """One adoption. `control` is the region of a pool that belongs to the store."""

    control: ControlRegion
    directory: StoreDirectory
    facts: StoreFacts
    channel: FileChannel
    report: Report

    @property
    def _pool(self) -> Path:
        return self.control.region.path.parent

    def run(self) -> None:
        """Checks every lane against its files.

        A lane whose words and buffers can't be used is recovered from its files. Raises
        PoolNotAdopted, RecoveryError, DiskError.
        """
        on_disk = set(self.directory.lane_numbers())
        for lane in range(LANE_ROWS):
            row = self.control.row(lane)
            for word in _OF_THE_LAST_RUN:
                row[word] = 0
            if lane in on_disk:
                self._adopt_lane(self.directory.lane_directory(lane), has_buffers=bool(observe(row, Lane.BUFFERS) & 1))
            elif lane in self.facts.lanes or may_have_messages(row, self.facts.segment_bytes):
                raise PoolNotAdopted(
                    f"lane {lane} is in {self._pool} and has no directory under {self.directory.path}: put the directory "
                    f"back, or remove the pool to give its messages up"
                )
            elif check_row(row, self.facts.segment_bytes):
                self.report(f"lane {lane}: somebody has written over its words in {self._pool}; it has no messages")
                for word in range(LANE_ROW_WORDS):
                    row[word] = 0

    def _adopt_lane(self, lane_directory: LaneDirectory, *, has_buffers: bool) -> None:
        lane, row = lane_directory.number, self.control.row(lane_directory.number)
        if wrong := self._damage_of_words(lane_directory, row):
            self._recover_words(lane_directory, row, wrong)
            return
        self._forget_unrecorded_retirement(lane_directory, row)
        if not has_buffers:
            _check_end(self.control, lane_directory, self.facts.segment_bytes, self.channel)
            self._check_files(lane_directory)
            return
        try:
            _check_buffers(self.control, lane_directory, self.channel)
            _check_direct(row, lane_directory, self.channel)
        except FileNotFoundError:
            if is_leased(lane_directory, self._pool, self.channel):
                raise PoolNotAdopted(
                    f"lane {lane}: its buffers are gone from {self._pool}, and producer {row[Lane.LESSEE_PID]} still "
                    f"writes to them: close it, then start again"
                ) from None
            lost = observe(row, Lane.WROTE) - observe(row, Lane.COMMITTED)
            self.report(
                f"lane {lane}: its buffers are gone; {lost} bytes that were accepted and not committed are lost"
            )
            _note_loss(row, observe(row, Lane.FLUSHED))
            self._recover(lane, known_end=observe(row, Lane.FLUSHED))
            row[Lane.LOST_BEHIND] = observe(row, Lane.FLUSHED)  # what was committed may have been kept
            # last: a start that is killed before is repeated
            publish(row, Lane.BUFFERS, observe(row, Lane.BUFFERS) + 1)
            return
        except CorruptRecord as error:
            is_in_file = is_direct(row, error.offset // row[Lane.SEGMENT_SIZE])
            if is_leased(lane_directory, self._pool, self.channel):
                text = f"{error}; producer {row[Lane.LESSEE_PID]} holds lane {lane}: close it, then start again"
                if not is_in_file:
                    raise PoolNotAdopted(text) from error
                self.report(text)
                return
            self.report(f"lane {lane}: messages that were accepted are lost: {error}; what is whole is kept")
            _note_loss(row, error.offset)
            _write_out(self.control, lane_directory, self.channel)
            self._recover(lane, known_end=observe(row, Lane.WROTE))
            if not is_in_file:  # the next lessee makes buffers that have what the files have
                remove_buffers(self._pool, lane)
                publish(row, Lane.BUFFERS, observe(row, Lane.BUFFERS) + 1)
            return
        self._check_files(lane_directory)

    def _damage_of_words(self, lane_directory: LaneDirectory, row: memoryview) -> str:
        """Says what is wrong with a lane's words; empty for a sound row."""
        size, known = self.facts.segment_bytes, self.facts.lanes.get(lane_directory.number, 0)
        if wrong := check_row(row, size):
            return wrong
        flushed, wrote = observe(row, Lane.FLUSHED), observe(row, Lane.WROTE)
        if flushed < known:
            return f"flushed is {flushed:,}, and store.json says {known:,}"
        with contextlib.suppress(OSError):  # the check of the files names it
            recorded = PositionsFile(lane_directory, self.facts.id, self.channel).load()
            if recorded is not None and flushed < recorded.flushed_where:
                return f"flushed is {flushed:,}, and {lane_directory.positions_file} says {recorded.flushed_where:,}"
            if wrong := damage_of_index_word(lane_directory, row, size, self.channel):
                return wrong
        for start in range(segment_start(flushed, size), segment_start(wrote, size), size):
            end = (
                start + size if is_direct(row, start // size) else row[Lane.DATA_END + start // size % row[Lane.SLOTS]]
            )
            if not max(start, flushed) <= end <= start + size:
                return f"the data of segment {start:,} ends at {end:,}"
        return ""

    def _forget_unrecorded_retirement(self, lane_directory: LaneDirectory, row: memoryview) -> None:
        """Has the lane begin where `positions` say: what is not in there was retired by nobody.

        A killed retention may have come further, and unlinked nothing of that. So may somebody who
        has written over the word.
        """
        first = first_kept(row)
        with contextlib.suppress(OSError):  # the check of the files names it
            recorded = PositionsFile(lane_directory, self.facts.id, self.channel).load()
            first = min(first, recorded.first_where) if recorded is not None else first
        set_first(row, first)

    def _recover_words(self, lane_directory: LaneDirectory, row: memoryview, wrong: str) -> None:
        """Recovers a lane whose words are damaged, from its files and then from its write buffers.

        A lane that somebody holds stays as it is: the stages set it aside, and the next start looks
        again. Until all words are set, they can't be true, so a start that is killed is repeated.
        Raises RecoveryError, DiskError.
        """
        lane, size = lane_directory.number, self.facts.segment_bytes
        damaged = f"lane {lane}: its words in {self.control.region.path} are damaged: {wrong}"
        if is_leased(lane_directory, self._pool, self.channel):
            self.report(
                f"{damaged}; it is set aside, because producer {row[Lane.LESSEE_PID]} still holds it: close it, then start "
                f"again"
            )
            return
        self.report(f"{damaged}; it is recovered from its files and its write buffers")
        row[Lane.SEGMENT_SIZE] = _NO_SIZE
        losses = observe(row, Lane.LOSSES) % _LOSSES_MOST
        for word in range(LANE_ROW_WORDS):
            if word != Lane.SEGMENT_SIZE:
                row[word] = 0
        publish(row, Lane.LOSSES, losses)
        _note_loss(row, 0)
        if kept := write_out_held(lane_directory, self._pool, size, self.channel):
            self.report(f"lane {lane}: {kept:,} bytes that were only in its write buffers are kept")
        self._recover(lane)
        row[Lane.LOST_BEHIND] = observe(row, Lane.FLUSHED)
        remove_buffers(self._pool, lane)
        row[Lane.SEGMENT_SIZE] = 0

    def _recover(self, lane: int, *, known_end: int = 0) -> None:
        recover_into(
            self.control, lane, self.directory, self.facts, self.channel, self.report, known_end=known_end
        )  # fmt: skip

    def _check_files(self, lane_directory: LaneDirectory) -> None:
        """Checks that everything that was flushed and indexed is in the files.

        Missing parts are put back if the memory or the log still has them. Raises PoolNotAdopted,
        RecoveryError, DiskError.
        """
        size = self.control.row(lane_directory.number)[Lane.SEGMENT_SIZE] or self.facts.segment_bytes
        try:
            AdoptedLog(self.control, lane_directory, size, self.facts.id, self.channel, self.report).check()
        except OSError as error:
            doing = f"checking the files of {lane_directory.path}"
            raise disk_error(error.errno or errno.EIO, doing, to_repeat=True) from error
        file_bytes = queue_file_bytes(self.facts)
        check_queues(self.control, lane_directory, size, file_bytes, self.facts.id, self.channel, self.report)


def _note_loss(row: memoryview, where: int) -> None:
    """Tells the holders of receipts that accepted messages behind `where` may be lost.

    Other messages will take their places in the log. This is noted before the lane is recovered.
    Otherwise the positions that the recovery stores would confirm receipts of lost messages.
    """
    row[Lane.LOST_BEHIND] = where
    publish(row, Lane.LOSSES, observe(row, Lane.LOSSES) + 1)


# ---- segments that a producer wrote itself -----------------------------------------------------


def _check_direct(row: memoryview, lane_directory: LaneDirectory, channel: FileChannel) -> None:
    """Checks the segments that the producer wrote itself.

    Above `flushed` they must have whole records. Raises CorruptRecord.
    """
    size, flushed, wrote = row[Lane.SEGMENT_SIZE], observe(row, Lane.FLUSHED), observe(row, Lane.WROTE)
    for start in range(segment_start(flushed, size), wrote, size) if flushed < wrote else ():
        if is_direct(row, start // size):
            file = lane_directory.segment_path(start)
            try:
                with channel.opened(file) as fd:
                    data = channel.pread(fd, min(wrote - start, size), 0)
            except FileNotFoundError as error:
                raise CorruptRecord("the segment file is missing", start, str(file)) from error
            check_whole(lane_directory, data, max(observe(row, Lane.DISPATCHED), start) - start, start)


def _write_out(control: ControlRegion, lane_directory: LaneDirectory, channel: FileChannel) -> None:
    """Copies the bytes that only buffers have to the segment files, before a recovery reads these.

    It does the work of the committer, whose lock is held. It never writes over flushed bytes, nor
    over whole records.
    """
    row = control.row(lane_directory.number)
    size, flushed, wrote = row[Lane.SEGMENT_SIZE], observe(row, Lane.FLUSHED), observe(row, Lane.WROTE)
    slots = row[Lane.SLOTS]
    if not slots:
        return
    buffers = attach_buffers(control, lane_directory.number)
    try:
        for start in range(segment_start(flushed, size), wrote, size):
            if not is_direct(row, start // size):
                end = row[Lane.DATA_END + start // size % slots] if wrote >= start + size else wrote
                with channel.opened(lane_directory.segment_path(start), write=True, create=True) as fd:
                    channel.allocate(fd, size)
                    begin = max(observe(row, Lane.DISPATCHED), start)
                    on_disk = channel.pread(fd, end - begin, begin - start)
                    kept = max(begin + whole_end(lane_directory, on_disk, 0, begin), flushed) - start
                    channel.pwrite(fd, buffers.slot(start // size)[kept : end - start], kept)
    finally:
        buffers.close()


# ---- what was not flushed ----------------------------------------------------------------------


def _check_buffers(control: ControlRegion, lane_directory: LaneDirectory, channel: FileChannel) -> None:
    """Checks the segment files above `flushed` against the buffers.

    Every byte of a file must be that of the buffer or zero, and zero behind `wrote`. If a committed
    byte is missing in the file, `committed` goes back to `flushed`: nobody may read that byte from
    the file, or find a log's end by it, before the committer has written it again. Raises
    PoolNotAdopted, CorruptRecord if a buffer was damaged, and FileNotFoundError if the buffers are
    gone.
    """
    row = control.row(lane_directory.number)
    size, slots = row[Lane.SEGMENT_SIZE], row[Lane.SLOTS]
    if not slots:
        return
    buffers = attach_buffers(control, lane_directory.number)
    try:
        where, committed, wrote = observe(row, Lane.FLUSHED), observe(row, Lane.COMMITTED), observe(row, Lane.WROTE)
        while where < wrote:
            start = segment_start(where, size)
            if is_direct(row, start // size):
                where = start + size
                continue
            end = min(start + size, wrote)
            if end == start + size:
                end = row[Lane.DATA_END + start // size % slots]
            _check_held(control, lane_directory, buffers.slot(start // size), start, end, channel)
            if not _agrees(lane_directory, buffers.slot(start // size), start, where, end, channel):
                raise _not_ours(lane_directory.segment_path(start), where, control)
            if not _has_all(lane_directory, buffers.slot(start // size), start, where, min(end, committed), channel):
                publish(row, Lane.COMMITTED, observe(row, Lane.FLUSHED))
            where = start + size
    finally:
        buffers.close()
    _check_end(control, lane_directory, size, channel)


def _check_held(
    control: ControlRegion,
    lane_directory: LaneDirectory,
    slot: memoryview,
    start: int,
    end: int,
    channel: FileChannel,
) -> None:
    """Checks with all CRCs that a buffer has whole records from `flushed` to `end`.

    The first of them may begin before `flushed`. The file has that part, so the buffer need not
    have it. Raises CorruptRecord, and PoolNotAdopted if not even the first record is of this lane.
    """
    lane, row = lane_directory.number, control.row(lane_directory.number)
    begin, flushed = max(observe(row, Lane.DISPATCHED), start), max(observe(row, Lane.FLUSHED), start)
    file = lane_directory.segment_path(start)
    held = bytes(slot[begin - start : end - start])  # a copy: a view that stays would keep the buffer mapped
    if whole_end(lane_directory, held, 0, begin) == len(held):
        return
    with contextlib.suppress(FileNotFoundError), channel.opened(file) as fd:
        below = channel.pread(fd, flushed - begin, begin - start).ljust(flushed - begin, b"\0")
        held = below + held[flushed - begin :]
    whole = whole_end(lane_directory, held, 0, begin)
    if whole < len(held) and not len(scan(slot, 0, end - start, start, lane, check_crc=False, max_records=1)):
        raise not_its_buffers(control, lane, f"no message of the lane begins where that of {file} does")
    if whole < len(held):
        raise CorruptRecord("its write buffer was damaged", begin + whole, str(file))


def _check_end(control: ControlRegion, lane_directory: LaneDirectory, size: int, channel: FileChannel) -> None:
    """Checks that there are zeros behind `wrote`. Raises PoolNotAdopted.

    A RocketMQ that had the lane open would have appended there. If the lessee writes the file
    itself, it may have written bytes there and not published them. These look like the bytes of
    another writer, so nothing is checked then.
    """
    row = control.row(lane_directory.number)
    wrote = observe(row, Lane.WROTE)
    start = segment_start(wrote, size)
    has_been_leased = row[Lane.SEGMENT_SIZE] > 0  # in this pool
    if has_been_leased and is_direct(row, start // size):
        return
    file = lane_directory.segment_path(start)
    with contextlib.suppress(FileNotFoundError), channel.opened(file) as fd:
        if any(channel.pread(fd, min(BLANK_BYTES, start + size - wrote), wrote - start)):
            raise _not_ours(file, wrote, control)


def _not_ours(file: Path, where: int, control: ControlRegion) -> PoolNotAdopted:
    return PoolNotAdopted(
        f"{file} differs from the pool behind offset {where}: something else wrote to it. Keep a copy of both, then "
        f"remove the pool, {control.region.path.parent}, to go on with what the files say: messages of any lane that are "
        f"in the pool only are given up then"
    )


def _agrees(
    lane_directory: LaneDirectory, buffer: memoryview, start: int, where: int, end: int, channel: FileChannel
) -> bool:
    """Whether a segment file has nothing in [where, end) that contradicts the buffer."""
    blocks = _blocks(lane_directory, buffer, start, where, end, channel)
    return not any(_contradicts(on_disk, held[: len(on_disk)]) for on_disk, held in blocks)


def _has_all(
    lane_directory: LaneDirectory, buffer: memoryview, start: int, where: int, end: int, channel: FileChannel
) -> bool:
    """Whether a segment file has all bytes of the buffer in [where, end)."""
    blocks = _blocks(lane_directory, buffer, start, where, end, channel)
    return all(on_disk == held for on_disk, held in blocks)


def _blocks(
    lane_directory: LaneDirectory, buffer: memoryview, start: int, where: int, end: int, channel: FileChannel
) -> Iterator[tuple[bytes, bytes]]:
    """Gives the bytes of a segment file and of its buffer in [where, end), a block at a time.

    A file that is not made yet has no bytes. The buffer's bytes are copies, because a view would
    keep the buffer mapped.
    """
    with contextlib.ExitStack() as opened:
        try:
            fd = opened.enter_context(channel.opened(lane_directory.segment_path(start)))
        except FileNotFoundError:
            fd = None
        for at in range(where, end, _COMPARED_BYTES):
            count = min(_COMPARED_BYTES, end - at)
            on_disk = b"" if fd is None else channel.pread(fd, count, at - start)
            yield on_disk, bytes(buffer[at - start : at - start + count])


def _contradicts(on_disk: bytes, held: bytes) -> bool:
    """Whether a byte on the disk is neither zero nor that of the buffer."""
    if on_disk == _ZEROS[: len(on_disk)] or on_disk == held:
        return False  # nearly always, and quickly found
    return has_other_bytes(on_disk, held)

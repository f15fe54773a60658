"""The pool of a start: the last one's, if it is this store's own, else a new one with the positions
recovery found.

Called by the supervisor only, which holds the store's lock and all stage locks meanwhile. A pool
that does not belong to the store is left alone and named; no old buffer is ever written over newer
data.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from commitlog.config import Config
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.disk.direct_segment import check_whole
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import is_leased
from commitlog.disk.store_directory import LaneDirectory, PoolPlace, StoreDirectory, StoreFacts, boot_id
from commitlog.errors import CorruptRecord, NotEnoughSharedMemory, PoolNotAdopted, UnsafePath, disk_error
from commitlog.opening.adopted_log import AdoptedLog, has_other_bytes
from commitlog.opening.adopted_queues import check_queues
from commitlog.opening.parallel_recovery import recover_lanes
from commitlog.opening.recovery import LaneEnd, recover_lane
from commitlog.opening.stray_pools import name_store, remove_pool
from commitlog.reading.view import attach_control
from commitlog.record.layout import BLANK_BYTES
from commitlog.shm.layout import LANE_ROWS, Header, Lane
from commitlog.shm.pool import WriteBuffers, free_bytes, is_direct
from commitlog.shm.positions import ControlRegion, count_entries, forget_entries
from commitlog.shm.region import RegionError, RegionFull, base_directory, private_directory

Report = Callable[[str], None]

_SHARE_OF_FREE = 0.75
_LANES_AT_LEAST = 4
_COMPARED_BYTES = 1 << 18
_ZEROS = bytes(_COMPARED_BYTES)


def choose_segment_bytes(buffers_per_lane: int, largest: int, smallest: int) -> int:
    """The largest power of two with which four lanes' buffers fit into three quarters of the free
    shared memory.

    Raises NotEnoughSharedMemory where not even one lane of the smallest segments fits.
    """
    free = free_bytes(base_directory())
    size = largest
    while size > smallest and size * buffers_per_lane * _LANES_AT_LEAST > free * _SHARE_OF_FREE:
        size //= 2
    if size * buffers_per_lane > free:
        raise NotEnoughSharedMemory(
            f"{base_directory()} has {free:,} bytes free, a lane takes at least {size * buffers_per_lane:,}: free some, or "
            f"enlarge it (mount -o remount,size=1g /dev/shm, docker run --shm-size=1g)"
        )
    return size


def check_lane_fits(segment_bytes: int, buffers_per_lane: int) -> None:
    """Refuses a store of which not one lane fits into this machine's shared memory. Raises
    NotEnoughSharedMemory.
    """
    facts = os.statvfs(base_directory())
    size = facts.f_blocks * facts.f_frsize
    if segment_bytes * buffers_per_lane > size:
        raise NotEnoughSharedMemory(
            f"{base_directory()} has {size:,} bytes, a lane of this store takes {segment_bytes * buffers_per_lane:,}: "
            f"enlarge it (mount -o remount,size=1g /dev/shm, docker run --shm-size=1g)"
        )


def open_pool(
    directory: StoreDirectory, facts: StoreFacts, channel: FileChannel, report: Report
) -> tuple[ControlRegion, StoreFacts]:
    """The control region of this start, its positions set, and the facts to be saved with it.

    The generation is raised here; the caller saves the facts before the first append. Raises
    PoolNotAdopted, NotEnoughSharedMemory, RecoveryError, UnsafePath.
    """
    _refuse_unsafe_pool(facts)
    control = attach_control(directory, facts, writable=True)
    if control is not None:
        _adopt(control, directory, facts, channel, report)
        name_store(control.region.path.parent, directory.path, channel)
    else:
        _explain_missing_pool(directory, facts, report)
        control, place = _new_pool(directory, facts)
        facts = replace(facts, pool=place)
        try:
            _recover_all(control, directory, facts, channel, report)
        except BaseException:  # nobody would know of it: each start that fails would take more shared memory
            control.close()
            remove_pool(Path(place.directory))
            raise
    words = control.words
    generation = facts.generation + 1  # also where a start has raised the pool's and could not save its own
    words[Header.CLOSING] = 0
    words[Header.GENERATION] = generation
    return control, replace(facts, generation=generation)


def _refuse_unsafe_pool(facts: StoreFacts) -> None:
    """The last pool's directory must be this user's own: what lies under its name is neither used
    nor passed over.
    """
    pool = facts.pool
    if pool is None or pool.boot_id != boot_id():
        return
    try:
        private_directory(Path(pool.directory), create=False)
        ControlRegion.check_file(Path(pool.directory))
    except FileNotFoundError:
        return
    except RegionError as error:
        raise UnsafePath(f"the pool of this store is not safe: {error}") from error


def _new_pool(directory: StoreDirectory, facts: StoreFacts) -> tuple[ControlRegion, PoolPlace]:
    pool = base_directory() / f"commitlog-{os.geteuid()}-{os.urandom(6).hex()}"
    try:
        private_directory(pool, create=True)
        control = ControlRegion.create(pool, facts.id, directory.path)
        name_store(pool, directory.path)
    except RegionFull as error:
        with contextlib.suppress(OSError):
            os.rmdir(pool)
        raise NotEnoughSharedMemory(f"{error}; free or enlarge shared memory") from error
    except (RegionError, OSError) as error:
        raise UnsafePath(f"{pool}: the pool can't be made: {error}") from error
    return control, PoolPlace(str(pool), os.stat(pool).st_dev, boot_id(), os.geteuid())


def _explain_missing_pool(directory: StoreDirectory, facts: StoreFacts, report: Report) -> None:
    """Says why the last pool is not adopted, where there was one."""
    pool = facts.pool
    if pool is None:
        return
    if pool.boot_id != boot_id():
        report("the machine was started again: what was accepted and not committed before is gone with its memory")
    elif not os.path.isdir(pool.directory):
        report(
            f"the pool {pool.directory} is gone (a cleaner, systemd's RemoveIPC at logout, or the container's end): what "
            f"was accepted and not committed is gone with it"
        )
    else:
        report(f"the pool {pool.directory} does not belong to this copy of the store: it is left alone")


def _adopt(
    control: ControlRegion, directory: StoreDirectory, facts: StoreFacts, channel: FileChannel, report: Report
) -> None:
    """Takes the last run's positions over: the committer and flusher do the rest, whatever the
    log's size.
    """
    words = control.words
    on_disk = set(directory.lane_numbers())
    for number in range(LANE_ROWS):
        base = control.lane_base(number)
        for word in (
            Lane.COMMITTER_FAULT,
            Lane.FLUSHER_FAULT,
            Lane.ALLOCATOR_FAULT,
            Lane.DISPATCHER_FAULT,
            Lane.BLOCKED,
            Lane.FLUSH_REQUESTED,
            Lane.FIRST_RECORDED,
        ):
            words[base + word] = 0
        if not words[base + Lane.BUFFERS] & 1:
            if number in on_disk:
                _check_end(control, directory.lane(number), facts.segment_bytes, channel)
                _check_files(control, directory.lane(number), facts, channel, report)
            elif words[base + Lane.FLUSHED] > words[base + Lane.FIRST]:
                raise _no_directory(control, number, directory)
            continue
        if number not in on_disk:
            raise _no_directory(control, number, directory)
        pool = Path(facts.pool.directory if facts.pool else "")
        try:
            _check_buffers(control, directory.lane(number), pool, channel)
        except FileNotFoundError:
            if is_leased(directory.lane(number), pool, channel):
                raise PoolNotAdopted(
                    f"lane {number}: its buffers are gone from {pool}, and producer {words[base + Lane.LESSEE_PID]} still "
                    f"writes to them: close it, then start again"
                ) from None
            lost = words[base + Lane.WROTE] - words[base + Lane.COMMITTED]
            report(f"lane {number}: its buffers are gone; {lost} bytes that were accepted and not committed are lost")
            words[base + Lane.BUFFERS] += 1
            _recover(control, number, directory, facts, channel, report)
            continue
        try:
            _check_direct(control, directory.lane(number), channel)
        except CorruptRecord as error:
            if is_leased(directory.lane(number), pool, channel):
                report(
                    f"{error}; producer {words[base + Lane.LESSEE_PID]} holds lane {number}: close it, then start again"
                )
                continue
            report(f"lane {number}: messages that were accepted are lost: {error}; what is whole is kept")
            _write_out(control, directory.lane(number), pool, channel)
            _recover(control, number, directory, facts, channel, report, known_end=words[base + Lane.WROTE])
            continue
        _check_files(control, directory.lane(number), facts, channel, report)


def _no_directory(control: ControlRegion, number: int, directory: StoreDirectory) -> PoolNotAdopted:
    return PoolNotAdopted(
        f"lane {number} is in {control.region.path.parent} and has no directory under {directory.path}: put the directory "
        f"back, or remove the pool to give its messages up"
    )


def _check_files(
    control: ControlRegion, lane: LaneDirectory, facts: StoreFacts, channel: FileChannel, report: Report
) -> None:
    """What was flushed and indexed must be there; what memory or the log still knows of it is put
    right. Raises PoolNotAdopted, RecoveryError, DiskError."""
    size = control.words[control.lane_base(lane.number) + Lane.SEGMENT_SIZE] or facts.segment_bytes
    try:
        AdoptedLog(control, lane, size, facts.id, channel, report).check()
    except OSError as error:
        raise disk_error(error.errno or errno.EIO, f"checking the files of {lane.path}") from error
    check_queues(control, lane, size, _queue_file_bytes(facts), channel, report)


def _check_direct(control: ControlRegion, lane: LaneDirectory, channel: FileChannel) -> None:
    """Above flushed, what its producer wrote to the files itself must be whole records. Raises
    CorruptRecord.
    """
    words, base = control.words, control.lane_base(lane.number)
    size, flushed, wrote = words[base + Lane.SEGMENT_SIZE], words[base + Lane.FLUSHED], words[base + Lane.WROTE]
    for start in range(flushed - flushed % size, wrote, size) if flushed < wrote else ():
        if is_direct(control.row(lane.number), start // size):
            try:
                data = _read(lane.segment(start), min(wrote - start, size), channel)
            except FileNotFoundError as error:
                raise CorruptRecord("the segment file is missing", start, str(lane.segment(start))) from error
            check_whole(lane, data, max(words[base + Lane.DISPATCHED], start) - start, start)


def _read(file: Path, count: int, channel: FileChannel) -> bytes:
    with channel.opened(file) as fd:
        return channel.pread(fd, count, 0)


def _write_out(control: ControlRegion, lane: LaneDirectory, pool: Path, channel: FileChannel) -> None:
    """Copies what only buffers hold to the segment files, for a recovery that goes by these. The
    committer's bytes, in its place: its lock is held."""
    words, base = control.words, control.lane_base(lane.number)
    size, flushed, wrote = words[base + Lane.SEGMENT_SIZE], words[base + Lane.FLUSHED], words[base + Lane.WROTE]
    slots = words[base + Lane.SLOTS]
    if not slots:
        return
    buffers = WriteBuffers.attach(pool, lane.number, size, slots, writable=False)
    try:
        for start in range(flushed - flushed % size, wrote, size):
            if not is_direct(control.row(lane.number), start // size):
                end = words[base + Lane.DATA_END + start // size % slots] if wrote >= start + size else wrote
                with channel.opened(lane.segment(start), write=True, create=True) as fd:
                    channel.allocate(fd, size)
                    channel.pwrite(fd, buffers.slot(start // size)[: end - start], 0)
    finally:
        buffers.close()


def _check_buffers(control: ControlRegion, lane: LaneDirectory, pool: Path, channel: FileChannel) -> None:
    """Above flushed every byte of the segment files must equal the buffer or be zero, and behind
    `wrote` be zero. Raises PoolNotAdopted."""
    words, base = control.words, control.lane_base(lane.number)
    size, slots = words[base + Lane.SEGMENT_SIZE], words[base + Lane.SLOTS]
    if not slots:
        return
    buffers = WriteBuffers.attach(pool, lane.number, size, slots, writable=False)
    try:
        where, wrote = words[base + Lane.FLUSHED], words[base + Lane.WROTE]
        while where < wrote:
            start = where - where % size
            if is_direct(control.row(lane.number), start // size):
                where = start + size
                continue
            end = min(start + size, wrote)
            if end == start + size:
                end = words[base + Lane.DATA_END + start // size % slots]
            if not _agrees(lane, buffers.slot(start // size), start, where, end, channel):
                raise _not_ours(lane.segment(start), where, control)
            where = start + size
    finally:
        buffers.close()
    _check_end(control, lane, size, channel)


def _check_end(control: ControlRegion, lane: LaneDirectory, size: int, channel: FileChannel) -> None:
    """Behind `wrote` there must be zeros: a RocketMQ that had the lane open would have appended
    from there on. Raises PoolNotAdopted.

    Where the lessee writes the file itself, what it had not published may be there: that is not
    told from another's.
    """
    words, base = control.words, control.lane_base(lane.number)
    wrote = words[base + Lane.WROTE]
    start = wrote - wrote % size
    if words[base + Lane.SEGMENT_SIZE] and is_direct(
        control.row(lane.number), start // size
    ):  # 0: never leased in this pool
        return
    with contextlib.suppress(FileNotFoundError), channel.opened(lane.segment(start)) as fd:
        if any(channel.pread(fd, min(BLANK_BYTES, start + size - wrote), wrote - start)):
            raise _not_ours(lane.segment(start), wrote, control)


def _not_ours(file: Path, where: int, control: ControlRegion) -> PoolNotAdopted:
    return PoolNotAdopted(
        f"{file} differs from the pool behind offset {where}: something else wrote to it. Keep a copy of both, then "
        f"remove the pool, {control.region.path.parent}, to go on with what the files say: messages of any lane that are "
        f"in the pool only are given up then"
    )


def _agrees(lane: LaneDirectory, buffer: memoryview, start: int, where: int, end: int, channel: FileChannel) -> bool:
    try:
        with channel.opened(lane.segment(start)) as fd:
            blocks = (
                _contradicts(channel.pread(fd, min(_COMPARED_BYTES, end - at), at - start), buffer[at - start :])
                for at in range(where, end, _COMPARED_BYTES)
            )
            return not any(blocks)
    except FileNotFoundError:
        return True  # not made yet: all of it is still in the buffer


def _contradicts(on_disk: bytes, buffer: memoryview) -> bool:
    """Whether a byte is neither zero nor that of the buffer, whose views all end here: else it
    could not be unmapped.
    """
    held = bytes(buffer[: len(on_disk)])
    if on_disk == _ZEROS[: len(on_disk)] or on_disk == held:
        return False  # nearly always, and told quickly
    return has_other_bytes(on_disk, held)


def _recover_all(
    control: ControlRegion, directory: StoreDirectory, facts: StoreFacts, channel: FileChannel, report: Report
) -> None:
    """Takes all lanes' positions from their files."""
    lanes = [directory.lane(number) for number in directory.lane_numbers()]
    ends = recover_lanes(
        lanes, facts.segment_bytes, channel, report, queue_file_bytes=_queue_file_bytes(facts), store_id=facts.id
    )
    for number, end in ends.items():
        _set_lane(control, number, end)


def _queue_file_bytes(facts: StoreFacts) -> int:
    return Config.from_json(facts.config).dispatcher.queue_file_entries * ENTRY_BYTES


def _recover(
    control: ControlRegion,
    number: int,
    directory: StoreDirectory,
    facts: StoreFacts,
    channel: FileChannel,
    report: Report,
    *,
    known_end: int = 0,
) -> None:
    """Takes a lane's positions from its files. `known_end`: see `recover_lane`."""
    end = recover_lane(
        directory.lane(number), facts.segment_bytes, channel, report,
        queue_file_bytes=_queue_file_bytes(facts), known_end=known_end, store_id=facts.id,
    )  # fmt: skip
    _set_lane(control, number, end)


def _set_lane(control: ControlRegion, number: int, end: LaneEnd) -> None:
    """Everything that recovery kept is durable, so all positions are the end; dispatch goes on
    where it has to.
    """
    words, base = control.words, control.lane_base(number)
    for word in (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED):
        words[base + word] = end.end
    words[base + Lane.DISPATCHED] = words[base + Lane.DISPATCH_SYNCED] = end.dispatched
    forget_entries(control.row(number))
    if end.entries >= 0:
        count_entries(control.row(number), end.dispatched, end.entries)
    words[base + Lane.DISPATCHED_TIMESTAMP] = end.last_store_timestamp
    words[base + Lane.FIRST] = end.first
    words[base + Lane.ALLOCATED] = end.allocated
    words[base + Lane.REWRITTEN] = words[base + Lane.REWRITE_WANTED]

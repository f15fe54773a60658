"""The place where a producer writes next: a segment's write buffer or, in direct mode, its file.

If a record does not fit, the producer ends the segment with BLANK (RocketMQ's END_OF_FILE) and
rolls into the next segment. It waits for a free buffer there, or for the file: this wait is the
back-pressure.
"""

from __future__ import annotations

from collections.abc import Callable

from commitlog.appending.acknowledgements import NOTICE_WAIT_MS, LaneProgress
from commitlog.appending.attachment import Attachment
from commitlog.appending.lease import FAULT_PATIENCE_NS, Lease
from commitlog.disk.direct_segment import DirectSegment
from commitlog.errors import AllocateTimeout, NoBufferAvailable
from commitlog.record.record import encode_blank
from commitlog.record.record_layout import BLANK_BYTES
from commitlog.shm.layout import DIRECT_WINDOW, Lane, Stage
from commitlog.shm.memory_order import confirm, observe, publish
from commitlog.shm.write_buffers import is_direct, slot_is_free
from commitlog.system.clock import Clock


def _nowhere(_record: bytes) -> object:
    raise AssertionError("nothing may be written before a slot is known to be free")


class WritePlace:
    """The place behind the last record, and how to write there.

    Attributes: `append(bytes)` writes behind the last record; `segment_bytes`; `start`, the log
    offset of the segment that is written; `limit`, the log offset up to which a record may reach. A
    record that ends beyond it needs `make_room` first.

    After a write by other means than `append`, `continue_at` sets the next place.
    """

    __slots__ = (
        "_attachment", "_clock", "_lease", "_progress", "_row", "_segment", "_slot", "append", "limit", "segment_bytes",
        "start",
    )  # fmt: skip

    def __init__(self, attachment: Attachment, lease: Lease, progress: LaneProgress, clock: Clock) -> None:
        self._attachment, self._lease, self._progress, self._clock = attachment, lease, progress, clock
        self._row = lease.row
        self.segment_bytes = lease.row[Lane.SEGMENT_SIZE]
        self._slot: memoryview | DirectSegment = memoryview(b"")
        self.append: Callable[[bytes], object] = _nowhere
        self._segment, self.start, self.limit = -1, 0, -1

    def make_room(self, where: int, size: int) -> int:
        """Finds a place for a record of `size` bytes, and returns its log offset.

        The place is at or behind `where`, the lane's `wrote`. Rolling into the next segment raises
        `wrote`. Raises NoBufferAvailable, AllocateTimeout, DiskFull, …, StoreStopped.
        """
        row, segment_bytes = self._row, self.segment_bytes
        while True:
            segment = where // segment_bytes
            if segment != self._segment:
                self._enter(segment)
                self.continue_at(where)
            segment_end = self.start + segment_bytes
            if where + size <= self.limit:
                return where
            position = where - self.start
            self._slot[position : position + BLANK_BYTES] = encode_blank(segment_end - where)
            if isinstance(self._slot, memoryview):
                row[Lane.DATA_END + segment % row[Lane.SLOTS]] = where + BLANK_BYTES
            where = segment_end
            publish(row, Lane.WROTE, where)

    def continue_at(self, where: int) -> None:
        """Lets `append` continue at `where`, which is in the segment that is being written."""
        position, slot, buffers = where - self.start, self._slot, self._lease.buffers
        if isinstance(slot, DirectSegment) or buffers is None:
            assert isinstance(slot, DirectSegment)
            self.append = slot.writer(position)
        else:
            self.append = buffers.writer(self._segment, position)

    def view(self, where: int, size: int) -> memoryview:
        """Memory for `size` bytes at `where`, which must fit. `store` puts them in place."""
        if isinstance(self._slot, DirectSegment):
            return memoryview(bytearray(size))
        return self._slot[where - self.start : where - self.start + size]

    def store(self, made: memoryview, where: int) -> None:
        """Puts the bytes that were made in a `view` in place."""
        if isinstance(self._slot, DirectSegment):
            self._slot[where - self.start : where - self.start + len(made)] = made
        self.continue_at(where + len(made))

    def read(self, where: int, end: int) -> bytes:
        """The bytes from `where` to `end`, or to the end of the segment. Raises DiskError."""
        segment, position = divmod(where, self.segment_bytes)
        slot = self._slot if segment == self._segment else self._open_slot(segment)
        data = bytes(slot[position : min(position + end - where, self.segment_bytes)])
        if isinstance(slot, DirectSegment) and slot is not self._slot:
            slot.close()
        return data

    def buffer(self) -> memoryview | None:
        """The write buffer that records go to, whose first byte is at `start`. None for a file."""
        return self._slot if isinstance(self._slot, memoryview) and self.limit >= 0 else None

    def leave(self) -> None:
        """Makes the next record look for its place again, and check whether the store closes."""
        self.limit, self._segment = -1, -1
        self._row[Lane.BLOCKED] = 0  # an interrupted wait may have left it set

    def close(self) -> None:
        if isinstance(self._slot, DirectSegment):
            self._slot.close()

    # ---- segments -------------------------------------------------------------------------------

    def _enter(self, segment: int) -> None:
        self._segment = -1  # until all is set for the new segment: an interrupt may come in between
        slot = self._open_slot(segment)
        self.close()
        self._slot, self.start = slot, segment * self.segment_bytes
        self.limit = self.start + self.segment_bytes - BLANK_BYTES
        self._segment = segment
        self._attachment.wake("allocator")

    def _open_slot(self, segment: int) -> memoryview | DirectSegment:
        """The write buffer of a segment number if it is free, or the segment's file.

        Raises NoBufferAvailable, AllocateTimeout, DiskFull, …
        """
        self._attachment.check_open()
        row, buffers = self._row, self._lease.buffers
        if buffers is None or is_direct(row, segment):
            return self._open_file(segment)
        config = self._attachment.config.producer
        size, slots = self.segment_bytes, buffers.slots
        if not slot_is_free(segment, confirm(row, Lane.FLUSHED), size, slots):
            may_write = slot_is_free(segment, observe(row, Lane.FLUSHED), size, DIRECT_WINDOW)
            if config.when_no_buffer == "write_direct" and may_write:
                file = self._open_file(segment)
                row[Lane.DIRECT + segment % DIRECT_WINDOW] = segment + 1
                row[Lane.DIRECT_SEGMENTS] += 1
                return file
            self._progress.request(segment * size)  # otherwise the stages rest between small segments
            self._wait_until(
                lambda: slot_is_free(segment, confirm(row, Lane.FLUSHED), size, slots),
                config.buffer_wait_ms,
                self._no_buffer,
            )
        return buffers.slot(segment)

    def _open_file(self, segment: int) -> DirectSegment:
        """The segment's file, as soon as it is made and the flusher has it open.

        Raises AllocateTimeout, DiskFull, …
        """
        row, start = self._row, segment * self.segment_bytes

        def is_ready() -> bool:
            return observe(row, Lane.ALLOCATED) > start and observe(row, Lane.OPENED) > start

        def served_others() -> int:
            """How many segments the allocator has made; −1 once it has made this segment."""
            return observe(allocator_row, Stage.ACTIONS) if observe(row, Lane.ALLOCATED) <= start else -1

        if not is_ready():
            allocator_row = self._attachment.control.stage_row("allocator")
            limit_ms = self._attachment.config.producer.segment_wait_ms
            self._wait_until(is_ready, limit_ms, self._no_segment, served_others)
        return DirectSegment(self._lease.lane_directory.segment_path(start), self._lease.channel)

    # ---- back-pressure --------------------------------------------------------------------------

    def _wait_until(
        self,
        condition: Callable[[], bool],
        limit_ms: int,
        late: Callable[[int, int], Exception],
        served: Callable[[], int] = lambda: 0,
    ) -> None:
        """Waits until the condition holds, and counts the wait.

        Raises the fault of a stage. At the limit it raises `late(limit_ms, since)`; `since` is the
        time at which the limit began (monotonic ns). The limit begins again whenever `served`
        changes, because then the stage works for other lanes and has not come to this one yet.
        """
        row, clock = self._row, self._clock
        began = since = clock.monotonic_ns()
        others = served()
        row[Lane.BUFFER_WAITS] += 1
        row[Lane.BLOCKED] = began
        try:
            while not condition():
                now = clock.monotonic_ns()
                if now - began > FAULT_PATIENCE_NS:
                    self._attachment.raise_fault(row)
                if (others_now := served()) != others:
                    others, since = others_now, now
                if now - since >= limit_ms * 1_000_000:
                    row[Lane.BUFFER_TIMEOUTS] += 1
                    self._attachment.check_open()
                    self._attachment.check_stages()
                    raise late(limit_ms, since)
                for stage in ("committer", "allocator"):
                    self._attachment.wake(stage)
                self._attachment.await_notice(NOTICE_WAIT_MS, condition)
        finally:
            row[Lane.BLOCKED] = 0
            self._progress.waited_for_buffer(clock.monotonic_ns() - began)

    def _no_buffer(self, limit_ms: int, since: int) -> NoBufferAvailable:
        why = self._attachment.why_late(since, "the disk does not keep up")
        return NoBufferAvailable(
            f"lane {self._lease.lane}: no write buffer came free in {limit_ms} ms, {why}; the message was not accepted: send "
            f"it again later, or raise producer.buffer_wait_ms"
        )

    def _no_segment(self, limit_ms: int, since: int) -> AllocateTimeout:
        why = self._attachment.why_late(since, "see the store's logs/allocator.log")
        return AllocateTimeout(
            f"CREATE_MAPPED_FILE_FAILED: lane {self._lease.lane}: the next segment was not made in {limit_ms} ms, {why}; the "
            f"message was not accepted: send it again later, or raise producer.segment_wait_ms"
        )

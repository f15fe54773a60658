"""The bytes of a lane that are accepted and in no segment file yet: its write buffers have them.

A buffer is used again once all of its segment is flushed. So bytes are copied out of it, and count
only if that was not so after the copy. RocketMQ reads them in the same way in
MappedFile.selectMappedBuffer, from its writeBuffer.
"""

from __future__ import annotations

from commitlog.errors import DamagedFile
from commitlog.reading.view import LogView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import confirm, observe
from commitlog.shm.region import RegionError
from commitlog.shm.write_buffers import WriteBuffers, is_direct


class AcceptedBytes:
    """Reads the write buffers of a lane, which another process fills and uses again."""

    def __init__(self, view: LogView, lane: int) -> None:
        self._view, self._lane = view, lane
        self._buffers: WriteBuffers | None = None
        self._opened_at: tuple[object, int] = None, 0
        """The control region and the lane's sequence when the buffers were mapped."""

    def copy(self, where: int, end: int) -> bytes | None:
        """The bytes [where, end) of the lane's log, which are in one segment, if a buffer has them.

        None means that the segment's file has them, or will have them in a moment. Raises
        DamagedFile where the buffers can't be mapped.
        """
        control, size = self._view.control, self._view.segment_bytes
        if control is None:
            return None
        row = control.row(self._lane)
        sequence, start = observe(row, Lane.BUFFERS), segment_start(where, size)
        if observe(row, Lane.COMMITTED) >= end or not sequence & 1 or is_direct(row, where // size):
            return None
        buffers = self._mapped(control, sequence, row[Lane.SLOTS])
        if buffers is None:
            return None
        data = bytes(buffers.slot(where // size)[where - start : end - start])
        is_of_segment = confirm(row, Lane.BUFFERS) == sequence and confirm(row, Lane.FLUSHED) < start + size
        return data if is_of_segment else None

    def in_files(self, where: int) -> int:
        """Up to where files have the log behind `where`."""
        control = self._view.control
        committed = 0 if control is None else int(observe(control.row(self._lane), Lane.COMMITTED))
        return max(committed, self.direct_end(where))

    def direct_end(self, where: int) -> int:
        """Up to where a file has the log, where the producer writes to it directly; otherwise 0."""
        control, size = self._view.control, self._view.segment_bytes
        if control is None or not is_direct(row := control.row(self._lane), where // size):
            return 0
        return min(int(observe(row, Lane.WROTE)), segment_start(where, size) + size)

    def _mapped(self, control: ControlRegion, sequence: int, slots: int) -> WriteBuffers | None:
        if self._buffers is None or self._opened_at != (control, sequence):
            self.close()
            try:
                self._buffers = WriteBuffers.attach(
                    control.region.path.parent, self._lane, self._view.segment_bytes, slots, writable=False
                )
            except FileNotFoundError:  # the lane was given back meanwhile
                return None
            except (OSError, RegionError) as error:
                raise DamagedFile(f"lane {self._lane}: its write buffers can't be read: {error}") from error
            self._opened_at = control, sequence
        return self._buffers

    def close(self) -> None:
        """Unmaps the buffers. A later `copy` maps them again."""
        buffers, self._buffers = self._buffers, None
        if buffers is not None:
            buffers.close()

"""The checksums of a copy's whole segments: `lanes/<n>/segments.json`.

    {"lane": 0, "store": "<store id>", "segments": {"0": "3b1f2c4d"}, "crc32": "9d0f1a2b"}

A copy notes the CRC-32 of each segment when it has all of it. From then on the file never changes,
so other bytes are damage: of a disk, of a restore, or of somebody's hand. While the copy follows,
it reads its segments again in the background, and asks the store for those that have changed. A
promotion reads all of them.

The copy knows a checksum only if it has seen all bytes of a segment. For another one, such as one
that came back, it reads the segment in the background and checks each record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import is_noted
from commitlog.disk.store_directory import LaneDirectory
from commitlog.opening.lost_files import gaps_of_files
from commitlog.reading.log_scan import LogScan
from commitlog.record.crc import crc32

_FIELDS = ("lane", "store", "segments")
_FILE_BYTES_MAX = 256 << 20
_PIECE_BYTES = 4 << 20
"""How much is read at a time. Nobody waits longer for the reader than for such a piece."""


class SegmentSums:
    """The checksums of one lane of a copy. One thread uses it at a time."""

    def __init__(self, lane: LaneDirectory, store_id: str, size: int, channel: FileChannel) -> None:
        self._lane, self._store_id, self._size, self._channel = lane, store_id, size, channel
        self.known: dict[int, str] = {}
        """Start of a segment → its checksum."""
        self._running, self._next = 0, -1
        """The checksum of a segment up to the log offset `_next`; −1 if its begin was not seen."""
        self._is_new = False
        self._checking: tuple[int, Generator[str | None]] | None = None
        self._checked: set[int] = set()
        self.damaged: dict[int, str] = {}
        """Start of a segment that was read again and is damaged → why."""

    def load(self, first: int, end: int) -> str:
        """Reads the checksums of the segments in [first, end).

        Returns why the file can't be used; empty where it can. Then nothing is known, and each
        record is checked instead. Raises OSError.
        """
        try:
            values = from_checked_json(self._channel.read_file(self._lane.sums_file, _FILE_BYTES_MAX), _FIELDS)
            if (values["lane"], values["store"]) != (self._lane.number, self._store_id):
                return ""
            found = {int(start): str(said) for start, said in values["segments"].items()}
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, AttributeError) as error:
            return f"{self._lane.sums_file}: not the checksums of a copy's segments ({error})"
        self.known = {start: said for start, said in found.items() if first <= start and start + self._size <= end}
        return ""

    def note(self, offset: int, data: memoryview) -> None:
        """Takes the next bytes of the log. A segment gets its checksum with its last byte."""
        start = offset - offset % self._size
        if offset == start:
            self._running, self._next = 0, start
        if offset != self._next:
            return
        self._running = crc32(data, self._running)
        self._next += len(data)
        if self._next == start + self._size:
            self._set(start, self._running)

    def _set(self, start: int, crc: int) -> None:
        self.known[start] = f"{crc:08x}"
        self._checked.add(start)
        self._is_new = True

    def save(self, first: int) -> None:
        """Makes what is known durable, where that is new. Raises OSError."""
        if not self._is_new:
            return
        self.known = {start: said for start, said in sorted(self.known.items()) if start >= first}
        segments = {str(start): said for start, said in self.known.items()}
        values = {"lane": self._lane.number, "store": self._store_id, "segments": segments}
        self._channel.replace_file(self._lane.sums_file, to_checked_json(values))
        self._is_new = False

    def forget(self, start: int) -> None:
        """Takes out the checksum of a segment that is replaced, durably. Raises OSError."""
        if self.known.pop(start, None) is not None:
            self._is_new = True
            self.save(0)

    def begin_round(self) -> None:
        """Has all segments checked again."""
        self._checked.clear()

    def check_some(self, first: int, end: int) -> bool:
        """Reads a piece of the next whole segment in [first, end) that was not checked.

        False where there is none. Raises OSError.
        """
        if self._checking is not None and self._checking[0] < first:  # retention was quicker
            self.close()
        if self._checking is None:
            starts = range(first, end - end % self._size, self._size)
            start = next((start for start in starts if start not in self._checked), None)
            if start is None:
                return False
            self._checking = start, self._check(start)
        start, pieces = self._checking
        try:
            why = next(pieces)
        except FileNotFoundError:
            why = "it is missing"
        if why is not None:
            self.close()
            self._checked.add(start)
        if why:
            self.damaged[start] = why
        return True

    def close(self) -> None:
        """Closes what it has open."""
        checking, self._checking = self._checking, None
        if checking is not None:
            checking[1].close()

    def _check(self, start: int) -> Generator[str | None]:
        """Gives None behind each piece, and at last why the segment is damaged: "" if it is not."""
        crc = 0
        with self._channel.opened(self._lane.segment_path(start)) as fd:
            for at in range(0, self._size, _PIECE_BYTES):
                crc = crc32(self._channel.pread(fd, min(_PIECE_BYTES, self._size - at), at), crc)
                yield None
        said = self.known.get(start)
        if said is not None:
            yield "" if said == f"{crc:08x}" else f"its CRC-32 is {crc:08x}, and was {said} when it was closed"
            return
        why = self._damage(start)
        if not why:
            self._set(start, crc)
        yield why

    def _damage(self, start: int) -> str:
        """Why a record of a segment can't be read, where no note says so; else empty."""
        segments = MappedFileQueue(self._lane.commitlog, self._size, self._channel)
        end = start + self._size
        gaps = gaps_of_files(LogScan(segments, self._lane.number), start, end, [start])
        try:
            return next((gap.reason for gap in gaps if gap.start < end and not is_noted(self._lane, gap.start)), "")
        finally:
            segments.let_go()

    def changed(self) -> list[int]:
        """The starts of those that are there, and whose bytes have changed. Raises OSError."""
        found = []
        for start in self.known:
            with contextlib.suppress(FileNotFoundError):
                *_, why = self._check(start)
                if why:
                    found.append(start)
        return found

"""A lane's quarantine: keeps what recovery takes out of the log, and notes damage.

The files are in `lanes/<number>/quarantine/`:

    corrupt-<offset>.json         a damaged range that stays in place: file, offset, bytes, reason,
                                  and whether its messages are named
    torn-<offset>-<crc>.bin       the bytes that were after the log's end
    torn-<offset>-<crc>.json      the note that goes with them
    surplus-<offset>-<crc>.bin    what a segment file had beyond a segment's size
    segment-<start>               what was named like a segment file behind the log's end
    queue-<topic>-…               something that was named like a consume queue or its file
    cut.json                      a cut that is under way
    rebuild.json                  consume queues are being built anew

A cut is planned, then carried out. The plan (`cut.json`) and a copy of everything that it takes
away are durable before the first byte of the log changes. Each step may be repeated. So if a
recovery is killed, the next one carries out the same cut, and the result is the same.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import LaneDirectory, segment_name
from commitlog.errors import DamagedFile
from commitlog.record.crc import crc32
from commitlog.shm.layout import segment_start

COPY_BYTES = 4 << 20
"""Files are copied, zeroed and written again in pieces of this size."""
_PLAN = "cut.json"
_NOTE_FIELDS = ("file", "offset", "bytes", "reason", "named")
_CORRUPTION_NOTE = re.compile(r"corrupt-(\d{20})\.json")


@dataclass(frozen=True)
class Cut:
    """The plan to end a log at `end`.

    The bytes [end, dirty_end) of its segment are zeroed, and the files in `moves` leave the log.
    """

    end: int
    dirty_end: int
    copy: str
    """Name of the copy of these bytes; "" where there are none."""
    note: str
    """Name of the note that `cut.json` becomes."""
    moves: list[tuple[str, str]]
    """Names: in `commitlog/` → in `quarantine/`."""
    reason: str
    records_after: int
    """Good records among what is taken away."""
    log_end: int = 0
    """Where the log ended before, if the cut takes whole records away; 0 for a torn tail."""


class Quarantine:
    """One lane's quarantine."""

    def __init__(self, lane_directory: LaneDirectory, segment_bytes: int, channel: FileChannel) -> None:
        self.lane_directory, self.path = lane_directory, lane_directory.quarantine
        self.segment_bytes, self.channel = segment_bytes, channel

    # ---- notes ----------------------------------------------------------------------------------

    def note_corruption(
        self, file: str, offset: int, end: int, reason: str, *, is_named: bool, anew: bool = False
    ) -> str:
        """Notes a damaged range, and returns the line to report.

        `is_named` says whether the consume queues name all messages that were in the range. Where
        an earlier note says that they do not, the new note says so, too: nobody learns it later.
        Where it says that they do, that stays true for the same range and the same queues.

        The bytes stay where they are. The same note is written once. Only with `anew`, where the
        queues were built anew, it is written again: its time tells a start that queue offsets may
        be used again (opening/used_offsets.py).
        """
        said = f"corruption: {file} at offset {offset}: {reason}; {end - offset:,} bytes hold no record"
        name = os.fsencode(file).decode(errors="backslashreplace")  # JSON has no place for odd bytes
        path = self.path / f"corrupt-{offset:020d}.json"
        before = b""
        with contextlib.suppress(FileNotFoundError):
            before = self.channel.read_file(path)
            known = _noted_range(offset, path, before)
            if known.end == end and not anew:
                is_named = known.is_named
            is_named = is_named and known.is_named
        note = {"file": name, "offset": offset, "bytes": end - offset, "reason": reason}
        data = to_checked_json(note if is_named else note | {"named": False}, indented=True)
        if data != before or anew:
            self.channel.create_directory(self.path, below=self.lane_directory.path)
            self.channel.replace_file(path, data)
        return said

    def keep_surplus(self, start: int, length: int) -> None:
        """Copies what a segment file has beyond a segment's size. The caller then cuts it off."""
        self.channel.create_directory(self.path, below=self.lane_directory.path)
        self._copy(start + self.segment_bytes, start + length, "surplus", start)

    def fit(self, start: int, length: int) -> str:
        """Gives a segment file of this length a segment's size, and returns the line to report.

        A file that is too short gets zeros. The surplus of one that is too long is set aside.
        """
        path = self.lane_directory.segment_path(start)
        with self.channel.opened(path, write=True) as fd:
            if length > self.segment_bytes:
                self.keep_surplus(start, length)
                self.channel.truncate(fd, self.segment_bytes)
            else:
                self.channel.allocate(fd, self.segment_bytes)
            self.channel.fdatasync(fd)
        return f"{path}: was {length:,} bytes, a segment has {self.segment_bytes:,}; made to fit"

    def set_misplaced_aside(self, start: int) -> str:
        """Takes what is in the place of a segment out of the log, and returns the line to report.

        It is no plain file, so no segment could be made there.
        """
        path = self.lane_directory.segment_path(start)
        self.channel.create_directory(self.path, below=self.lane_directory.path)
        target = self.path / self._free_name(f"segment-{path.name}")
        self.channel.rename(path, target)
        self.channel.sync_directory(self.path)
        self.channel.sync_directory(path.parent)
        return f"{path}: no regular file, in the place of the next segment: it is {target} now"

    # ---- cuts -----------------------------------------------------------------------------------

    def plan(
        self, end: int, dirty_end: int, later: Sequence[int], reason: str, records_after: int, log_end: int = 0
    ) -> Cut:
        """Copies the bytes [end, dirty_end), which are in one segment, and makes the plan durable.

        `later` are the starts of segment files that are to leave the log. See Cut for the rest.
        """
        self.channel.create_directory(self.path, below=self.lane_directory.path)
        copy, crc = "", 0
        if dirty_end > end:
            copy, crc = self._copy(end, dirty_end, "torn", segment_start(end, self.segment_bytes))
        moves = [(segment_name(start), self._free_name(f"segment-{segment_name(start)}")) for start in later]
        note = f"torn-{end:020d}-{crc or crc32(repr(moves).encode()):08x}.json"
        cut = Cut(end, dirty_end, copy, note, moves, reason, records_after, log_end)
        self.channel.replace_file(self.path / _PLAN, to_checked_json(asdict(cut), indented=True))
        return cut

    def pending(self) -> Cut | None:
        """The cut that a killed recovery left under way."""
        return self._read(_PLAN)

    def cuts(self) -> Iterator[Cut]:
        """The cuts that were carried out, as their notes say."""
        for name in self.channel.list(self.path):
            if name.startswith("torn-") and name.endswith(".json") and (cut := self._read(name)):
                yield cut

    def _read(self, name: str) -> Cut | None:
        try:
            values = from_checked_json(self.channel.read_file(self.path / name), Cut.__dataclass_fields__)
            cut = Cut(**values | {"moves": [(source, target) for source, target in values["moves"]]})
            return cut if self._is_sound(cut) else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def _is_sound(self, cut: Cut) -> bool:
        """Whether a plan from disk names only this lane's files, and its copy is complete."""
        if any(type(number) is not int for number in (cut.end, cut.dirty_end, cut.records_after, cut.log_end)):
            return False
        start = segment_start(cut.end, self.segment_bytes)
        names = [cut.note, *(name for move in cut.moves for name in move), *([cut.copy] if cut.copy else [])]
        plain = all(name and "/" not in name and name not in (".", "..") for name in names)
        if not plain or not 0 <= cut.end <= cut.dirty_end <= start + self.segment_bytes:
            return False
        return cut.dirty_end == cut.end or (
            bool(cut.copy) and os.stat(self.path / cut.copy).st_size == cut.dirty_end - cut.end
        )

    def carry_out(self, cut: Cut) -> None:
        """Moves the files of a planned cut out of the log, and zeroes the bytes behind its end.

        All of it is durable at return.
        """
        channel, commitlog = self.channel, self.lane_directory.commitlog
        for source, target in cut.moves:
            with contextlib.suppress(FileNotFoundError):  # moved already
                channel.rename(commitlog / source, self.path / target)
        if cut.moves:
            channel.sync_directory(self.path)
            channel.sync_directory(commitlog)
        if cut.dirty_end > cut.end:
            start = segment_start(cut.end, self.segment_bytes)
            with channel.opened(self.lane_directory.segment_path(start), write=True) as fd:
                for at in range(cut.end, cut.dirty_end, COPY_BYTES):
                    channel.pwrite(fd, bytes(min(COPY_BYTES, cut.dirty_end - at)), at - start)
                channel.fdatasync(fd)
        self.drop_plan(cut.note)

    def drop_plan(self, note: str) -> None:
        """Makes the plan a note, durably."""
        self.channel.rename(self.path / _PLAN, self.path / note)
        self.channel.sync_directory(self.path)

    def clean(self) -> None:
        """Removes what a killed recovery left half-written."""
        for name in self.channel.list(self.path):
            if name.endswith(".partial") or (name.startswith(".") and name.endswith(".tmp")):
                self.channel.unlink(self.path / name)

    def _copy(self, begin: int, end: int, kind: str, start: int) -> tuple[str, int]:
        """Makes a durable copy of the log bytes [begin, end).

        They are in the segment file that begins at `start`. Returns the copy's name and CRC. The
        CRC is in the name, so that the same bytes are kept once.
        """
        channel, crc = self.channel, 0
        segment, partial = self.lane_directory.segment_path(start), self.path / "copy.partial"
        with channel.opened(segment) as source, channel.opened(partial, write=True, create=True) as fd:
            channel.truncate(fd, 0)
            channel.truncate(fd, end - begin)
            for at in _pieces_with_data(channel, source, begin - start, end - start):
                data = channel.pread(source, min(COPY_BYTES, end - start - at), at)
                if data.count(0) < len(data):  # the copy has a hole for zeros, even where the source has none
                    crc = crc32(data, crc)
                    channel.pwrite(fd, data, at + start - begin)
            channel.fdatasync(fd)
        name = f"{kind}-{begin:020d}-{crc:08x}.bin"
        channel.rename(partial, self.path / name)
        channel.sync_directory(self.path)
        return name, crc

    def _free_name(self, name: str) -> str:
        taken = set(self.channel.list(self.path))
        return next(n for n in _numbered(name) if n not in taken)


def is_noted(lane_directory: LaneDirectory, offset: int) -> bool:
    """Whether a recovery noted that the log is damaged at this offset.

    Consume queues keep the entries that name such a place.
    """
    for start, note in corruption_notes(lane_directory, DISK):
        if start == offset:
            return True
        with contextlib.suppress(OSError, DamagedFile):  # a note that can't be read
            found = read_corruption_note(note, DISK)
            if found[0] <= offset < found[1]:
                return True
    return False


def corruption_notes(lane_directory: LaneDirectory, channel: FileChannel) -> Iterator[tuple[int, Path]]:
    """The notes of damaged ranges, each with the offset in its name: where its range begins."""
    for name in channel.list(lane_directory.quarantine):
        if found := _CORRUPTION_NOTE.fullmatch(name):
            yield int(found[1]), lane_directory.quarantine / name


@dataclass(frozen=True, slots=True)
class NotedRange:
    """A damaged range [start, end) of a log, as its note tells of it."""

    start: int
    end: int | None
    """None if the note can't be read: only its name tells of the range."""
    is_named: bool
    """Whether the consume queues named all messages that were in it when the range was noted.

    A note of an older version does not tell. Then it counts as yes.
    """

    def overlaps(self, start: int, end: int) -> bool:
        """Whether this range has a part of [start, end). One without an end has all behind it."""
        return self.start < end and (self.end is None or start < self.end)


def noted_ranges(lane_directory: LaneDirectory, channel: FileChannel) -> Iterator[NotedRange]:
    """The damaged ranges that notes tell of, ascending."""
    for start, note in sorted(corruption_notes(lane_directory, channel)):
        try:
            yield _noted_range(start, note, channel.read_file(note))
        except OSError:
            yield NotedRange(start, None, False)


def _noted_range(start: int, note: Path, data: bytes) -> NotedRange:
    try:
        _, end = corruption_range(note, data)
        return NotedRange(start, end, from_checked_json(data, _NOTE_FIELDS).get("named") is not False)
    except DamagedFile:
        return NotedRange(start, None, False)


def read_corruption_note(note: Path, channel: FileChannel) -> tuple[int, int]:
    """The range [start, end) of a note, in bytes of the log. Raises DamagedFile, OSError."""
    return corruption_range(note, channel.read_file(note))


def unnamed_note(data: bytes) -> bytes:
    """The content of a note, changed: the consume queues do not name all messages."""
    return to_checked_json(from_checked_json(data, _NOTE_FIELDS) | {"named": False}, indented=True)


def corruption_range(note: Path, data: bytes) -> tuple[int, int]:
    """The range [start, end) that the content of a note tells of. Raises DamagedFile."""
    try:
        said = from_checked_json(data, _NOTE_FIELDS)
        return int(said["offset"]), int(said["offset"]) + int(said["bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{note}: not a note of damage ({error}); remove it, then start again") from error


def rebuild_mark(lane_directory: LaneDirectory) -> Path:
    """The file that exists while the lane's consume queues are built anew."""
    return lane_directory.quarantine / "rebuild.json"


def set_aside_name(*names: str) -> str:
    """The name in the quarantine of something that was named like a queue but is none.

    The same holds for something that was named like a file of a queue.
    """
    return "-".join(("queue", *names))


def _numbered(name: str) -> Sequence[str]:
    return [name, *(f"{name}.{number}" for number in range(1, 10_000))]


def _pieces_with_data(channel: FileChannel, fd: int, start: int, end: int) -> Iterator[int]:
    """The start of each piece of [start, end) that has data.

    Holes are passed over, because a sparse file may seem to have terabytes.
    """
    while start < end:
        found = channel.next_data(fd, start)
        if found is None or found >= end:
            return
        start += (found - start) // COPY_BYTES * COPY_BYTES
        yield start
        start += COPY_BYTES


def rewrite_log(
    lane_directory: LaneDirectory,
    segment_bytes: int,
    begin: int,
    end: int,
    channel: FileChannel,
    tell: Callable[[int], None],
) -> None:
    """Writes the log bytes [begin, end) once more in their place, and syncs them. Raises OSError.

    They may be in the page cache only. Or the last sync of them may have failed: then their pages
    count as clean, and only a write makes them dirty again. Files that are missing are passed over.
    `tell` is called after each segment with the offset that is reached.
    """
    where = begin
    while where < end:
        start = segment_start(where, segment_bytes)
        stop = min(end, start + segment_bytes)
        if os.path.isfile(lane_directory.segment_path(start)):
            _rewrite_segment(lane_directory.segment_path(start), start, where, stop, channel)
        where = stop
        tell(where)


def _rewrite_segment(path: Path, start: int, begin: int, end: int, channel: FileChannel) -> None:
    with channel.opened(path, write=True) as fd:
        for at in range(begin, end, COPY_BYTES):
            data = channel.pread(fd, min(COPY_BYTES, end - at), at - start)
            channel.pwrite(fd, data, at - start)
        channel.fdatasync(fd)

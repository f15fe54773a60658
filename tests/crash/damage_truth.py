"""What is there of a damaged store, by its bytes, and what those who look at it are told."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commitlog
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.errors import CommitLogError, ReadingWarning
from tests.crash.sound_store import SLOTS, TYPED, Sent, SoundStore

_POSITIONS = struct.Struct("<8s7Qq")
_POSITIONS_BYTES, _POSITIONS_OWNER_BYTES = 4096, 24
_FLUSHED_AT = 3
_ENTRY = struct.Struct(">qiq")


class Failure(AssertionError):
    """Something that must not be."""


# ---- what is there ------------------------------------------------------------------------------


@dataclass
class Truth:
    """What the bytes of a damaged store say, and what was sent to it."""

    sound: SoundStore
    state: str
    is_pool_sound: bool
    intact: set[Sent] = field(default_factory=set)
    in_files: set[Sent] = field(default_factory=set)
    """Those of them that are whole in the files, too, and not only in the pool."""
    must: set[Sent] = field(default_factory=set)
    """These have to be read, or an error or a warning has to name them."""
    told: set[Sent] = field(default_factory=set)
    """Their topic's queue, or a later message of the topic, tells that they were there."""
    known: dict[tuple[int, str, int], Sent] = field(default_factory=dict)
    """All that was ever sent."""

    @classmethod
    def of(cls, sound: SoundStore, state: str, is_pool_sound: bool) -> Truth:
        truth = cls(sound, state, is_pool_sound, known={message.place: message for message in sound.sent})
        for lane in sorted({message.lane for message in sound.sent}):
            truth._take_lane(StoreDirectory(sound.path).lane_directory(lane))
        return truth

    def _take_lane(self, directory: LaneDirectory) -> None:
        lane = directory.number
        messages = [message for message in self.sound.sent if message.lane == lane and message.record]
        files: dict[int, bytes] = {}
        for message in messages:
            start = message.where - message.where % self.sound.segment_bytes
            if start not in files:
                files[start] = _plain_bytes(directory.segment_path(start))
            is_intact = files[start][message.where - start : message.end - start] == message.record
            if is_intact:
                self.in_files.add(message)
            if is_intact or self._is_in_pool(message):
                self.intact.add(message)
        evidence, is_unbroken = self._evidence(directory, messages), True
        for message in messages:
            is_intact = message in self.intact
            is_unbroken = is_unbroken and (is_intact or message.end <= evidence)
            is_trimmed = message.offset < self.sound.trimmed.get((lane, message.topic), 0)
            if not is_trimmed and (message.end <= evidence or (is_intact and is_unbroken)):
                self.must.add(message)
        ends = self._told_ends(directory, messages)
        self.told.update(message for message in messages if message.offset < ends.get(message.topic, 0))

    def _told_ends(self, directory: LaneDirectory, messages: list[Sent]) -> dict[str, int]:
        """Topic → the queue offset below which something tells that its messages were there."""
        ends: dict[str, int] = {}
        indexed = set(self._indexed(directory, messages))
        for message in messages:
            if message in self.intact or message in indexed:
                ends[message.topic] = message.offset + 1
        return ends

    def _is_in_pool(self, message: Sent) -> bool:
        if self.state != "killed" or not self.is_pool_sound:
            return False
        size = self.sound.segment_bytes
        slot, at = message.where // size % SLOTS * size, message.where % size
        return (
            _plain_bytes(self.sound.pool / f"lane-{message.lane}")[slot + at :][: len(message.record)] == message.record
        )

    def _evidence(self, directory: LaneDirectory, messages: list[Sent]) -> int:
        """The log offset below which something that is left proves that all was flushed."""
        known = self.sound.known_ends.get(directory.number, 0)
        if self.state == "stopped" and not directory.abort_file.exists():
            return 1 << 62
        if self.state == "killed" and self.is_pool_sound:
            return 1 << 62
        if not directory.path.is_dir():  # only `store.json` can tell that there was a lane
            return known
        if not directory.abort_file.exists():  # somebody has removed it: no part of what is there is a torn tail
            known = max(known, self.sound.words[directory.number].flushed)
        found = [known]
        data = _plain_bytes(directory.positions_file)
        for start in (0, _POSITIONS_BYTES):
            end = start + _POSITIONS.size + _POSITIONS_OWNER_BYTES
            owner = data[start + _POSITIONS.size : end]
            if owner == self._owner(directory) and int.from_bytes(data[end : end + 4], "little") == zlib.crc32(
                data[start:end]
            ):
                found.append(_POSITIONS.unpack_from(data, start)[_FLUSHED_AT])
        # an entry of a record that is lost may be damaged itself
        return max(found + [message.end for message in self._indexed(directory, messages) if message in self.intact])

    def _owner(self, directory: LaneDirectory) -> bytes:
        return struct.pack("<Q", directory.number) + bytes.fromhex(self.sound.store_id)

    @staticmethod
    def _indexed(directory: LaneDirectory, messages: list[Sent]) -> Iterator[Sent]:
        """The messages that have their entry in a consume queue."""
        queues: dict[str, bytes] = {}
        for message in messages:
            if message.topic not in queues:
                queues[message.topic] = _plain_bytes(directory.queue_path(message.topic) / f"{0:020d}")
            entry = queues[message.topic][message.offset * ENTRY_BYTES :][:ENTRY_BYTES]
            if len(entry) == ENTRY_BYTES and _ENTRY.unpack(entry)[:2] == (message.where, len(message.record)):
                yield message

    def readable_before(self) -> set[Sent]:
        """What readers have to give before a start, or name."""
        if self.state == "stopped":
            return self.must
        if self.state == "killed" and self.is_pool_sound:
            return {message for message in self.must if message.end <= self.sound.words[message.lane].flushed}
        return set()  # how far they may read is what the start finds out


def _plain_bytes(path: Path) -> bytes:
    """The bytes of a plain file; none of anything else."""
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError:
        return b""


# ---- what users see -----------------------------------------------------------------------------


@dataclass
class Look:
    """What a reader gave and said."""

    read: set[tuple[int, str, int]] = field(default_factory=set)
    error: CommitLogError | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def said(self) -> bool:
        return self.error is not None or bool(self.warnings)

    def __str__(self) -> str:
        return f"{len(self.read)} read, {type(self.error).__name__}: {self.error}, {self.warnings[:3]}"


@contextlib.contextmanager
def _listening(found: Look) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except CommitLogError as error:
            found.error = error
    found.warnings = [str(w.message) for w in caught if issubclass(w.category, ReadingWarning)]


def look(path: Path, known: dict[tuple[int, str, int], Sent], *, is_foreign: bool = False, **options: Any) -> Look:
    """Reads all. Raises Failure for a wrong value, unless files of another store may be there."""
    found = Look()
    with _listening(found), commitlog.Reader(path, **options) as reader:
        for message in reader:
            place = message.partition, message.topic, message.offset
            if is_foreign:
                found.read.add(place)
                continue
            sent = known.get(place)
            if sent is None:
                raise Failure(f"a message that nobody sent: {place}")
            if place in found.read:
                raise Failure(f"a message twice: {place}")
            is_right = message.value in sent.record if sent.topic == TYPED else message.value == sent.value
            if (sent.record and not is_right) or message.physical_offset != sent.where:
                raise Failure(f"a wrong value at {place}")
            found.read.add(place)
    return found


def look_at_rows(path: Path, messages: Iterable[Sent]) -> None:
    """Reads the typed topic by columns. Raises Failure where rows are missing.

    Columns are read without a look at CRCs, so a row that was damaged may have other values.
    """
    found, rows = Look(), Counter[tuple[int, str]]()
    with _listening(found):
        table = commitlog.read_arrow(path, TYPED).read_all()
        if "id" not in table.column_names:  # its schema is gone, so it has values
            return
        rows.update(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    missing = Counter(row for message in messages for row in message.rows) - rows
    if missing and not found.said:
        raise Failure(f"{missing.total()} rows are missing in silence")

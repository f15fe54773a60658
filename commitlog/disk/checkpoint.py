"""What a start may rely on: our `positions`, and RocketMQ's `checkpoint` for RocketMQ.

`positions` has two slots of 4 KiB, which are written in turn. Each slot has a CRC. A torn write
costs the newest slot, and then the one before it counts. A slot is written only after the data
below `flushed_where` and the consume queues below `dispatched_where` were synced. So a slot stays
true for ever, and an old slot only makes the scan after a crash longer.

    0       8          16           24        32           40      48          56        64
    │ magic │ sequence │ generation │ flushed │ dispatched │ first │ last time │ drained │ entries │
    72     80         96
    │ lane │ store id │ CRC-32 │

The magic is `CLPOS`, two zero bytes, and the version, 3. A slot says which lane and store it
belongs to, so that a file from elsewhere is not believed. A slot of version 2 ends with its CRC-32
at 72, and is read all the same.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from pathlib import Path

from zlib_ng.zlib_ng import crc32

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import NOT_A_FILE, DamagedFile

SLOT_BYTES = 4096
_MAGIC, _MAGIC_BEFORE = b"CLPOS\0\0\x03", b"CLPOS\0\0\x02"
_SLOT = struct.Struct("<8s7Qq")
_OWNER = struct.Struct("<Q16s")
_CRC = struct.Struct("<I")
_Owner = tuple[int, bytes]
"""Number of the lane, id of the store."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of a lane, in bytes of its log.

    `last_store_timestamp` is in ms. `drained` says that the store was closed properly. `entries` is
    the sum of the ends of the lane's consume queues. The end of a queue is one past its last entry
    below `dispatched_where`. `entries` is −1 where nobody counted.
    """

    generation: int
    flushed_where: int
    dispatched_where: int
    first_where: int
    last_store_timestamp: int
    drained: bool
    entries: int = -1


class PositionsFile:
    """The `positions` file of a lane. It is opened for each call, so that nothing stays open.

    `store_id` has 32 hex digits, as in `store.json`. It is "" where the id is not known. Then a
    slot of any store counts, and what is written counts for any store. `findings` has a line for
    each slot of another lane or store that the last `load` passed over.

    Where all slots are another store's, the lane's directory may be that store's, with its log. So
    they are not passed over.
    """

    def __init__(self, lane_directory: LaneDirectory, store_id: str, channel: FileChannel) -> None:
        self._path, self._channel = lane_directory.positions_file, channel
        self._lane, self._store = lane_directory.number, bytes.fromhex(store_id)
        self._sequence = -1
        self.findings: list[str] = []
        self._is_named = False

    def load(self) -> Positions | None:
        """The newest slot that is whole and possible; None where there is none. Raises OSError.

        Raises DamagedFile where the path is not a plain file, and where the whole file is another
        store's. Nothing is lost of a path that is none, but a start could not write there either.
        """
        try:
            slots = self._slots()
        except OSError as error:
            if error.errno in NOT_A_FILE:
                raise DamagedFile(f"{self._path}: {error.strerror}; move it away, then start the store") from error
            raise
        self.findings = [
            f"{self._path}: belongs to lane {owner[0]} of store {owner[1].hex()}, not here; passed over"
            for _, owner, _ in slots
            if owner and not self._is_ours(owner)
        ]
        strangers = [owner for _, owner, _ in slots if owner and self._is_another_stores(owner)]
        if strangers and len(strangers) == len(slots):
            lane, store = strangers[0]
            raise DamagedFile(
                f"{self._path}: belongs to lane {lane} of store {store.hex()}, not here. Put back the lane's own "
                f"directory; or, if only this file is another's, move it away, then start the store"
            )
        ours = [(sequence, positions) for sequence, owner, positions in slots if self._is_ours(owner)]
        newest = max(ours, default=None, key=lambda found: found[0])
        return newest[1] if newest else None

    def _is_ours(self, owner: _Owner | None) -> bool:
        return owner is None or (owner[0] == self._lane and not self._is_another_stores(owner))

    def _is_another_stores(self, owner: _Owner) -> bool:
        return bool(self._store) and owner[1] not in (self._store, bytes(16))

    def _slots(self) -> list[tuple[int, _Owner | None, Positions]]:
        """Sequence, owner and positions of each slot that is whole and possible.

        A slot of version 2 has no owner.
        """
        try:
            data = self._channel.read_file(self._path, 2 * SLOT_BYTES)
        except FileNotFoundError:
            return []
        found = []
        for start in range(0, len(data), SLOT_BYTES):
            slot = data[start : start + SLOT_BYTES]
            has_owner = slot.startswith(_MAGIC)
            end = _SLOT.size + has_owner * _OWNER.size
            if len(slot) < end + _CRC.size or not (has_owner or slot.startswith(_MAGIC_BEFORE)):
                continue
            _, sequence, generation, flushed, dispatched, first, timestamp, drained, entries = _SLOT.unpack_from(slot)
            (crc,) = _CRC.unpack_from(slot, end)
            possible = first <= dispatched <= flushed < 1 << 63 and drained in (0, 1)
            if crc == crc32(slot[:end]) and possible:
                owner: _Owner | None = _OWNER.unpack_from(slot, _SLOT.size) if has_owner else None
                positions = Positions(generation, flushed, dispatched, first, timestamp, bool(drained), entries)
                found.append((sequence, owner, positions))
        return found

    def store(self, positions: Positions) -> None:
        """Writes the older slot and syncs it. Raises OSError."""
        if self._sequence < 0:
            self._sequence = max((sequence for sequence, _, _ in self._slots()), default=0)
        sequence = self._sequence + 1
        body = _SLOT.pack(
            _MAGIC,
            sequence,
            positions.generation,
            positions.flushed_where,
            positions.dispatched_where,
            positions.first_where,
            positions.last_store_timestamp,
            positions.drained,
            positions.entries,
        ) + _OWNER.pack(self._lane, self._store)
        slot = (body + _CRC.pack(crc32(body))).ljust(SLOT_BYTES, b"\0")
        with self._channel.opened(self._path, write=True, create=True) as fd:
            self._channel.pwrite(fd, slot, sequence % 2 * SLOT_BYTES)
            self._channel.fdatasync(fd)
        if not self._is_named:  # the process that made the file may have been killed before the name was durable
            self._channel.sync_directory(self._path.parent)
            self._is_named = True
        self._sequence = sequence


_STORE_CHECKPOINT = struct.Struct(">5q")
STORE_CHECKPOINT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """RocketMQ's StoreCheckpoint: how far data, queues and index are on disk.

    The three timestamps are store timestamps in ms, the two offsets are bytes. Each field may be 0:
    then RocketMQ's recovery begins earlier in the log. The file has no CRC, so we write it, and
    rely on it only where our own `positions` is lost.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @classmethod
    def load(cls, path: Path, channel: FileChannel) -> StoreCheckpoint | None:
        """Reads the file; None where there is none, or another thing. Raises OSError."""
        try:
            data = channel.read_file(path, _STORE_CHECKPOINT.size)
        except OSError as error:
            if error.errno in (errno.ENOENT, *NOT_A_FILE):
                return None
            raise
        return cls(*_STORE_CHECKPOINT.unpack(data)) if len(data) == _STORE_CHECKPOINT.size else None

    def save(self, path: Path, channel: FileChannel) -> None:
        """Writes the file whole and syncs it. Raises OSError."""
        fields = (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )
        with channel.opened(path, write=True, create=True) as fd:
            channel.pwrite(fd, _STORE_CHECKPOINT.pack(*fields).ljust(STORE_CHECKPOINT_BYTES, b"\0"), 0)
            channel.fdatasync(fd)

"""When a store was last backed up: `STORE/last-backup.json`.

    {"destination": "/mnt/backup/events", "ended_ms": 1764230400000, "crc32": "…"}

`commitlog backup` leaves it in the store, so that metrics of the store tell how old its backup is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.store_directory import StoreDirectory

_FILE_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class BackupNote:
    """The last backup that was good: its directory, and the wall time of its end (ms)."""

    destination: str
    ended_ms: int


def write_backup_note(directory: StoreDirectory, note: BackupNote) -> None:
    """Replaces the note. Raises OSError."""
    directory.channel.replace_file(directory.backup_note_file, to_checked_json(asdict(note)))


def backup_note(directory: StoreDirectory) -> BackupNote | None:
    """The last backup; None where there was none, or where the note can't be read."""
    try:
        data = directory.channel.read_file(directory.backup_note_file, _FILE_BYTES_MAX)
        values = from_checked_json(data, {"destination", "ended_ms"})
        return BackupNote(str(values["destination"]), int(values["ended_ms"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None

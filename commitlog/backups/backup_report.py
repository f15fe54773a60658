"""What a backup has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BackupReport:
    """What `commitlog.backup` has copied, and what is wrong with it.

    `path` is the store, `destination` its backup. Only what is new since the last backup counts as
    copied. Each line of `findings` names a damaged or missing piece of the log; the rest of the log
    is in the backup all the same.
    """

    path: str
    destination: str
    lanes: int
    """How many lanes the store has."""
    copied_bytes: int
    """Bytes of the log that were copied and checked."""
    copied_messages: int
    """Good messages in what was checked."""
    removed_segments: int
    """Segments that retention has deleted in the store, and that left the backup now."""
    findings: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether all that was checked is whole."""
        return not self.findings

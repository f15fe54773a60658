"""What a run was asked for, and the amount of work that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPEATS, QUICK_REPEATS = 5, 2
QUICK_SCALE = 0.02
AGAINST = ("lmdb", "redis", "faster-fifo")
"""Contestants that take part only where `--against` names them."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    `scale` multiplies the work of a turn. With 1, a full run, a turn takes about half a second.
    """

    directory: Path
    quick: bool = False
    scale: float = 1.0
    repeats: int = REPEATS
    against: frozenset[str] = frozenset()

    def count(self, full: int, least: int = 1, multiple: int = 1) -> int:
        """The work of a turn: `full` times the scale, `least` or more, a multiple of `multiple`."""
        wanted = max(int(full * self.scale), least)
        return max(wanted // multiple, 1) * multiple

    def seconds(self, full: float, least: float = 0.1) -> float:
        return max(full * self.scale, least)

    @property
    def warm_ups(self) -> int:
        """Rounds that do not count; none if the numbers mean nothing anyway."""
        return 0 if self.quick else 1

    @property
    def segment_bytes(self) -> int:
        """64 MiB, as a store takes with enough memory; 4 MiB in a small run."""
        return 1 << 26 if self.scale >= 0.5 else 1 << 22

    @property
    def store_config(self) -> dict[str, dict[str, object]]:
        """A store's configuration; all other knobs have their defaults."""
        return {"store": {"segment_bytes": self.segment_bytes}}

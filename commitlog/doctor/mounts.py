"""Which file system a path is on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from commitlog.doctor.finding import Surroundings

_ESCAPED = re.compile(r"\\(\d{3})")


@dataclass(frozen=True)
class Mount:
    """Where a file system is mounted, and its type, such as ext4 or nfs4."""

    place: Path
    kind: str


def mount_of(path: Path, here: Surroundings) -> Mount | None:
    """The mount that a path is below, by the kernel's table; None without a table."""
    target, best = path.resolve(), None
    for line in here.text_of("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        place = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # of two mounts at one place the later one counts
        if target.is_relative_to(place) and (best is None or len(place.parts) >= len(best.place.parts)):
            best = Mount(place, after.split()[0])
    return best


def existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())

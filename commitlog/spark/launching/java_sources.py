"""The sources in Java of this package, and a checksum that tells which of them a jar is of."""

from __future__ import annotations

import hashlib
from pathlib import Path

from commitlog.disk.file_channel import DISK

SOURCES = Path(__file__).parents[1] / "java"
CHECKSUM = "commitlog/spark/sources.sha256"
"""The file in the jar that has the checksum (spark/java/JarSources.java)."""


def checksum(sources: Path = SOURCES) -> str:
    """The same for two directories only if all their files are the same."""
    return hashlib.sha256(repr(files(sources, sources)).encode()).hexdigest()


def files(directory: Path, base: Path) -> dict[str, bytes]:
    """All files of a directory: their names, as they are seen from `base`, and their bytes."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(base)): DISK.read_file(path) for path in found}

"""How much memory the kernel lets this process use."""

from __future__ import annotations

import os
from pathlib import Path


def memory_limit(
    groups: Path = Path("/proc/self/cgroup"), hierarchy: Path = Path("/sys/fs/cgroup"), machine_bytes: int | None = None
) -> int:
    """The bytes of memory that this process may use: the machine's, or those of its container."""
    limits = [machine_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        own = groups.read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        own = ""
    directory = hierarchy / own
    for group in (directory, *directory.parents):
        try:
            limits.append(int((group / "memory.max").read_text()))
        except (OSError, ValueError):
            continue  # no limit here ("max")
    return min(limits)

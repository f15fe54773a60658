"""How much memory Spark's JVM may take for its objects."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
ENOUGH_BYTES = 4 << 30
"""A machine with this much memory has room for Spark's own default, 1 GiB."""
LEAST_BYTES = 512 * MIB
"""Spark does not start with less than 471 MiB."""


def driver_memory(machine_bytes: int) -> str | None:
    """The value for `spark.driver.memory`; None where Spark's own default is right.

    A small machine gives the JVM a quarter of its memory. With more, the JVM, its Python workers
    and the page cache of the log would not fit, and the kernel would kill one of them.
    """
    if machine_bytes >= ENOUGH_BYTES:
        return None
    return f"{max(machine_bytes // 4, LEAST_BYTES) // MIB}m"


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

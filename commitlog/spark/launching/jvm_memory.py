"""How much memory Spark's JVM may take for its objects."""

from __future__ import annotations

MIB = 1 << 20
ENOUGH_BYTES = 4 << 30
"""A machine with this much memory has room for Spark's own default, 1 GiB."""
LEAST_BYTES = 512 * MIB
"""Spark does not start with less than 471 MiB."""


def driver_memory(machine_bytes: int) -> str | None:
    """The value for `spark.driver.memory`; None if Spark's own default is right.

    On a small machine the JVM gets a quarter of the memory. If it had more, the JVM, its Python
    workers and the page cache of the log would not fit, and the kernel would kill a process.
    """
    if machine_bytes >= ENOUGH_BYTES:
        return None
    return f"{max(machine_bytes // 4, LEAST_BYTES) // MIB}m"

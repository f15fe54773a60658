"""The errors of a disk at a start, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commitlog.errors import FAULT_BY_ERRNO, RecoveryError, disk_error


@contextmanager
def named_faults(doing: str, advice: str) -> Iterator[None]:
    """Turns an OSError within a with-block into a DiskError where the disk refuses, else into
    RecoveryError. `doing` and `advice` are parts of its text.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FAULT_BY_ERRNO and not isinstance(error, FileNotFoundError):
            raise disk_error(error.errno, doing) from error
        raise RecoveryError(f"{doing}: {error}; {advice}") from error

"""Gives the errors of a disk at a start their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commitlog.errors import FAULT_BY_ERRNO, RecoveryError, disk_error


@contextmanager
def named_faults(doing: str, advice: str) -> Iterator[None]:
    """Names an OSError within a with-block.

    It becomes a DiskError if the disk refuses, and otherwise a RecoveryError. `doing` and `advice`
    are parts of the error's text.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FAULT_BY_ERRNO and not isinstance(error, FileNotFoundError):
            raise disk_error(error.errno, doing, to_repeat=True) from error
        raise RecoveryError(f"{doing}: {error}; {advice}") from error

"""A control group whose processes have little memory, as a container has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Gives the file that takes the id of a process which is to be within the limit.

    The page cache counts, too. It skips the test where no such group can be made: that needs root.
    """
    old = _ROOT / "memory"
    group, name = (old, "memory.limit_in_bytes") if old.is_dir() else (_ROOT, "memory.max")
    group /= f"commitlog-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error.strerror}")
    try:
        try:
            (group / name).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"a control group has no limit of memory here: {error.strerror}")
        yield group / "cgroup.procs"
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "no process is left in the group")
        group.rmdir()

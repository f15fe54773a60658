"""A store of which every process is killed."""

from __future__ import annotations

import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.errors import StageFailed
from commitlog.shm.layout import STAGES
from tests.crash.scene import kill, pid_of
from tests.waiting import wait_until


def kill_store(store: commitlog.Store) -> None:
    """kill -9 of the supervisor, which would start the others again, and of all stages.

    The pool stays, as do producers that the store has not made.
    """
    for name in ("", *STAGES):
        kill(pid_of(store.path, name))
    with pytest.raises(StageFailed):
        store.close()
    # a killed stage holds its lock until the disk has answered it
    wait_until(lambda: not any(DISK.is_locked(store.path / "locks" / name) for name in STAGES), "the stages to be gone")

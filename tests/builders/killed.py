"""A store of which every process is killed."""

from __future__ import annotations

import pytest

import commitlog
from commitlog.errors import StageFailed
from commitlog.shm.layout import STAGES
from tests.crash.scene import await_stages_gone, kill, pid_of


def kill_store(store: commitlog.Store) -> None:
    """kill -9 of the supervisor, which would start the others again, and of all stages.

    The pool stays, as do producers that the store has not made.
    """
    for name in ("", *STAGES):
        kill(pid_of(store.path, name))
    with pytest.raises(StageFailed):
        store.close()
    await_stages_gone(store.path)

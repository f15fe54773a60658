"""A file, a link or a pipe is where something else of a store was: commands say so in one line."""

from __future__ import annotations

import os
from pathlib import Path

from tests.builders.hand_made import small_store
from tests.command_line import run


def test_no_command_ends_in_a_traceback(tmp_path: Path) -> None:
    """It names the place. A bug would be raised here."""
    store = small_store(tmp_path / "store", rows=5)
    for place in ("forwarders", "servers"):
        (store.path / place).write_bytes(b"x")
        done = run("stat", store.path)
        assert done.returncode == 0 or str(store.path / place).encode() in done.stderr, done.stderr
        (store.path / place).unlink()
    (store.path / "replicas").mkdir()
    os.mkfifo(store.path / "replicas/spare.json")
    done = run("replicas", store.path)
    assert b"Traceback" not in done.stderr
    assert b"spare" in done.stdout + done.stderr

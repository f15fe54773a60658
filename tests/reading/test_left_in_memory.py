"""A store that nobody runs, with messages that are only in its pool: readers say so."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DamagedFile, ReadingWarning
from tests.builders.killed import kill_store
from tests.crash.scene import halted_process, pid_of
from tests.waiting import wait_until


def test_a_reader_names_what_is_only_in_memory(tmp_path: Path) -> None:
    """Once. While the store runs, and after the next start, it says nothing."""
    path, config = tmp_path / "store", {"store": {"segment_bytes": 1 << 16, "max_lanes": 1}}
    store = commitlog.Store.open(path, config)
    with commitlog.Producer(path) as producer:
        producer.send("orders", b"flushed").wait("flushed")
        with halted_process(pid_of(path, "committer")):
            producer.send("orders", b"accepted")
            assert _read(path) == ([b"flushed"], [])
            kill_store(store)
        values, said = _read(path)
    assert values == [b"flushed"]
    (text,) = said
    assert text.startswith(f"{path} does not run, and lane 0 has messages that were accepted and are only in memory")
    with commitlog.Store.open(path, config):
        read = wait_until(lambda: (found := _read(path))[0][1:] and found, "the kept message to be flushed")
    assert read == ([b"flushed", b"accepted"], [])


def test_a_lock_that_is_no_file_is_named(tmp_path: Path) -> None:
    """Nobody can tell whether the store runs. The reader is closed all the same."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16, "max_lanes": 1}})
    with commitlog.Producer(path) as producer, halted_process(pid_of(path, "committer")):
        producer.send("orders", b"accepted")
        kill_store(store)
    lock = StoreDirectory(path).lock_file
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(DamagedFile, match="lock: no regular file"):
        _read(path)
    lock.unlink()
    commitlog.Store.open(path).close()
    assert _read(path) == ([b"accepted"], [])


def _read(path: Path) -> tuple[list[bytes], list[str]]:
    """All values, and what readers were warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ReadingWarning)
        with commitlog.Reader(path, start="earliest") as reader:
            values = [message.value for message in reader]
    return values, [str(warning.message) for warning in caught]

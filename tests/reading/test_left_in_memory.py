"""A store that nobody runs, with messages that are only in its pool: readers say so."""

from __future__ import annotations

import warnings
from pathlib import Path

import commitlog
from commitlog.errors import ReadingWarning
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


def _read(path: Path) -> tuple[list[bytes], list[str]]:
    """All values, and what readers were warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ReadingWarning)
        with commitlog.Reader(path, start="earliest") as reader:
            values = [message.value for message in reader]
    return values, [str(warning.message) for warning in caught]

"""A directory, a link, a pipe or a file is where something else of a store was: readers name it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CommitLogError, DamagedFile, StoreDamaged
from tests.builders.hand_made import small_store
from tests.command_line import run


def _directory(path: Path) -> None:
    _clear(path)
    path.mkdir()


def _pipe(path: Path) -> None:
    _clear(path)
    os.mkfifo(path)


def _link(path: Path) -> None:
    _clear(path)
    path.symlink_to("nowhere")


def _file(path: Path) -> None:
    _clear(path)
    path.write_bytes(b"x")


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


_SEGMENT = f"lanes/1/commitlog/{0:020d}"
_QUEUE = f"lanes/1/consumequeue/orders/1/{0:020d}"
_CASES = [
    *((done, place) for done in (_directory, _pipe, _link) for place in (_SEGMENT, _QUEUE)),
    *((done, place) for done in (_file, _pipe) for place in ("lanes/1", "lanes/1/commitlog", "lanes")),
]


@pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")
@pytest.mark.parametrize(("done", "place"), _CASES)
def test_it_is_named(done: Callable[[Path], None], place: str, tmp_path: Path) -> None:
    """By all who read. Where only an index is harmed, all is read."""
    store = small_store(tmp_path / "store", rows=50)
    done(store.path / place)
    for read in (_messages, _columns):
        if "consumequeue" in place and read is _messages:
            assert read(store.path) == len(store.rows("orders"))
        elif "consumequeue" in place:
            with contextlib.suppress(DamagedFile):
                assert read(store.path) == len(store.rows("orders"))
        else:
            with pytest.raises(CommitLogError):
                read(store.path)
    assert run("verify", store.path).returncode == 1
    for command in ("stat", "topics", "health"):
        run(command, store.path)  # an error that is a bug is raised here


def test_a_start_names_a_file_in_place_of_all_lanes(tmp_path: Path) -> None:
    """No stage is started that would die of it."""
    store = small_store(tmp_path / "store", rows=5)
    _file(store.path / "lanes")
    with pytest.raises(StoreDamaged, match="lanes is no directory; put the one that was there back"):
        commitlog.Store.open(store.path)


def _messages(path: Path) -> int:
    with commitlog.Reader(path, topic="orders") as reader:
        return sum(1 for _ in reader)


def _columns(path: Path) -> int:
    return int(commitlog.read_arrow(path, "orders").read_all().num_rows)

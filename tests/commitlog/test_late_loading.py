"""A door that a program asks for when descriptors or memory are short is an error by name.

`import commitlog` loads hardly anything, so each door is loaded at its first use.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.hand_made import small_store
from tests.nightly import with_nightly

PROGRAM = """
import os, resource, sys, threading
import commitlog
from commitlog.errors import CommitLogError

kind, room, door, path = sys.argv[1:]
os.closerange(3, 256)
if door.startswith("loaded "):
    door = door.removeprefix("loaded ")
    getattr(commitlog, door)
doors = {
    "Producer": lambda: commitlog.Producer(path),
    "Reader": lambda: sum(1 for _ in commitlog.Reader(path)),
    "read_arrow": lambda: commitlog.read_arrow(path, "orders").read_all(),
    "read": lambda: commitlog.read(path, "orders").to_arrow(),
    "Store": lambda: commitlog.Store.open(path + "/new").close(),
    "RemoteProducer": lambda: commitlog.RemoteProducer("commitlog://127.0.0.1:1/store"),
    "backup": lambda: commitlog.backup(path, path + "-copy"),
}


def use():
    if kind == "descriptors":
        what, limit = resource.RLIMIT_NOFILE, 3 + int(room)
    else:
        what, limit = resource.RLIMIT_AS, int(open("/proc/self/statm").read().split()[0]) * 4096 + int(room)
    resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))
    try:
        doors[door]()
        said = "done"
    except CommitLogError as error:
        said = type(error).__name__
    os.write(1, said.encode())
    os._exit(0)


thread = threading.Thread(target=use)  # its stack need not grow: the kernel kills who can't grow one
thread.start()
thread.join()
"""


def said_by(kind: str, room: int, door: str, path: Path) -> str:
    command = [sys.executable, "-c", PROGRAM, kind, str(room), door, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "door", with_nightly(["Producer", "read_arrow"], ["Reader", "read", "Store", "RemoteProducer", "backup"])
)
def test_a_door_that_can_t_be_loaded_says_what_is_short(tmp_path: Path, door: str) -> None:
    """Not one descriptor, or too little memory, is left when the program first asks for it."""
    store = small_store(tmp_path / "store", rows=3)
    assert said_by("descriptors", 0, door, store.path) == "NotEnoughDescriptors"
    assert said_by("memory", 1 << 20, door, store.path) == "NotEnoughMemory"


WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None
import commitlog
with commitlog.Reader(sys.argv[1]) as reader:
    print(len(list(reader)))
try:
    commitlog.Reader("commitlog://127.0.0.1:1/store")
except commitlog.errors.MissingPackage as error:
    print(error)
"""


def test_a_reader_of_a_directory_needs_no_arrow(tmp_path: Path) -> None:
    """A reader by URL says what it needs. README promises readers without any extra."""
    store = small_store(tmp_path / "store", rows=3)
    done = subprocess.run([sys.executable, "-c", WITHOUT_ARROW, store.path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    count, error = done.stdout.splitlines()
    assert count == "12"
    assert "pip install pyarrow" in error


@pytest.mark.parametrize("room", with_nightly([60 << 20], [30 << 20, 40 << 20, 80 << 20, 100 << 20]))
def test_a_client_without_room_for_threads_ends_by_an_error(tmp_path: Path, room: int) -> None:
    """The stacks of gRPC's threads need memory, and it would end the process in the same way."""
    assert said_by("memory", room, "loaded RemoteProducer", tmp_path) in ("ServerUnavailable", "NotEnoughMemory")


@pytest.mark.parametrize("free", with_nightly([1], [0, *range(2, 8)]))
def test_a_client_without_descriptors_ends_by_an_error(tmp_path: Path, free: int) -> None:
    """gRPC would end the whole process; so it is not called."""
    said = said_by("descriptors", free, "loaded RemoteProducer", tmp_path)
    assert said == ("ServerUnavailable" if free else "NotEnoughDescriptors")

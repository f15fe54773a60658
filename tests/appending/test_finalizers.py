"""Finalizers that send while a thread starts: who has a token or a lock waits for no thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from tests.nightly import with_nightly

PROGRAM = """
import _thread, gc, sys, threading
import commitlog

class Garbage:
    def __init__(self, use):
        self.use, self.itself = use, self
    def __del__(self):
        self.use()

def planted(start):
    def begin(function, *arguments, **more):
        def run(*given):
            if not used.is_set():  # not in a thread that starts while the program ends
                Garbage(use)
                gc.collect()  # as any allocation in the new thread may do
            function(*given)
        return start(run, *arguments, **more)
    return begin

path, way = sys.argv[1:]
producer = commitlog.Producer(path)
receipt = producer.send("values", b"x")
rows = producer.rows("rows")
told, used = threading.Semaphore(0), threading.Event()

def use():
    if way == "rows":
        rows.append(id=2)
    elif way == "callback":
        receipt.add_callback(lambda status: told.release())
    else:
        producer.send("values", b"from a finalizer")
    used.set()

for module in (_thread, threading):
    for name in ("start_new_thread", "_start_new_thread", "start_joinable_thread", "_start_joinable_thread"):
        if hasattr(module, name):
            setattr(module, name, planted(getattr(module, name)))
if way == "rows":
    rows.append(id=1)
elif way == "callback":
    receipt.add_callback(lambda status: told.release())
else:
    for number in range(1000):  # rolls into new segments, and waits for write buffers
        producer.send("values", bytes(1000))
used.wait()
rows.close()
if way == "callback":
    told.acquire(), told.acquire()
producer.flush()
producer.close()
print("ended")
"""


INSIDE = """
import sys, time
from collections.abc import Mapping
import commitlog

class Headers(Mapping):  # it is read inside the call, as a signal handler or a finalizer may run there
    def __iter__(self):
        use()
        return iter(())
    def __len__(self):
        return 1
    def __getitem__(self, name):
        raise KeyError(name)

def is_stuck():
    names = {(frame.f_code.co_name, frame.f_back.f_code.co_name) for frame in sys._current_frames().values() if frame.f_back}
    return ("wait", "_wait_outside") in names or ("sleep", "wait") in names

def use():
    rows.append(id=1)
    while not is_stuck():  # the thread that sends late rows waits for this call
        time.sleep(0.001)
    rows.append(id=2)
    rows.append(id=3)
    for name in ("flush", "close"):
        try:
            getattr(rows, name)()
        except commitlog.errors.ConcurrentUse:
            print("refused")

producer = commitlog.Producer(sys.argv[1])
rows = producer.rows("rows", linger_ms=0, max_rows=1)
producer.send("values", b"x", headers=Headers())
rows.close()
producer.flush()
producer.close()
print("ended")
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    config = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(tmp_path_factory.mktemp("live") / "store", config) as store:
        store.create_topic("rows", "id BIGINT")
        yield store


@pytest.mark.parametrize("way", with_nightly(["send"], ["rows", "callback"]))
def test_garbage_that_sends_is_collected_in_a_thread_that_starts(live: commitlog.Store, way: str) -> None:
    """The thread waits for what the caller has, and the caller waits for no thread."""
    program = [sys.executable, "-c", PROGRAM, str(Path(live.path)), way]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr


def test_a_row_that_comes_inside_a_call_is_collected(live: commitlog.Store) -> None:
    """The call has what the thread that sends late rows waits for; nobody waits for that thread."""
    live.create_topic("inside", "id BIGINT")
    program = [sys.executable, "-c", INSIDE.replace('"rows"', '"inside"'), str(Path(live.path))]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("refused\nrefused\nended\n", 0), done.stderr
    assert commitlog.read_arrow(live.path, "inside").read_all()["id"].to_pylist() == [1, 2, 3]

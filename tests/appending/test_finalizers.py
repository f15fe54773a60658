"""Finalizers that send while a thread starts: who has a token or a lock waits for no thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog

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


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    config = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(tmp_path_factory.mktemp("live") / "store", config) as store:
        store.create_topic("rows", "id BIGINT")
        yield store


@pytest.mark.parametrize("way", ["rows", "callback", "send"])
def test_garbage_that_sends_is_collected_in_a_thread_that_starts(live: commitlog.Store, way: str) -> None:
    """The thread waits for what the caller has, and the caller waits for no thread."""
    program = [sys.executable, "-c", PROGRAM, str(Path(live.path)), way]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr

"""A forked child has copies of its parent's producers and receipts.

It may look at them, but waits for nothing through them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import ForkedProducer
from commitlog.receipt import Receipt
from commitlog.system.threads import Background
from tests.children import in_child
from tests.nightly import with_nightly
from tests.unwiped_page import UNWIPED

SMALL = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"hung_after_ms": 600_000}}


FORK_DURING_THE_FIRST_SEND = """
import os, sys, threading
import commitlog
producer = commitlog.Producer(sys.argv[1])
def send():
    for _ in range(3_000):
        producer.send("t", b"x")
thread = threading.Thread(target=send)
thread.start()
if (child := os.fork()) == 0:
    try:
        producer.send("t", b"y")
    except commitlog.errors.ForkedProducer:
        os._exit(0)
    os._exit(1)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""One fork in three comes where the first `send` lets go of the interpreter."""


FORK_WITH_AN_EARLIER_HOOK = """
import os, sys
early = []
os.register_at_fork(after_in_child=lambda: [early.pop()() for _ in early[:]])  # earlier than all of commitlog's own
import logging
import commitlog, commitlog.logging
from commitlog.errors import NoFreeLane
path, call, topic = sys.argv[1:]
log = logging.getLogger("early")
log.setLevel(logging.INFO)
if "log." in call:
    log.addHandler(commitlog.logging.Handler(path, topic))
    logging.raiseExceptions = False
    log.info("x")
else:
    producer = commitlog.Producer(path)
    producer.send(topic, b"x").wait("flushed", 60)
    if "rows." in call:
        rows = producer.rows(f"{topic}-rows", linger_ms=3_600_000)
        rows.append(n=1)
def act():
    try:
        said = exec(call, globals()) if call == "producer = None" else eval(call)
    except Exception as error:
        said = type(error).__name__
    print(f"child: {said}", flush=True)
early.append(act)
if (child := os.fork()) == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
try:
    print("parent: a second lane for", commitlog.Producer(path))
except NoFreeLane as error:
    print("parent:", "held by itself" if f" by pid {os.getpid()}" in str(error) else error)
if "log." in call:
    log.info("y")
    logging.shutdown()
else:
    if "rows." in call:
        rows.append(n=2)
        rows.close()
    producer.send(topic, b"y").wait("flushed", 60)
    producer.close()
"""
"""What a program does in a hook that Python calls before all of commitlog's own."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """A running store whose lanes are free before each test."""
    with commitlog.Store.open(tmp_path_factory.mktemp("shared") / "store", SMALL) as opened:
        yield opened


async def _awaited(receipt: Receipt) -> None:
    await receipt


def _said_in_child(calls: list[Callable[[], object]]) -> list[str]:
    """What each call returns, or its error's name, in a forked child."""

    def said(call: Callable[[], object]) -> str:
        try:
            return str(call())
        except Exception as error:
            return type(error).__name__

    return in_child(lambda: "\n".join(map(said, calls))).splitlines()


def test_a_forked_child_has_no_threads_of_its_parent() -> None:
    """Who waits there for the end of one goes on at once."""
    ending = threading.Event()
    thread = Background(ending.wait, "waits")
    try:
        assert in_child(lambda: thread.join(5)) == "True"
        assert not thread.join(0)
    finally:
        ending.set()
    assert thread.join()


def test_a_forked_child_waits_for_nothing(store: commitlog.Store) -> None:
    """Neither `flush` nor a receipt waits, even if the parent used its sockets before the fork.

    The child can see what is flushed. The parent goes on.
    """
    with commitlog.Producer(store.path) as producer:
        done = producer.send("t", b"x")
        done.wait("flushed", 60)
        flusher = int((store.path / "locks/flusher").read_text())
        os.kill(flusher, signal.SIGSTOP)
        try:
            receipt = producer.send("t", b"y")
            calls: list[Callable[[], object]] = [
                producer.flush,
                receipt.wait,
                lambda: receipt.add_callback(print),
                lambda: asyncio.run(_awaited(receipt)),
                receipt.done,
                done.done,
                lambda: done.wait().name,
            ]
            refused = [ForkedProducer.__name__] * 4
            assert _said_in_child(calls) == [*refused, "False", "True", "PUT_OK"]
            assert producer.statistics().flushed == done.end
        finally:
            os.kill(flusher, signal.SIGCONT)
        assert receipt.wait("flushed", 60).name == "PUT_OK"


def test_the_child_has_producers_of_its_own(store: commitlog.Store) -> None:
    """Beside its parent's, and the other way round."""
    with commitlog.Producer(store.path) as producer:
        producer.send("t", b"x").wait("flushed", 60)

        def send() -> str:
            with commitlog.Producer(store.path) as own:
                return f"lane {own.lane} {own.send('t', b'y').wait('flushed', 60).name}"

        assert _said_in_child([send]) == ["lane 1 PUT_OK"]
        producer.send("t", b"z")
        producer.flush(timeout=60)


def test_a_producer_that_forked_and_is_killed_frees_its_lane(tmp_path: Path) -> None:
    """Its child lives on, and holds nothing of it: the only lane has a new producer at once."""
    config = SMALL | {"store": {"segment_bytes": 1 << 16, "max_lanes": 1}, "producer": {"lane_wait_ms": 0}}
    with commitlog.Store.open(tmp_path / "store", config) as store:
        reading, writing = os.pipe()
        parent = os.fork()
        if parent == 0:
            try:
                producer = commitlog.Producer(store.path)  # kept: it would give its lane back
                producer.send("t", b"x")
                os.write(writing, b"%d\n" % (os.fork() or os.getpid()))
                signal.pause()
            finally:
                os._exit(1)
        said = b""
        while said.count(b"\n") < 2:  # the parent's, which names the child, and the child's own
            said += os.read(reading, 100)
        (child,) = {int(pid) for pid in said.split()}
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        try:
            with commitlog.Producer(store.path) as again:
                assert (again.lane, again.send("t", b"y").offset) == (0, 1)
        finally:
            os.kill(child, signal.SIGKILL)
            os.close(reading)
            os.close(writing)


def test_a_child_that_closes_the_store_writes_nowhere(tmp_path: Path, store: commitlog.Store) -> None:
    """The child leaves its copy of a `with` block, which closes the store.

    By then the number of the pipe names another file in the child.
    """
    with commitlog.Producer(store.path) as producer:
        producer.send("t", b"x").wait("flushed", 60)

        def close() -> bool:
            for _ in range(64):  # whatever numbers are free after the fork
                os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
            return store.close().drained

        assert _said_in_child([close]) == ["False"]
        assert (tmp_path / "own").read_bytes() == b""
        assert producer.send("t", b"y").wait("flushed", 60).name == "PUT_OK"


@pytest.mark.parametrize("forks", with_nightly([2], [12]))
def test_a_fork_during_the_first_send_of_another_thread(forks: int, store: commitlog.Store) -> None:
    """The child is refused. It once waited for a lock of the thread, which is not in the child."""
    program = [sys.executable, "-c", FORK_DURING_THE_FIRST_SEND, str(store.path)]
    assert [subprocess.run(program, check=False).returncode for _ in range(forks)] == [0] * forks


@pytest.fixture(scope="module")
def store_of_one_lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """A running store, for tests with topics of their own."""
    config = SMALL | {"store": {"segment_bytes": 1 << 16, "max_lanes": 1}, "producer": {"lane_wait_ms": 0}}
    with commitlog.Store.open(tmp_path_factory.mktemp("one") / "store", config) as opened:
        yield opened


CALLS = {
    "producer.close()": "None",
    "producer = None": "None",
    'producer.send(topic, b"z")': "ForkedProducer",
    'producer.send(topic, b"z", flag=1)': "ForkedProducer",
    'producer.send_batch(topic, [b"z"])': "ForkedProducer",
    "producer.last(topic)": "ForkedProducer",
    "producer.flush()": "ForkedProducer",
    "commitlog.Producer(path)": "NoFreeLane",
    "rows.append(n=3)": "ForkedProducer",
    "rows.flush()": "ForkedProducer",
    "rows.close()": "None",
    'log.info("z")': "None",
}
"""What the hook does, and what it is told."""
DAILY = ("producer.close()", 'producer.send(topic, b"z")', "rows.append(n=3)", "rows.close()")
SAMPLE = 'producer.send(topic, b"z")'


@pytest.mark.parametrize(
    ("call", "clears"),
    with_nightly(
        [*((call, True) for call in DAILY), (SAMPLE, False)],
        [
            *((call, True) for call in CALLS if call not in DAILY),
            *((call, False) for call in CALLS if call != SAMPLE),
        ],
    ),
)
def test_a_hook_that_comes_before_ours(call: str, clears: bool, store_of_one_lane: commitlog.Store) -> None:
    """A program's own hook in a forked child may use what the parent has, and harms nothing.

    The lane stays the parent's, the child is refused, and the parent's messages are all there. It
    is the same where the kernel does not clear a page in children.
    """
    store, topic = store_of_one_lane, re.sub(r"\W+", "-", f"{call} {clears}")
    store.create_topic(f"{topic}-rows", schema="n BIGINT")
    begin = "" if clears else UNWIPED
    program = [sys.executable, "-c", begin + FORK_WITH_AN_EARLIER_HOOK, str(store.path), call, topic]
    run = subprocess.run(program, capture_output=True, text=True, check=False)
    said = [f"child: {CALLS[call]}", "parent: held by itself"]
    assert (run.stdout.splitlines(), run.returncode) == (said, 0), run.stderr
    with commitlog.Reader(store.path, topic=topic) as reader:
        assert [message.value for message in reader] == [b"x", b"y"]
    if "rows." in call:
        assert commitlog.read_arrow(store.path, topic=f"{topic}-rows").read_all()["n"].to_pylist() == [1, 2]

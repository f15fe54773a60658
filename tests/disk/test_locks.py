"""Locks of lanes, stores and readers: each has one holder.

Nobody holds a lock that is of no use to it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import FileChannel
from commitlog.reading.named_readers import NamedReaders
from commitlog.record.record_layout import Buffer
from commitlog.shm.layout import STAGES
from tests import leaks
from tests.builders.hand_made import small_store
from tests.children import in_child
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.unwiped_page import UNWIPED
from tests.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(commitlog.__file__).parents[1]
LANES = 4
CONFIG: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": LANES},
    "allocator": {"lane_idle_ms": 0, "interval_ms": 10},
    "supervisor": {"hung_after_ms": 600_000},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    """A running store of few lanes.

    It gives back the memory of a lane as soon as nobody holds it.
    """
    with commitlog.Store.open(tmp_path / "store", CONFIG) as opened:
        yield opened


def lease_all(store: commitlog.Store) -> list[int]:
    """Takes every lane, as a later producer does, and releases them.

    Raises NoFreeLane if somebody holds one.
    """
    producers = []
    try:
        for _ in range(LANES):
            producers.append(commitlog.Producer(store.path))
        return sorted(producer.lane for producer in producers)
    finally:
        for producer in producers:
            producer.close()


def bodies(path: Path) -> Counter[bytes]:
    with commitlog.Reader(path) as reader:
        return Counter(message.value for message in reader)


# ---- descriptors -------------------------------------------------------------------------------


@pytest.mark.nightly
def test_children_forked_by_another_thread_hold_no_lane(store: commitlog.Store) -> None:
    """Threads fork all the time while producers are made and closed.

    No child keeps a lane that its parent has released.
    """
    children: list[int] = []
    done = threading.Event()

    def fork() -> None:
        while not done.is_set() and len(children) < 30:
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=fork)
    thread.start()
    try:
        while thread.is_alive():
            commitlog.Producer(store.path).close()
        assert lease_all(store) == list(range(LANES))
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(switching)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


_ONE_STEP = ("__del__", "__exit__", "close", "open", "opened")
"""Functions that hand a descriptor over, or close it. Python lets no signal in where they have it
in a local variable only; a trace function could be there. A signal at the entry of `__exit__` or
`close` does leave the descriptor open; a `__del__` would mend that, and could close another's
descriptor of the same number."""


class _AtNewLine:
    """Does something once, at the first new line of the project's own files (not in `seen`)."""

    def __init__(self, seen: set[tuple[str, int]], act: Callable[[], object], *rooms: str) -> None:
        self._seen, self._act = seen, act
        self._rooms = tuple(str(ROOT / room) for room in rooms)
        self.at: tuple[str, int] | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if self.at or not code.co_filename.startswith(self._rooms) or code.co_name in _ONE_STEP:
            return None
        place = (code.co_filename, frame.f_lineno)
        if event == "line" and place not in self._seen:
            self._seen.add(place)
            self.at = place
            self._act()
        return self


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it comes into destructors, too
def test_an_interrupt_at_any_line_of_a_lease_leaves_nothing(store: commitlog.Store) -> None:
    """No descriptor, no locked lane, for every line between the call of `Producer` and its end."""
    commitlog.Producer(store.path).close()
    before, seen = set(leaks.descriptors()), set[tuple[str, int]]()
    while True:
        tracer = _AtNewLine(seen, _interrupt, "commitlog", "shm")
        sys.settrace(tracer)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                commitlog.Producer(store.path).close()
        finally:
            sys.settrace(None)
        # the thread that makes a socket has them for a moment more, and then only garbage has them
        left = leaks.left_in_the_end(lambda: sorted(map(str, set(leaks.descriptors()) - before)), PATIENCE_SECONDS)
        assert not left, f"open after line {tracer.at}"
        if tracer.at is None:
            break
    assert len(seen) > 100
    assert lease_all(store) == list(range(LANES))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_line_of_the_first_send_to_a_topic_leaves_nothing(tmp_path: Path) -> None:
    """It opens the consume queue to learn where the topic's offsets go on."""

    path = tmp_path / "store"

    def send(trace: _AtNewLine | None) -> None:
        with commitlog.Producer(path) as producer:
            sys.settrace(trace)
            try:
                with contextlib.suppress(KeyboardInterrupt):
                    producer.send("t", b"")
            finally:
                sys.settrace(None)

    with commitlog.Store.open(path, CONFIG):
        send(None)
    with commitlog.Store.open(path, CONFIG):  # now only the queue tells, as all of the log is indexed
        before, seen = set(leaks.descriptors()), set[tuple[str, int]]()
        while True:
            tracer = _AtNewLine(seen, _interrupt, "commitlog/disk", "commitlog/reading")
            send(tracer)
            # a thread may have had them until now, and then only garbage has them
            left = leaks.left_in_the_end(lambda: sorted(map(str, set(leaks.descriptors()) - before)), PATIENCE_SECONDS)
            assert not left, f"open after line {tracer.at}"
            if tracer.at is None:
                break
        assert len(seen) > 20


class _Interrupted(Exception):
    """What the handler of a signal raises."""


def _storm(store: commitlog.Store, turns: int) -> str:
    """Makes producers while signals interrupt them, at any moment that a timer of the kernel hits.

    Returns which lanes are free afterwards, and which locks are still open.
    """
    hits, armed = 0, False

    def handler(_signal: int, _frame: FrameType | None) -> None:
        if armed:
            raise _Interrupted

    signal.signal(signal.SIGALRM, handler)
    sys.unraisablehook = lambda _what: None  # it hits destructors, too
    for turn in range(turns):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + turn % 100 * 0.00003)
            commitlog.Producer(store.path)
        except _Interrupted:
            hits += 1
        armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.collect()
    locks = [name for name in leaks.descriptors().values() if name.endswith("/lock")]
    return f"{lease_all(store)} {locks} {hits > 0}"


@pytest.mark.parametrize("turns", with_nightly([100], [1000]))
def test_signals_during_leases_lock_no_lane(turns: int, store: commitlog.Store) -> None:
    """A handler that raises, again and again: all lanes can be had by the same process."""
    assert in_child(lambda: _storm(store, turns)) == "[0, 1, 2, 3] [] True"


@pytest.mark.nightly
def test_a_fork_in_the_middle_of_a_lease_makes_one_producer(store: commitlog.Store) -> None:
    """A signal handler forks and returns in both processes.

    The parent has the lane, and the child gets a named error.
    """
    seen, ours, forked = set[tuple[str, int]](), os.getpid(), 0
    while True:
        tracer = _AtNewLine(seen, os.fork, "commitlog/client/producer.py")
        reading, writing = os.pipe()
        made, said = None, ""
        sys.settrace(tracer)
        try:
            made = commitlog.Producer(store.path)
        except BaseException as error:
            said = "an error by name" if isinstance(error, errors.CommitLogError) else repr(error)
        finally:
            sys.settrace(None)
        if os.getpid() != ours:
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            heard = pipe.read().decode()
        assert made is not None, said
        made.close()
        if tracer.at is None:
            break
        os.wait()
        forked += heard == "an error by name"
        # before it has a lock, the child just makes a producer of its own
        assert heard in ("an error by name", ""), f"after {tracer.at}: {heard}"
    assert forked


def test_a_full_disk_while_leasing_costs_no_lane(store: commitlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of a lane in use can't be written, which is a named error each time.

    When the fault is healed, all lanes are there, marked as in use.
    """
    before = set(leaks.descriptors())
    write_once = FileChannel.write_once

    def full(self: FileChannel, fd: int, data: Buffer, offset: int) -> int:
        if "abort" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "no space")
        return write_once(self, fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(FileChannel, "write_once", full)
        for _ in range(2 * LANES):
            with pytest.raises(errors.DiskFull):
                commitlog.Producer(store.path)
    gc.collect()
    wait_until(lambda: set(leaks.descriptors()) <= before, "nothing stays open")  # a thread may read a file
    assert lease_all(store) == list(range(LANES))
    assert all((store.path / f"lanes/{n}/abort").exists() for n in range(LANES))


FORK_WITH_A_NAME = """
import sys
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.named_readers import NamedReaders
from tests.disk.test_locks import check_forked_child_holds_no_name

check_forked_child_holds_no_name(NamedReaders(StoreDirectory(sys.argv[1])))
"""


def test_a_forked_child_holds_nothing_where_no_page_is_cleared(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", UNWIPED + FORK_WITH_A_NAME, str(store.path)], check=True, cwd=root)


def test_a_readers_name_is_not_held_by_a_forked_child(tmp_path: Path) -> None:
    check_forked_child_holds_no_name(NamedReaders(small_store(tmp_path / "store").directory))


def check_forked_child_holds_no_name(readers: NamedReaders) -> None:
    """It lives on, and the name is free as soon as its parent has let go."""
    held = readers.hold("billing")
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        readers.let_go(held)
        readers.let_go(readers.hold("billing"))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# ---- removed under their holders ---------------------------------------------------------------


def test_a_removed_lock_file_gives_nobody_a_second_lessee(store: commitlog.Store, shm_root: Path) -> None:
    """The lane stays with its holder.

    Another producer gets another lane, the memory stays, and everything that both have sent is
    there.
    """
    first = commitlog.Producer(store.path)
    for number in range(50):
        first.send("t", b"first %d" % number)
    first.flush(timeout=60)
    (store.path / "lanes/0/lock").unlink()
    with commitlog.Producer(store.path) as second:
        assert (first.lane, second.lane) == (0, 1)
        rounds = store.statistics().stages[2].rounds
        wait_until(lambda: store.statistics().stages[2].rounds > rounds + 3, "the allocator to look for idle lanes")
        assert list(shm_root.glob("*/lane-0"))
        assert [lane.producer for lane in store.statistics().lanes] == [os.getpid()] * 2
        for number in range(50, 100):
            first.send("t", b"first %d" % number)
            second.send("t", b"second %d" % number)
        second.flush(timeout=60)
        first.flush(timeout=60)
    assert bodies(store.path) == Counter(
        [b"first %d" % n for n in range(100)] + [b"second %d" % n for n in range(50, 100)]
    )
    first.close()
    assert lease_all(store) == list(range(LANES))
    assert (store.path / "lanes/0/lock").read_bytes() == b"lock"


@pytest.mark.nightly
def test_a_stop_sees_who_holds_a_lane_without_its_lock_file(tmp_path: Path) -> None:
    """The lane is not closed under its holder: the pool stays for him."""
    store = commitlog.Store.open(tmp_path / "store", CONFIG)
    producer = commitlog.Producer(store.path)
    producer.send("t", b"x")
    (store.path / "lanes/0/lock").unlink()
    assert store.close().kept == (f"lane 0: producer {os.getpid()} still holds it",)
    producer.close()
    with commitlog.Store.open(tmp_path / "store", CONFIG):
        pass
    assert bodies(store.path) == {b"x": 1}


def test_a_store_without_its_lock_files_has_one_owner(store: commitlog.Store) -> None:
    """Another start is refused by name, its producers go on, and a new one finds it."""
    producer = store.producer()
    for name in ("", *STAGES):
        pid_of(store.path, name)
        (store.path / "locks" / name if name else store.path / "lock").unlink()
    at_once = {**CONFIG, "supervisor": {"start_wait_ms": 0}}
    said = in_child(lambda: commitlog.Store.open(store.path, at_once))
    assert said.startswith("StoreRunning")
    assert "is running already" in said
    assert producer.send("t", b"x").wait("flushed", 60).name == "PUT_OK"
    with commitlog.Producer(store.path) as other:
        assert other.send("t", b"y").wait("flushed", 60).name == "PUT_OK"
    assert store.statistics().running
    assert in_child(lambda: commitlog.Store.open(store.path, CONFIG)).startswith("StoreRunning")

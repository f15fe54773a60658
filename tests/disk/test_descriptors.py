"""A process has few file descriptors, or none of the first three.

The result is a named error or no difference, and never an abort.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import mmap
import os
import pickle
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import DISK
from tests.builders.hand_made import small_store
from tests.children import in_child
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONFIG: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH", "max_lanes": 3},
    "producer": {"sync_flush_timeout_ms": 60_000},
    "supervisor": {"hung_after_ms": 600_000},
}
FREE = range(28)


def leave(free: int) -> None:
    """From now on this process can open so many files more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    for fd in held[:free]:
        os.close(fd)


def _work(producer: commitlog.Producer, body: bytes) -> None:
    """Every way to wait."""
    answers: list[object] = []
    receipt = producer.send("t", body)
    receipt.add_callback(answers.append, "flushed", 60)
    producer.flush(timeout=60)
    wait_until(lambda: len(answers) == 1, "the callback")
    assert receipt.wait("flushed", 60).name == answers[0].name == "PUT_OK"  # type: ignore[attr-defined]


def test_any_number_of_free_descriptors_is_enough_or_an_error_by_name(tmp_path: Path) -> None:
    """For a producer that is made then: what it accepted is there once, and no lane is lost."""
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        said = []
        for free in FREE:

            def make(free: int = free) -> str:
                leave(free)
                try:
                    with commitlog.Producer(store.path) as producer:
                        _work(producer, b"%d" % free)
                except errors.NotEnoughDescriptors:
                    return "refused"
                return "works"

            said.append(in_child(make))
        assert set(said) == {"refused", "works"}
        assert said == sorted(said)
        producers = [commitlog.Producer(store.path) for _ in range(3)]
        for producer in producers:
            producer.close()
    with commitlog.Reader(store.path) as reader:
        found = Counter(message.value for message in reader)
    assert found == {b"%d" % free: 1 for free in FREE if said[free] == "works"}


@pytest.mark.nightly
def test_a_producer_does_without_more_descriptors(tmp_path: Path) -> None:
    """The descriptors run out after the producer was made.

    What is sent is accepted, flushed and reported as flushed, or refused by name before.
    """
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        accepted = []
        for free in FREE:

            def send(free: int = free) -> str:
                with commitlog.Producer(store.path) as producer:
                    producer.send("t", b"first %d" % free, wait=False)
                    leave(free)
                    _work(producer, b"%d" % free)
                    try:
                        producer.send(f"new{free}", b"x")
                    except errors.NotEnoughDescriptors:
                        return "refused"
                    return "works"

            said = in_child(send)
            assert said in ("works", "refused")
            accepted += [b"first %d" % free, b"%d" % free] + [b"x"] * (said == "works")
    with commitlog.Reader(store.path) as reader:
        assert Counter(message.value for message in reader) == Counter(accepted)


def test_a_machine_without_memory_for_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was accepted is no error; a new producer is one by name."""

    def refuse(_count: int) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        monkeypatch.setattr(os, "eventfd", refuse)
        _work(producer, b"x")
        with pytest.raises(errors.NotEnoughDescriptors):
            commitlog.Producer(store.path)


@pytest.mark.parametrize("code", with_nightly([errno.ENFILE], [errno.EMFILE, errno.ENOMEM, errno.EIO]))
def test_any_call_that_the_system_refuses_is_an_error_by_name(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a producer that is made, and of statistics: each open of a file, and each mapping."""
    calls = 0

    def refusing(call: Any, at: int) -> Any:
        def refuse(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(code, os.strerror(code))
            return call(*arguments, **more)

        return refuse

    def is_refused(module: ModuleType, name: str, at: int, action: Callable[[], object]) -> bool:
        nonlocal calls
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(module, name, refusing(getattr(module, name), at))
            with contextlib.suppress(errors.DiskError):
                action()
        return calls >= at

    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        for module, name in ((os, "open"), (mmap, "mmap")):
            for action in (lambda: commitlog.Producer(store.path).close(), store.statistics):
                refused = next(at for at in count(1) if not is_refused(module, name, at, action)) - 1
                assert refused >= 1


def test_a_start_without_a_process_is_an_error_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("commitlog.client.store.subprocess.Popen", refuse)
    with pytest.raises(errors.NotEnoughMemory, match="starting the store"):
        commitlog.Store.open(tmp_path / "store", CONFIG)


def test_a_named_reader_with_few_descriptors_is_an_error_by_name(tmp_path: Path) -> None:
    """It is not told that it may not write there."""
    store = small_store(tmp_path / "store", rows=3)

    def read(free: int) -> str:
        leave(free)
        with commitlog.Reader(store.path, name="mine") as reader:
            reader.commit(next(reader))
        return "works"

    said = [in_child(partial(read, free)).partition(":")[0] for free in range(8)]
    assert said == sorted(said)
    assert set(said) == {"NotEnoughDescriptors", "works"}


def test_a_start_with_few_descriptors_is_an_error_by_name(tmp_path: Path) -> None:
    """And nothing is begun."""

    def start() -> None:
        leave(3)
        commitlog.Store.open(tmp_path / "store", CONFIG)

    assert in_child(start).startswith("NotEnoughDescriptors")
    assert not (tmp_path / "store").exists()


STARTED_WITH_63 = """
import resource, sys, commitlog
resource.setrlimit(resource.RLIMIT_NOFILE, (63, 63))
try:
    commitlog.Store.open(sys.argv[1])
except commitlog.errors.NotEnoughDescriptors as error:
    print(error)
"""


def test_a_hard_limit_that_is_too_low_for_stages_is_an_error_by_name(tmp_path: Path) -> None:
    """ZeroMQ's own words came from a stage that had no descriptor left for a socket.

    A program of its own starts the store: a forked child may have too many files open for a start.
    """
    command = [sys.executable, "-P", "-c", STARTED_WITH_63, str(tmp_path / "store")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "63 files" in said
    assert not (tmp_path / "store").exists()


def test_a_limit_of_file_sizes_below_a_lanes_buffers_is_an_error_by_name(tmp_path: Path) -> None:
    """NoFreeLane said that no lane is held, and not what is wrong."""

    def make() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        commitlog.Producer(store.path)

    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        said = in_child(make)
        assert said.startswith("FileSizeLimited")
        assert "ulimit -f" in said


def test_a_limit_of_file_sizes_below_a_pool_leaves_nothing_of_it(tmp_path: Path, shm_root: Path) -> None:
    def start() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))
        commitlog.Store.open(tmp_path / "store", CONFIG)

    assert in_child(start).startswith("FileSizeLimited")
    assert not list(shm_root.iterdir())


_WITHOUT = """
import os, sys, commitlog
for fd in (0, 1, 2):
    os.close(fd)

def stray():
    for fd in (0, 1, 2):
        try:
            os.write(fd, b"stop " * 2000)
        except OSError:
            pass

with commitlog.Store.open(sys.argv[1], {"store": {"segment_bytes": 65536, "write_path": sys.argv[2]}}) as store:
    stray()
    with commitlog.Producer(store.path) as producer:
        for fd in (0, 1, 2):
            os.close(fd)
        for number in range(200):
            producer.send("t", b"%d " % number + bytes(1000))
            stray()
        producer.flush(timeout=60)
        stray()
    assert store.running
"""


def test_a_producer_that_was_closed_keeps_none(tmp_path: Path) -> None:
    """However many a store has made one after the other."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        store.producer().close()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            with store.producer() as producer:
                producer.send("t", b"x")
        del producer
        assert len(os.listdir("/proc/self/fd")) <= before + 1  # the last one's, until the next is made


@pytest.mark.parametrize("write_path", with_nightly(["pool"], ["direct"]))
def test_a_program_without_standard_descriptors_writes_into_nothing_of_ours(write_path: str, tmp_path: Path) -> None:
    """The program closes them before the start, and again later, and still writes to them.

    The supervisor receives nothing of it, and the records are whole.
    """
    path = tmp_path / "store"
    subprocess.run([sys.executable, "-c", _WITHOUT, str(path), write_path], check=True)
    with commitlog.Reader(path) as reader:
        assert [int(message.value.split()[0]) for message in reader] == list(range(200))


def test_a_file_of_ours_is_never_a_standard_stream(tmp_path: Path) -> None:
    """Whatever number is free."""
    (tmp_path / "file").touch()

    def numbers() -> list[int]:
        os.close(0)
        os.close(2)
        return [DISK.open(tmp_path / "file") for _ in range(2)]

    low, high = eval(in_child(numbers))
    assert 2 < low < high


def test_nothing_that_holds_a_lane_is_copied(tmp_path: Path) -> None:
    """An error by name, and the original goes on."""
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        producer.send("t", b"x")
        with commitlog.Reader(store.path) as reader:
            for original in (producer, store, reader):
                for way in (copy.copy, copy.deepcopy, pickle.dumps):
                    with pytest.raises(errors.NotCopied, match="can't be copied"):
                        way(original)
                with pytest.raises(TypeError):
                    copy.copy(original)
            assert len(list(reader)) == 1
        assert producer.send("t", b"y").wait("flushed", 60).name == "PUT_OK"

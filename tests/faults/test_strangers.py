"""Other users, links and foreign files: nobody else reads a store, or brings anything into it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq

import commitlog
from commitlog import errors
from commitlog.appending.wakeups import NoticePublisher, NoticeSubscriber, WakeupReceiver, WakeupSender
from commitlog.disk.store_directory import StoreDirectory
from commitlog.record.host import Host
from commitlog.record.record import RecordEncoder
from commitlog.shm.layout import STAGE_ROW_WORDS
from tests.another_user import NOBODY, as_nobody, as_root, may_be_another_user
from tests.builders.hand_made import small_store
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}}


def _open_all(paths: list[Path]) -> str:
    """The paths that could be opened, listed or entered."""
    opened = []
    for path in paths:
        try:
            os.listdir(path) if path.suffix == "" and path.is_dir() else os.close(os.open(path, os.O_RDONLY))
            opened.append(str(path))
        except OSError:
            continue
    return " ".join(opened)


def test_another_user_gets_at_nothing(shm_root: Path) -> None:
    """Pool, sockets, segments and logs, with every directory above them open, and umask 0.

    Modes say so; root can try it as well.
    """
    for directory in (shm_root.parent, shm_root):
        directory.chmod(0o755)
    umask = os.umask(0)
    try:
        with commitlog.Store.open(shm_root / "store", SMALL) as store:
            store.producer().send("t", b"secret").wait("flushed", timeout=60)
            segments = store.path / "lanes" / "0" / "commitlog"
            wait_until(lambda: len(list(segments.iterdir())) == 3, "all segments that are made ahead")
            everything = list(shm_root.rglob("*"))
            assert len(everything) > 25
            if may_be_another_user:
                assert as_nobody(lambda: _open_all([shm_root])) == str(shm_root)  # this user can come this far
                assert as_nobody(lambda: _open_all(everything)) == ""
            for path in everything:
                mode = path.lstat().st_mode
                allowed = 0o700 if stat.S_ISDIR(mode) else 0o600
                assert stat.S_IMODE(mode) & ~allowed == 0, f"{path} has mode {mode:o}"
    finally:
        os.umask(umask)
        shm_root.parent.chmod(0o700)
    for path in sorted((shm_root / "store").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (shm_root / "store").rmdir()


@as_root
def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    """Also an empty directory, and also for root: its owner could put links into it."""
    small_store(tmp_path / "store")
    (tmp_path / "empty").mkdir()
    for name in ("store", "empty"):
        os.chown(tmp_path / name, NOBODY, NOBODY)
        before = sorted((tmp_path / name).rglob("*"))
        with pytest.raises(errors.StoreRefused, match="belongs to user 65534"):
            commitlog.Store.open(tmp_path / name, SMALL)
        assert sorted((tmp_path / name).rglob("*")) == before


def _killed_with_unflushed(path: Path) -> None:
    """A store whose processes were killed while a message was only in its pool."""
    store = commitlog.Store.open(path, SMALL)
    producer = store.producer()
    os.kill(pid_of(path, "committer"), signal.SIGSTOP)
    producer.send("t", b"only in the pool")
    kill_store(store)
    producer.close()


@pytest.mark.parametrize(
    "how", with_nightly(["open to others"], ["a link", "a foreign directory", "a foreign control file"])
)
def test_a_pool_that_somebody_could_have_made_is_refused(how: str, tmp_path: Path, shm_root: Path) -> None:
    """By name, and without touching it. When it is right again it is adopted, with nothing lost."""
    if "foreign" in how and not may_be_another_user:
        pytest.skip("only root can make something foreign")
    path = tmp_path / "store"
    _killed_with_unflushed(path)
    (pool,) = shm_root.iterdir()
    aside = shm_root / "aside"
    if how == "a link":
        pool.rename(aside)
        pool.symlink_to(aside)
    elif how == "open to others":
        pool.chmod(0o750)
    else:
        os.chown(pool if how == "a foreign directory" else pool / "control", NOBODY, NOBODY)
    with pytest.raises(errors.UnsafePath, match="pool"):
        commitlog.Store.open(path, SMALL)
    if how == "a link":
        pool.unlink()
        aside.rename(pool)
    pool.chmod(0o700)
    os.chown(pool, os.geteuid(), os.getegid())
    os.chown(pool / "control", os.geteuid(), os.getegid())
    commitlog.Store.open(path, SMALL).close()
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"only in the pool"]


@pytest.mark.parametrize("lane", with_nightly(["leased"], ["given back", "not leased yet"]))
def test_what_rocketmq_appended_to_a_killed_store_is_not_written_over(
    lane: str, tmp_path: Path, shm_root: Path
) -> None:
    """All was flushed, so the pool agrees with the files up to its end.

    The start is refused all the same. Without the pool it takes in what is there.
    """
    path = tmp_path / "store"
    store = commitlog.Store.open(path, {**SMALL, "allocator": {"lane_idle_ms": 0 if lane == "given back" else 60_000}})
    with store.producer() as producer:
        end = 2 * [producer.send("t", b"ours") for _ in range(2)][1].physical_offset
        producer.flush(timeout=60)
    if lane == "not leased yet":
        store.close()
        store = commitlog.Store.open(path)
    elif lane == "given back":
        wait_until(lambda: not list(shm_root.glob("*/lane-0")), "the lane's memory to be given back")
    kill_store(store)
    host = Host(b"\x7f\0\0\1", 10911)
    record = RecordEncoder(0, host, host).encode(b"t", b"theirs", b"", 2, end, 1, 2_000_000_000_000)
    with StoreDirectory(path).lane_directory(0).segment_path(0).open("r+b") as file:
        file.seek(end)
        file.write(record)
    with pytest.raises(errors.PoolNotAdopted, match=f"behind offset {end}: something else wrote to it"):
        commitlog.Store.open(path)
    (pool,) = shm_root.iterdir()
    shutil.rmtree(pool)
    with commitlog.Store.open(path) as store, store.producer() as producer:
        assert producer.send("t", b"ours again").offset == 3
        producer.flush(timeout=60)
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"ours", b"ours", b"theirs", b"ours again"]


def test_a_socket_that_is_none_of_ours_is_refused(tmp_path: Path, shm_root: Path) -> None:
    """A link, a plain file, or a foreign socket in its place is neither replaced nor bound over."""
    with zmq.Context() as context:
        (shm_root / "target").write_bytes(b"mine")
        (shm_root / "committer.ipc").symlink_to(shm_root / "target")
        (shm_root / "notices.ipc").write_bytes(b"mine")
        with pytest.raises(errors.UnsafePath, match=r"committer\.ipc"):
            WakeupReceiver(context, shm_root, "committer")
        with pytest.raises(errors.UnsafePath, match=r"notices\.ipc"):
            NoticePublisher(context, shm_root)
        if may_be_another_user:
            WakeupReceiver(context, shm_root, "flusher").close()
            with context.socket(zmq.PULL) as socket:
                socket.bind(f"ipc://{shm_root}/foreign.ipc")
                os.chown(shm_root / "foreign.ipc", NOBODY, NOBODY)
                with pytest.raises(errors.UnsafePath, match=r"foreign\.ipc"):
                    WakeupReceiver(context, shm_root, "foreign")
        with pytest.raises(errors.UnsafePath, match="too long"):
            WakeupReceiver(context, shm_root / ("x" * 100), "committer")
        assert (shm_root / "target").read_bytes() == (shm_root / "notices.ipc").read_bytes() == b"mine"
    for path in shm_root.iterdir():
        path.unlink()


def test_every_socket_is_limited(shm_root: Path) -> None:
    """What it takes in, what it keeps for others, and how long it outlives its process.

    One function makes all sockets.
    """
    row = memoryview(bytearray(STAGE_ROW_WORDS * 8)).cast("Q")
    with zmq.Context() as context, contextlib.ExitStack() as stack:
        receiver = WakeupReceiver(context, shm_root, "committer")
        publisher = NoticePublisher(context, shm_root)
        made: list[Any] = [receiver, publisher, WakeupSender(context, shm_root, "committer", row)]
        made.append(NoticeSubscriber(context, shm_root, 0))
        for end in made:
            stack.callback(end.close)
            socket = getattr(end, "socket", None) or end._socket
            assert 0 < socket.getsockopt(zmq.MAXMSGSIZE) <= 64
            assert socket.getsockopt(zmq.LINGER) == 0
            assert 0 < socket.getsockopt(zmq.SNDHWM) <= 64
            assert 0 < socket.getsockopt(zmq.RCVHWM) <= 64
    for path in shm_root.iterdir():
        path.unlink()


def test_nothing_is_unpickled_from_outside_and_sockets_have_one_maker() -> None:
    """No module of ours loads pickle or marshal, and only wakeups.py makes ZeroMQ sockets."""
    root = Path(__file__).parents[2]
    files = [file for room in ("shm", "commitlog", "stages") for file in (root / room).rglob("*.py")]
    assert len(files) > 300
    for file in files:
        text = file.read_text()
        assert not re.search(r"^\s*(import|from) (pickle|cloudpickle|marshal|shelve|dill)\b", text, re.MULTILINE), file
        assert file.name == "wakeups.py" or not re.search(r"context\.socket\(|zmq\.Socket\(", text), file


def test_names_play_no_tricks_in_logs(tmp_path: Path) -> None:
    """A store's path forges a line and paints the terminal.

    In logs it is on lines of its own, written out; bodies are nowhere.
    """
    path = tmp_path / "a\n2026-01-01 00:00:00,000 ERROR forged\x1b[31m"
    config = {**SMALL, "retention": {"max_bytes": 4 << 16, "interval_ms": 10}, "flusher": {"positions_interval_ms": 10}}
    with commitlog.Store.open(path, config) as store, store.producer() as producer:
        for _ in range(400):
            producer.send("t", b"a secret body " * 70)
        producer.flush(timeout=60)
        log = path / "logs/allocator.log"
        wait_until(lambda: "is deleted for the store's size" in log.read_text(), "retention to say something")
    written = "".join(file.read_text() for file in (path / "logs").iterdir())
    assert "a\\n2026-01-01 00:00:00,000 ERROR forged\\x1b[31m" in written
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:", line) for line in written.splitlines())
    assert all(character.isprintable() for line in written.splitlines() for character in line)
    assert "secret" not in written
    absent = path / "absent"
    said = run("cat", absent).stderr.decode()
    assert said.count("\n") == 1
    assert said[:-1].isprintable()


def test_a_lane_whose_segment_was_removed_is_refused_by_name(tmp_path: Path) -> None:
    """A new lessee walks what is not indexed yet, here into the second segment.

    With the file back it goes on.
    """
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        dispatcher = pid_of(store.path, "dispatcher")
        os.kill(dispatcher, signal.SIGSTOP)
        try:
            with store.producer() as producer:
                for _ in range(6):
                    producer.send("t", bytes(14_000))
                producer.flush(timeout=60)
            segment = store.path / "lanes/0/commitlog" / f"{0:020}"
            segment.rename(tmp_path / "removed")
            with pytest.raises(errors.DiskError, match="reading the end of lane 0"):
                commitlog.Producer(store.path)
            (tmp_path / "removed").rename(segment)
            assert store.producer().send("t", b"y").offset == 6
        finally:
            os.kill(dispatcher, signal.SIGCONT)

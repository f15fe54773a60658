"""Other users, links and foreign files: nothing of a store can be read by them, and nothing of theirs is used."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

import commitlog
from commitlog import errors
from commitlog.wire import NoticePublisher, WakeupReceiver
from shm.layout import STAGES
from tests.crash.scene import pid_of

SMALL = {"store": {"segment_bytes": 1 << 16}}
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")


def as_nobody(action: Callable[[], str]) -> str:
    """What the action says in a child that is another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it died"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = action()
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    said = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return said


def _open_all(paths: list[Path]) -> str:
    """Those that could be opened, listed or entered."""
    opened = []
    for path in paths:
        try:
            os.listdir(path) if path.suffix == "" and path.is_dir() else os.close(os.open(path, os.O_RDONLY))
            opened.append(str(path))
        except OSError:
            continue
    return " ".join(opened)


@as_root
def test_another_user_gets_at_nothing(shm_root: Path) -> None:
    """Pool, sockets, segments, logs: with every directory above them open, and a umask that takes nothing away."""
    for directory in (shm_root.parent, shm_root):
        directory.chmod(0o755)
    umask = os.umask(0)
    try:
        with commitlog.Store.open(shm_root / "store", SMALL) as store:
            store.producer().send("t", b"secret").wait("flushed", timeout=10)
            everything = list(shm_root.rglob("*"))
            assert len(everything) > 25
            assert as_nobody(lambda: _open_all([shm_root])) == str(shm_root)  # it can come so far
            assert as_nobody(lambda: _open_all(everything)) == ""
            for path in everything:
                mode = path.lstat().st_mode
                allowed = 0o700 if stat.S_ISDIR(mode) else 0o777 if stat.S_ISSOCK(mode) else 0o600
                assert stat.S_IMODE(mode) & ~allowed == 0, f"{path} has mode {mode:o}"
    finally:
        os.umask(umask)
        shm_root.parent.chmod(0o700)
    for path in sorted((shm_root / "store").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (shm_root / "store").rmdir()


@as_root
def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    """Also an empty directory, also for root: its owner could put links into it."""
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    (tmp_path / "empty").mkdir()
    for name in ("store", "empty"):
        os.chown(tmp_path / name, NOBODY, NOBODY)
        before = sorted((tmp_path / name).rglob("*"))
        with pytest.raises(errors.StoreRefused, match="belongs to user 65534"):
            commitlog.Store.open(tmp_path / name, SMALL)
        assert sorted((tmp_path / name).rglob("*")) == before


def _killed_with_unflushed(path: Path) -> None:
    """A store of which everything was killed while a message was in its pool only."""
    store = commitlog.Store.open(path, SMALL)
    producer = store.producer()
    os.kill(pid_of(path, "committer"), signal.SIGSTOP)
    producer.send("t", b"only in the pool")
    for name in ("", *STAGES):
        os.kill(pid_of(path, name), signal.SIGKILL)
    producer.close()
    with pytest.raises(errors.StageFailed):
        store.close()


@pytest.mark.parametrize("how", ["a link", "a foreign directory", "open to others", "a foreign control file"])
def test_a_pool_that_somebody_could_have_made_is_refused(how: str, tmp_path: Path, shm_root: Path) -> None:
    """By name, without touching it; as soon as it is right again it is adopted, nothing lost."""
    if "foreign" in how and os.geteuid():
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


def test_a_socket_that_is_none_of_ours_is_refused(tmp_path: Path, shm_root: Path) -> None:
    """A link, a plain file, a foreign socket in a socket's place: neither replaced nor bound over."""
    with zmq.Context() as context:
        (shm_root / "target").write_bytes(b"mine")
        (shm_root / "committer.ipc").symlink_to(shm_root / "target")
        (shm_root / "notices.ipc").write_bytes(b"mine")
        with pytest.raises(errors.UnsafePath, match=r"committer\.ipc"):
            WakeupReceiver(context, shm_root, "committer")
        with pytest.raises(errors.UnsafePath, match=r"notices\.ipc"):
            NoticePublisher(context, shm_root)
        if os.geteuid() == 0:
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

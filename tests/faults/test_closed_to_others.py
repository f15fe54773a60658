"""What a store makes belongs to its owner alone, whatever the umask.

What others put in its way is neither used nor changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.named_readers import NamedReaders
from commitlog.shm.layout import STAGES
from tests.another_user import NOBODY, as_nobody, as_root
from tests.children import in_child
from tests.faults.bench import Bench
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL: dict[str, Any] = {"store": {"segment_bytes": 1 << 16}}
SOCKETS = {f"{name}.ipc" for name in (*STAGES, "notices")}
FILES = [
    "lock",
    "store.json",
    "locks/committer",
    "logs/committer.log",
    "logs/supervisor.log",
    "readers/billing.json",
    "readers/billing.lock",
    "lanes/0/lock",
    "lanes/0/positions",
    "lanes/0/checkpoint",
    "lanes/0/abort",
    f"lanes/0/commitlog/{0:020}",
    f"lanes/0/consumequeue/t/0/{0:020}",
    "lanes/0/tmp/0",
    "lanes/0/quarantine/rebuild.json",
]


@contextlib.contextmanager
def everything_of_a_store(root: Path, umask: int) -> Iterator[list[Path]]:
    """All files of a running store: segments, logs, locks, a reader; and its pool, if any."""
    before = os.umask(umask)
    try:
        with commitlog.Store.open(root / "store", SMALL) as store:
            store.producer().send("t", b"secret").wait("flushed", timeout=60)
            readers = NamedReaders(StoreDirectory(store.path))
            held = readers.hold("billing")
            readers.channel.replace_file(store.path / "readers" / "billing.json", b"{}")
            try:
                wait_until(lambda: (store.path / "lanes/0/consumequeue/t/0").is_dir(), "the consume queue")
                wait_until(lambda: len(list((store.path / "lanes/0/commitlog").iterdir())) == 3, "segments made ahead")
                yield sorted(root.rglob("*"))
            finally:
                readers.let_go(held)
    finally:
        os.umask(before)


@pytest.mark.parametrize("umask", with_nightly([0o000], [0o022, 0o077]))
def test_modes_are_the_same_under_every_umask(umask: int, shm_root: Path, tmp_path: Path) -> None:
    """Directories have 0700 and everything else 0600, in the store and in its memory."""
    with everything_of_a_store(tmp_path, umask) as of_store:
        of_pool = sorted(shm_root.rglob("*"))
        assert {path.name for path in of_pool} >= {"control", "lane-0", *SOCKETS}
        assert len(of_store) > 20
        for path in (*of_store, *of_pool):
            mode = path.lstat().st_mode
            assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), f"{path} has mode {mode:o}"


def _in_turn(paths: list[Path], attempt: Callable[[Path], object]) -> str:
    """The paths at which an attempt was not refused."""
    done = []
    for path in paths:
        with contextlib.suppress(PermissionError):
            attempt(path)
            done.append(str(path))
    return " ".join(done)


def _write(path: Path) -> None:
    os.close(os.open(path / "mine", os.O_WRONLY | os.O_CREAT) if path.is_dir() else os.open(path, os.O_WRONLY))


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(str(path))


ATTEMPTS: dict[str, Callable[[Path], object]] = {
    "write": _write,
    "unlink": lambda path: path.rmdir() if path.is_dir() else path.unlink(),
    "rename": lambda path: path.rename(path.with_name("stolen")),
    "link": lambda path: os.link(path, path.with_name("link")),
    "change the mode of": lambda path: path.chmod(0o777),
}


@as_root
def test_another_user_can_change_nothing(shm_root: Path) -> None:
    """Even a user who can reach the directory that holds everything."""
    for directory in (shm_root.parent, shm_root):
        directory.chmod(0o755)
    try:
        with everything_of_a_store(shm_root, 0) as everything:
            for what, attempt in ATTEMPTS.items():
                done = as_nobody(lambda attempt=attempt: _in_turn(everything, attempt))  # type: ignore[misc]
                assert done == "", f"another user may {what} {done}"
    finally:
        shm_root.parent.chmod(0o700)
        _remove_store(shm_root / "store")


@as_root
def test_another_user_can_ring_and_hear_nobody(shm_root: Path) -> None:
    """Even with the pool's directory open: the sockets themselves are closed to other users."""
    for directory in (shm_root.parent, shm_root):
        directory.chmod(0o755)
    try:
        with everything_of_a_store(shm_root, 0) as everything:
            sockets = [path for path in everything if path.suffix == ".ipc"]
            assert {path.name for path in sockets} == SOCKETS
            assert as_nobody(lambda: _in_turn(sockets, _connect)) == ""
            pool = sockets[0].parent
            pool.chmod(0o755)
            assert as_nobody(lambda: _in_turn(sockets, _connect)) == ""
            regions = [pool / "control", pool / "lane-0"]
            assert as_nobody(lambda: _in_turn(regions, lambda path: os.close(os.open(path, os.O_RDONLY)))) == ""
            pool.chmod(0o700)
    finally:
        shm_root.parent.chmod(0o700)
        _remove_store(shm_root / "store")


def _remove_store(path: Path) -> None:
    for found in sorted(path.rglob("*"), reverse=True):
        found.rmdir() if found.is_dir() else found.unlink()
    path.rmdir()


@pytest.mark.parametrize("what", ["a directory open to all", "a link", "a file", pytest.param("his", marks=as_root)])
def test_a_pool_that_somebody_prepared_is_refused(
    what: str, tmp_path: Path, shm_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has guessed the name. What that user made stays as it is."""
    monkeypatch.setattr(os, "urandom", lambda count: b"\7" * count)
    prepared, target = shm_root / f"commitlog-{os.geteuid()}-{'07' * 6}", tmp_path / "target"
    if what == "a link":
        target.mkdir()
        prepared.symlink_to(target)
    elif what == "a file":
        prepared.write_bytes(b"his")
    else:
        prepared.mkdir()
        prepared.chmod(0o777)
        if what == "his":
            prepared.chmod(0o700)
            os.chown(prepared, NOBODY, NOBODY)
    before = prepared.lstat()
    with pytest.raises(errors.UnsafePath, match=r"the pool can.t be made: .* set COMMITLOG_SHM_DIR to"):
        Bench(tmp_path / "store", store={"segment_bytes": 1 << 16})
    assert (prepared.lstat().st_mode, prepared.lstat().st_uid) == (before.st_mode, before.st_uid)
    assert not target.exists() or not list(target.iterdir())
    prepared.rmdir() if stat.S_ISDIR(before.st_mode) else prepared.unlink()


_DAILY = [name for name in FILES[::3] if not name.startswith("logs/")]
"""One of each room; the logs of stages need processes, and tests/stages tries links of them."""
_MADE_ANEW = ["lock", "logs/supervisor.log", "lanes/0/abort", "lanes/0/tmp/0"]
"""Files that are made where they are missing: a link to nothing is tried daily for one."""


@pytest.mark.parametrize(
    ("name", "dangling"),
    with_nightly(
        [*((name, False) for name in _DAILY), *((name, True) for name in _MADE_ANEW[:1])],
        [
            *((name, False) for name in FILES if name not in _DAILY),
            *((name, True) for name in FILES if name not in _MADE_ANEW[:1]),
        ],
    ),
)
@pytest.mark.filterwarnings("ignore:.*left out:commitlog.errors.ReadingWarning")
def test_a_link_in_a_files_place_is_not_followed(name: str, dangling: bool, tmp_path: Path) -> None:
    """Start, send, read, stop: each refuses the link by name or passes it over.

    The link's target stays as it is. Without the link all is as before.
    """
    path, target = tmp_path / "store", tmp_path / "target"
    use = _use_processes if name.startswith("logs/") else _use
    assert in_child(lambda: use(path, b"first")) == "accepted"
    link, aside = path / name, tmp_path / "aside"
    link.parent.mkdir(exist_ok=True)
    existed = link.exists()
    if existed:
        link.rename(aside)
    if not dangling:
        target.write_bytes(aside.read_bytes() if existed else b"his")
    before = target.read_bytes() if target.exists() else None
    link.symlink_to(target)
    sent = [b"first"]
    if in_child(lambda: use(path, b"second")) == "accepted":
        sent.append(b"second")
    assert (target.read_bytes() if target.exists() else None) == before, f"{name} was followed"
    if link.is_symlink():
        link.unlink()
        if existed:
            aside.rename(link)
    assert in_child(lambda: use(path, b"third")) == "accepted"
    is_damage = "/commitlog/" in name  # a store without its segment
    with commitlog.Reader(path, ignore_corrupt=is_damage) as reader:
        found = [message.value for message in reader]
    assert found[-1] == b"third"
    if not is_damage:
        assert found == [*sent, b"third"]


def _use(path: Path, body: bytes) -> str:
    """A store on a bench, from start to stop; returns whether the message was accepted."""
    said = "refused"
    with contextlib.suppress(
        errors.CommitLogError, OSError
    ):  # errors that a supervisor or a stage reports, or ends with
        made = Bench(path, **SMALL)
        made.producer().send("t", body)
        said = "accepted"
        with contextlib.suppress(errors.CommitLogError):
            readers = NamedReaders(StoreDirectory(path))
            readers.let_go(readers.hold("billing"))
        with contextlib.suppress(AssertionError):  # not before the link is gone
            made.settle()
        made.stop()
    return said


def _use_processes(path: Path, body: bytes) -> str:
    with contextlib.suppress(errors.CommitLogError), commitlog.Store.open(path, SMALL) as store:
        store.producer().send("t", body)
        return "accepted"
    return "refused"

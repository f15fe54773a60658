"""Records, in their order, all calls of a store's processes that change its disk, for `power_cut`.

All calls go through `commitlog.disk.file_channel`, and the `os` of that module is replaced: no
channel is missed, in no process. A call and its entry are one step behind a lock of the journal
(except syncs), so the journal has the disk's order. A sync has two entries: it makes durable what
was done before it *began*, and only when it has *ended*.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from commitlog.disk import file_channel
from tests.crash.scene import is_running
from tests.waiting import wait_until

JOURNAL, STORE = "COMMITLOG_TEST_JOURNAL", "COMMITLOG_TEST_STORE"
_HEAD = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Entry:
    """`what` has been done; `data` are the bytes of a write.

    - create, mkdir, rmdir, unlink: `path`.
    - rename: `path`, `target`.
    - write, truncate, allocate: `file` (inode), `offset` or `length`.
    - begin, end: `sync`, and `file`, or `path` of a directory.

    Anything else is a note of the test itself.
    """

    what: str
    facts: dict[str, Any]
    data: bytes = b""


class Journal:
    """One file of entries, to which many processes append."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._threads = threading.RLock()

    def note(self, what: str, data: bytes | memoryview = b"", **facts: Any) -> None:
        """Appends an entry, in one write."""
        head = orjson.dumps({"what": what, **facts})
        entry = _HEAD.pack(len(head), len(data)) + head + bytes(data)
        assert os.write(self._fd, entry) == len(entry)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps all others out from the call to its entry."""
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def kill(self, pids: list[int]) -> None:
        """kill -9 while none of them is between a call and its entry; waits for their end."""
        with self.alone():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in pids:
                wait_until(lambda pid=pid: not is_running(pid), f"{pid} to be gone")  # type: ignore[misc]

    def entries(self) -> Iterator[Entry]:
        """All entries so far."""
        data, at = memoryview(self.file.read_bytes()), 0
        while at < len(data):
            head, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            facts = orjson.loads(data[at : at + head])
            yield Entry(facts.pop("what"), facts, bytes(data[at + head : at + head + size]))
            at += head + size

    def close(self) -> None:
        os.close(self._fd)


class RecordingOs:
    """An `os` that records its calls on files of a store."""

    def __init__(self, store: Path, journal: Journal) -> None:
        self._store, self.journal = store, journal
        self._files: dict[int, dict[str, Any]] = {}  # descriptor → what names it in the journal
        self._syncs = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _name(self, path: Any) -> str | None:
        """The path below the store; None for a path outside."""
        path = Path(path)
        return str(path.relative_to(self._store)) if path.is_relative_to(self._store) else None

    # ---- descriptors ----------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        name = self._name(path)
        if name is None:
            fd = os.open(path, flags, mode)
            self._files.pop(fd, None)
            return fd
        with self.journal.alone() if flags & os.O_CREAT else contextlib.nullcontext():
            is_new = flags & os.O_CREAT and not os.path.lexists(path)
            fd = os.open(path, flags, mode)
            if flags & os.O_DIRECTORY:
                self._files[fd] = {"path": name}
            else:
                self._files[fd] = {"file": os.fstat(fd).st_ino}
            if is_new:
                self.journal.note("create", path=name, **self._files[fd])
        return fd

    # A closed descriptor keeps its name until its number is used again: no close comes by here.

    # ---- bytes ----------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if fd not in self._files:
            return os.pwrite(fd, data, offset)
        with self.journal.alone():
            count = os.pwrite(fd, data, offset)
            self.journal.note("write", memoryview(data)[:count], offset=offset, **self._files[fd])
        return count

    def ftruncate(self, fd: int, length: int) -> None:
        self._sized("truncate", fd, length, lambda: os.ftruncate(fd, length))

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        self._sized("allocate", fd, offset + length, lambda: os.posix_fallocate(fd, offset, length))

    def _sized(self, what: str, fd: int, length: int, call: Any) -> None:
        if fd not in self._files:
            call()
            return
        with self.journal.alone():
            call()
            self.journal.note(what, length=length, **self._files[fd])

    # ---- durability -----------------------------------------------------------------------------

    def fdatasync(self, fd: int) -> None:
        self._synced(fd, os.fdatasync)

    def fsync(self, fd: int) -> None:
        self._synced(fd, os.fsync)

    def _synced(self, fd: int, call: Any) -> None:
        if fd not in self._files:
            call(fd)
            return
        facts = {"sync": f"{os.getpid()}-{next(self._syncs)}", **self._files[fd]}
        self.journal.note("begin", **facts)
        call(fd)
        self.journal.note("end", **facts)

    # ---- names ----------------------------------------------------------------------------------

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._named("mkdir", path, lambda: os.mkdir(path, mode))

    def rmdir(self, path: Any) -> None:
        self._named("rmdir", path, lambda: os.rmdir(path))

    def unlink(self, path: Any) -> None:
        self._named("unlink", path, lambda: os.unlink(path))

    def rename(self, source: Any, target: Any) -> None:
        self._named("rename", source, lambda: os.rename(source, target), target=self._name(target))

    def _named(self, what: str, path: Any, call: Any, **more: Any) -> None:
        name = self._name(path)
        if name is None:
            call()
            return
        with self.journal.alone():
            call()
            self.journal.note(what, path=name, **more)


def recording(store: Path, file: Path) -> RecordingOs:
    """The replacement of `commitlog.disk.file_channel.os`."""
    return RecordingOs(store, Journal(file))


def record_this_process() -> None:
    """Records this process from now on, where the environment asks for it (stage, supervisor)."""
    if JOURNAL in os.environ:
        vars(file_channel)["os"] = recording(Path(os.environ[STORE]), Path(os.environ[JOURNAL]))


def recorded(kind: Any) -> Any:
    """A patch for `tests.faults.stage`."""
    record_this_process()
    return kind

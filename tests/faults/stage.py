"""A stage process under test: `python -P -m tests.faults.stage STORE`.

The environment says which stage, and how it is patched.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import importlib
import os
from pathlib import Path
from typing import Any, Literal, cast

from commitlog.appending import wakeups
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import StageFailed
from commitlog.stages import allocator, committer, dispatcher, flusher
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.stage_process import main
from commitlog.system.clock import Clock
from tests.faults.channel import FaultyChannel
from tests.waiting import wait_until

STAGE, PATCH = "COMMITLOG_TEST_STAGE", "COMMITLOG_TEST_PATCH"
Kind = type[BaseStage]

KINDS: dict[str, Any] = {
    "committer": committer.Committer,
    "flusher": flusher.Flusher,
    "allocator": allocator.Allocator,
    "dispatcher": dispatcher.Dispatcher,
}


def with_faults(kind: Any) -> Kind:
    """The stage on a disk that fails on command."""

    class OnFaultyDisk(kind):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path, FaultyChannel(path, kind.name))

    return OnFaultyDisk


class FullDisk(FileChannel):
    """A disk that says it is full, and takes everything."""

    def space(self, path: str | Path) -> tuple[int, int]:
        return 1 << 40, 0


class KeepingDisk(FileChannel):
    """A disk that lets no segment go."""

    def unlink(self, path: str | Path) -> None:
        if Path(path).parent.name == "commitlog":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        super().unlink(path)


def on_a_keeping_disk(kind: Any) -> Kind:
    """The stage on a disk that lets no segment go."""

    class OnKeepingDisk(kind):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path, KeepingDisk())

    return OnKeepingDisk


def on_a_full_disk(kind: Any) -> Kind:
    """The stage on a disk that is too full for its retention."""

    class OnFullDisk(kind):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path, FullDisk())

    return OnFullDisk


def deaf_and_dumb(kind: Any) -> Kind:
    """The stage rings nobody and hears no bell: it has only shared memory and its own intervals."""

    class WithoutBells(kind):  # type: ignore[misc]
        def _poll(self, milliseconds: int) -> bool:
            with contextlib.suppress(KeyError):  # from the second call on
                self._poller.unregister(self._bell.fd)
            return bool(super()._poll(milliseconds))

    wakeups.WakeupSender.ring = lambda self: None  # type: ignore[method-assign]
    wakeups.NoticePublisher.publish = lambda self, lane, before, reached: None  # type: ignore[method-assign]
    return WithoutBells


def dead_at_birth(kind: Any) -> Kind:
    """A dispatcher that does not start."""

    class Dead(kind):  # type: ignore[misc]
        def on_start(self) -> None:
            raise StageFailed("it does not want to")

        def run(self) -> None:
            self.on_start()

    return Dead if kind.name == "dispatcher" else cast(Kind, kind)


def behind_an_orphan(kind: Any) -> Kind:
    """A flusher that comes for its lock as soon as somebody else has it.

    It leaves a mark when it is launched, and one when it has to wait for the lock.
    """
    if kind.name != "flusher":
        return cast(Kind, kind)

    class Late(kind):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path, clock=_Marking(mark(path, "waits")))

        def _take_lock(self) -> int:
            mark(self.directory.path, "launched").touch()
            lock = self.directory.stage_lock_file(self.name)
            wait_until(lambda: DISK.is_locked(lock), "the orphan to have the lock")
            return int(super()._take_lock())

    return Late


def short_of_threads(kind: Any) -> Kind:
    """A committer that gets no thread as long as the file `shortage` is there."""

    class Short(kind):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            if shortage(path).exists():
                _thread.start_new_thread = _refuse
            super().__init__(path)

    return Short if kind.name == "committer" else cast(Kind, kind)


def _refuse(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def shortage(store: Path) -> Path:
    """The file that says that there are no threads."""
    return store.with_name(f"{store.name}.short")


def mark(store: Path, what: Literal["launched", "waits"]) -> Path:
    """The file that this flusher makes."""
    return store.with_name(f"{store.name}.{what}")


class _Marking(Clock):
    """The system's clock; makes a file when somebody sleeps."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def sleep(self, seconds: float) -> None:
        self._file.touch()
        super().sleep(seconds)


if __name__ == "__main__":
    module, function = os.environ[PATCH].split(":")
    main(getattr(importlib.import_module(module), function)(KINDS[os.environ[STAGE]]))

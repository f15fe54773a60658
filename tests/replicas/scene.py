"""A store that is replicated, and its replicas, over real TLS.

A replica runs in this process, or as `commitlog replica` in one of its own, which can be killed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import commitlog
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, ReplicaNotAvailable, ReplicationTimeout, StageFailed
from commitlog.reading.queue_bounds import QueueBounds
from commitlog.reading.view import LaneLimits, StoreView
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from commitlog.shm.layout import ALL_STAGES
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from tests.crash.scene import kill, pid_of
from tests.ports import free_port
from tests.serving.asking import Certificates
from tests.waiting import wait_until

SEGMENT_BYTES = 1 << 16


@dataclass
class Scene:
    """A primary and its replicas, below one directory."""

    path: Path
    certificates: Certificates
    templates: Path
    """Where `copied` keeps what it has made."""
    port: int = field(default_factory=free_port)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def primary(self) -> Path:
        return self.path / "primary"

    @property
    def copy(self) -> Path:
        return self.path / "copy"

    def config(self, port: int | None = None, **replication: Any) -> dict[str, Any]:
        """A configuration of a replicated store with small segments."""
        certificate, key = self.certificates.make("store")
        own = {
            "listen": f"127.0.0.1:{port or self.port}",
            "certificate": str(certificate),
            "key": str(key),
            "authority": str(self.certificates.authority),
            "heartbeat_ms": 200,
            **replication,
        }
        store = {"segment_bytes": SEGMENT_BYTES, "max_lanes": 4, **self.sections.get("store", {})}
        rest = {name: section for name, section in self.sections.items() if name != "store"}
        return {"store": store, "replication": own, **rest}

    def open(self, path: Path | None = None, **replication: Any) -> commitlog.Store:
        """A running store to which replicas can come now: its HAService listens a moment later."""
        store = commitlog.Store.open(path or self.primary, self.config(**replication))
        try:
            wait_until(lambda: _listens(store), "the port for replicas")
        except BaseException:
            store.close()
            raise
        return store

    def arguments(self, directory: Path | None = None, port: int | None = None, name: str = "copy") -> list[str]:
        """What `commitlog replica` and its like are given behind the directory."""
        certificate, key = self.certificates.make(f"of-{name}")
        return [
            str(directory or self.copy), "--from", f"localhost:{port or self.port}",
            "--certificate", str(certificate), "--key", str(key), "--authority", str(self.certificates.authority),
        ]  # fmt: skip

    def copied(self, fill: Callable[[commitlog.Store], object]) -> None:
        """Makes a primary that has stopped, and a copy of all that `fill` sends to it.

        They run once for each `fill`. Every other scene gets copies of their files.
        """
        template = self.templates / f"{fill.__module__}.{fill.__qualname__}"
        if not template.exists():
            made = Scene(template.with_name(f"{template.name}.new"), self.certificates, self.templates)
            made.path.mkdir()
            with made.open() as store, made.follower():
                fill(store)
                await_copy(made)
            made.path.rename(template)
        for name in (self.primary.name, self.copy.name):
            shutil.copytree(template / name, self.path / name)

    @contextmanager
    def follower(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        name: str = "copy",
        clock: Clock = SYSTEM_CLOCK,
    ) -> Iterator[None]:
        """A replica in this process, which is ended at the end.

        A command takes half a second of a core to start.
        """
        certificate, key = self.certificates.make(f"of-{name}")
        credentials = Credentials(certificate, key, self.certificates.authority)
        kept = Replica(directory or self.copy, f"localhost:{port or self.port}", credentials, name, clock=clock)
        failures: list[BaseException] = []

        def keep() -> None:
            try:
                kept.run()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=keep)
        thread.start()
        try:
            yield
        finally:
            if not failures:
                kept.stop()
            thread.join()
        if failures:
            raise failures[0]

    @contextmanager
    def replica(self, directory: Path | None = None, *more: str, name: str = "copy") -> Iterator[ReplicaCommand]:
        """A running `commitlog replica`, which is ended at the end."""
        command = ReplicaCommand([*self.arguments(directory, name=name), "--name", name, *more], directory or self.copy)
        try:
            yield command
        finally:
            command.end()


class ReplicaCommand:
    """`commitlog replica` as a process."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self.directory = StoreDirectory(directory)
        self.output = directory.with_name(f"{directory.name}.output")
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "commitlog", "replica", *self._arguments], stdout=output, stderr=output
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ends it as a service manager does. Returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def said(self) -> str:
        return self.output.read_text()

    def ended(self) -> str:
        """Waits for its end by itself, and returns what it has said."""
        self.process.wait(60)
        return self.said()


def _listens(store: commitlog.Store) -> bool:
    """Whether the HAService has a port open, if the store has one."""
    ha_service = [stage.pid for stage in store.statistics().stages if stage.stage == "ha_service"]
    sockets = [each for pid in ha_service for each in psutil.Process(pid).net_connections("tcp")]
    return not ha_service or any(each.status == psutil.CONN_LISTEN for each in sockets)


def kill_all(store: commitlog.Store) -> None:
    """kill -9 of the supervisor and of all stages, as when a machine goes down."""
    stages = [name for name in ALL_STAGES if (store.path / "locks" / name).exists()]
    for name in ("", *stages):
        kill(pid_of(store.path, name))
    with pytest.raises(StageFailed):
        store.close()


def limits_of(path: Path) -> dict[int, LaneLimits]:
    """The positions of each lane now, lanes without a byte left out."""
    view = StoreView(path)
    try:
        return {lane: limits for lane in view.lanes() if (limits := view.limits(lane)).flushed}
    finally:
        view.close()


def flushed_of(path: Path) -> dict[int, int]:
    """How far each lane is flushed now."""
    return {lane: limits.flushed for lane, limits in limits_of(path).items()}


def await_copy(scene: Scene, copy: Path | None = None) -> None:
    """Waits until a copy says that it has all that the primary has flushed, and has indexed it."""
    directory = StoreDirectory(copy or scene.copy)

    def has_all() -> bool:
        if not directory.file.exists():
            return False
        mark = load_mark(directory)
        limits, wanted = limits_of(directory.path), limits_of(scene.primary)
        indexed = all(one.dispatched == one.flushed for one in (*limits.values(), *wanted.values()))
        is_equal = {lane: (one.first, one.flushed) for lane, one in limits.items()} == {
            lane: (one.first, one.flushed) for lane, one in wanted.items()
        }
        return mark is not None and mark.complete and is_equal and indexed

    wait_until(has_all, "the copy has everything")


def log_of(path: Path, first: Mapping[int, int] | None = None) -> dict[int, bytes]:
    """Lane → the bytes of its log, from `first` on (its own first offset by default) to its end."""
    view = StoreView(path)
    found = {}
    try:
        for lane in view.lanes():
            limits = view.limits(lane)
            files = sorted((path / "lanes" / str(lane) / "commitlog").glob("[0-9]*"))
            begin = limits.first if first is None else first[lane]
            data = b"".join(file.read_bytes() for file in files if int(file.name) >= begin)
            if limits.flushed:
                found[lane] = data[: limits.flushed - begin]
    finally:
        view.close()
    return found


def queues_of(path: Path) -> dict[tuple[int, str], tuple[int, int, bytes]]:
    """Lane and topic → first and end of its consume queue, and the entries between them."""
    view = StoreView(path)
    found = {}
    try:
        for lane in view.lanes():
            limits = view.limits(lane)
            directory = view.lane_directory(lane)
            for topic in sorted(file.name for file in directory.consumequeue.glob("*")):
                with ConsumeQueue(directory.queue_path(topic)) as queue:
                    first, end = QueueBounds(queue, limits.first, limits.dispatched).find()
                    found[lane, topic] = first, end, queue.entries(first, end - first).tobytes()
    finally:
        view.close()
    return found


def check_equal(scene: Scene, copy: Path | None = None) -> None:
    """Asserts that a copy has the log of the primary byte for byte, and equal consume queues.

    Where the copy still follows, its queues come a moment after its log.
    """
    place = copy or scene.copy
    assert log_of(place) == log_of(scene.primary)
    wait_until(lambda: queues_of(place) == queues_of(scene.primary), "equal consume queues")


def await_equal(scene: Scene) -> None:
    """Waits until the copy is as `check_equal` wants it, where it is mended while it follows.

    The positions on its disk are those of before for as long as it is recovered.
    """

    def is_equal() -> bool:
        try:
            return log_of(scene.copy) == log_of(scene.primary) and queues_of(scene.copy) == queues_of(scene.primary)
        except (CommitLogError, OSError):  # a file was cut or removed meanwhile
            return False

    wait_until(is_equal, "the copy is equal to the primary")


def await_replicated(receipt: commitlog.Receipt) -> None:
    """Waits also where the replica is out of sync for a moment."""

    def is_replicated() -> bool:
        try:
            receipt.wait("replicated", 1)
        except (ReplicaNotAvailable, ReplicationTimeout):
            return False
        return True

    wait_until(is_replicated, "it is replicated")

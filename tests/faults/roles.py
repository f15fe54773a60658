"""Faults of every call in every role, on a bench, for `test_every_call`.

Each fault strikes a few times and heals. In the end nothing that was accepted is missing or
doubled.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.errors import CommitLogError
from commitlog.inspecting.verify import verify_store
from commitlog.shm.layout import STAGES, Lane, Stage
from tests.children import in_child
from tests.crash.accounts import Place, check, read_store, retired_below
from tests.faults.bench import Bench
from tests.faults.channel import Call, FaultsDirectory, FaultyChannel, Rule

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "ENOMEM", "EACCES")
SHORT = "short"
"""Stands in an error's place for a write of a few bytes only."""
CALLS: tuple[Call, ...] = (
    "open",
    "pwrite",
    "fdatasync",
    "allocate",
    "truncate",
    "map_read",
    "rename",
    "unlink",
    "sync_directory",
)
MADE_BY: dict[str, set[Call]] = {
    "committer": {"open", "pwrite"},
    "flusher": {"open", "pwrite", "fdatasync"},
    "allocator": {"open", "allocate", "fdatasync", "rename", "unlink", "sync_directory"},
    "dispatcher": {"open", "pwrite", "fdatasync", "truncate", "map_read", "sync_directory"},
}
"""The calls of each stage's rounds: a fault of each has to strike."""
SEGMENTS_KEPT = 6
SETTINGS: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": 2},
    "flusher": {"positions_interval_ms": 10, "retry_ms": 1},
    "allocator": {"interval_ms": 10, "lane_idle_ms": 60_000},
    "retention": {
        "max_bytes": SEGMENTS_KEPT << 16,
        "interval_ms": 10,
        "disk_max_used_percent": 100,
        "disk_clean_forcibly_percent": 100,
        "disk_refuse_percent": 100,
    },
}


def rule_of(role: str, call: Call, error: str, times: int = 2) -> Rule:
    """A rule for anywhere in the store except its logs."""
    if error == SHORT:
        return Rule(call, where="/", stage=role, times=times, short=50)
    return Rule(call, where="/", stage=role, times=times, error=getattr(errno, error), keeps=True, refuses=True)


@contextlib.contextmanager
def own_disk(store: Path, role: str) -> Iterator[FaultsDirectory]:
    """Makes faults of the role strike the default disk of this process."""
    channel = FaultyChannel(store, role)
    names = (*CALLS, "close", "write_once")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            if name != "pwrite":  # write_once does it
                patch.setattr(DISK, name, getattr(channel, name))
        yield channel.faults
        channel.faults.clear()


class FaultySocket(zmq.Socket[bytes]):
    """A socket whose `send` and `bind` fail while `error` is set, that many times."""

    error, times, struck = 0, 0, 0

    @classmethod
    def fail(cls, error: str, times: int) -> None:
        cls.error, cls.times, cls.struck = getattr(errno, error), times, 0

    @classmethod
    def heal(cls) -> None:
        cls.times = 0

    def send(self, *arguments: Any, **more: Any) -> Any:
        self._strike()
        return super().send(*arguments, **more)

    def _strike(self) -> None:
        kind = type(self)
        if kind.struck < kind.times:
            FaultySocket.struck += 1
            raise zmq.ZMQError(kind.error)


@dataclass
class Matrix:
    """A bench with a producer that never fails; counts what a fault did.

    Attributes: `deaths`: stage and error → how often a round ended with it; `never`: faults that
    did not strike.
    """

    made: Bench
    noted: list[Place] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    never: list[str] = field(default_factory=list)
    tried: int = 0

    def __post_init__(self) -> None:
        self.producer = self.made.producer()

    def send(self, bodies: int = 30, topic: str = "t") -> None:
        """Sends more than a segment."""
        self.rounds(2)
        for _ in range(bodies):
            body = os.urandom(3000)
            self.note(self.producer.send(topic, body), body)
            self.rounds(1)

    def note(self, receipt: commitlog.Receipt, body: bytes) -> None:
        crc = zlib.crc32(body)
        self.noted.append((receipt.partition, receipt.topic, receipt.offset, receipt.physical_offset, crc))

    # ---- rounds ---------------------------------------------------------------------------------

    def rounds(self, count: int) -> None:
        """Each stage's round with its house-keeping, as in its process.

        A stage whose round ends with an error is started again.
        """
        for _ in range(count):
            for name in ("allocator", "flusher", "committer", "flusher", "dispatcher"):
                self._round(name)
            self.made.clock.step(0.05)

    def _round(self, name: str) -> None:
        stage = self.made.stages.get(name)
        if stage is None:
            self._start(name)
            return
        try:
            stage._round()
            stage.beat()
            stage.on_wait_end()
        except Exception as error:
            self.deaths[f"{name}: {type(error).__name__}: {error}"] += 1
            self.made.crash(name)

    def _start(self, name: str) -> None:
        try:
            self.made.start(name)
        except (OSError, CommitLogError):
            return  # its process would end and be started again
        except Exception as error:
            self.deaths[f"start of {name}: {type(error).__name__}: {error}"] += 1
            self.made.crash(name)

    def settles(self, what: str) -> None:
        """Turns until everything is flushed and indexed, and no stage complains any more."""

        def left() -> dict[str, int]:
            words = (Lane.COMMITTED, Lane.FLUSHED, Lane.DISPATCHED)
            wrote = self.made.lane(Lane.WROTE)
            faults = (Lane.COMMITTER_FAULT, Lane.FLUSHER_FAULT, Lane.ALLOCATOR_FAULT, Lane.DISPATCHER_FAULT)
            found = {f"word {word}": wrote - self.made.lane(word) for word in words}
            found |= {f"fault {word}": self.made.lane(word) for word in faults}
            return {name: value for name, value in found.items() if value}

        for _ in range(100):
            self.rounds(1)
            if not left():
                return
        raise AssertionError(f"{what}: not settled, {left()}")

    # ---- faults ---------------------------------------------------------------------------------

    def strike(self, role: str, call: Call, error: str) -> None:
        """A fault of a stage, while messages roll over, have new topics, and old segments go."""
        what = f"{role}, {call}, {error}"
        self.tried += 1
        self.made.faults.set(rule_of(role, call, error))
        self.send(topic=f"t{self.tried}")
        if not self.made.faults.hits():
            self.never.append(what)
        self.made.faults.clear()
        self.settles(what)

    def strike_sockets(self, error: str) -> None:
        """A fault of all sockets, while everybody sleeps and has to be rung."""
        self.tried += 1
        FaultySocket.fail(error, 6)
        for name in STAGES:
            self.made.control.stage_row(name)[Stage.SLEEP] |= 1
        self.made.control.row(0)[Lane.LISTENING] = 1
        self.send()
        if not FaultySocket.struck:
            self.never.append(f"send, {error}")
        FaultySocket.heal()
        self.settles(f"send, {error}")

    def starts_again(self, name: str, call: Call, error: str) -> None:
        """Starts a stage while a call fails.

        It reports the error and ends, or it goes on. The next one works.
        """
        self.tried += 1
        self.made.crash(name)
        self.made.faults.set(rule_of(name, call, error))
        said = in_child(lambda: self._begin(name))
        self.made.faults.clear()
        assert said == "None", f"{name}, {call}, {error}: {said}"
        self.made.start(name)
        self.send(3)
        self.settles(f"start of {name}, {call}, {error}")

    def _begin(self, name: str) -> None:
        """Runs, in a child, what may end a stage at its start; its process is restarted then."""
        with contextlib.suppress(OSError, CommitLogError):
            self.made.start(name)

    def account(self) -> None:
        """Stops properly, and checks every message."""
        self.producer.close()
        self.made.producers.clear()
        assert self.made.stop().drained
        path = self.made.path
        check(self.noted, read_store(path), 0, retired_below(path))
        report = verify_store(path)
        assert report.good, report


def tried(action: Callable[[], object]) -> str:
    """ "" when the action succeeded, else the name of an error of ours. Raises any other error."""
    try:
        action()
    except CommitLogError as error:
        return type(error).__name__
    return ""

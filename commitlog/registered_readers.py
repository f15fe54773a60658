"""Readers that the store knows by name, and how far each has come: `STORE/readers/<name>.json`.

    {"name": "billing", "store": "<store id>", "moved_ms": 1790000000000, "offsets": {"orders": {"0": 42, "1": 7}}}

An offset is the queue offset of the next message that the reader needs of a topic in a lane. A lane that a topic has no
offset for counts as 0: the reader has not seen anything of it yet. `"all_lanes": false` says that it reads only the lanes
that are named, `"pattern"` that topics which match are read from 0 when they appear. Retention keeps what a registered
reader needs, so one that is gone for good has to be removed.

Beside it lies `<name>.lock`, which whoever reads under the name holds locked: the kernel frees it when that process dies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.errors import ReaderError, ReaderInUse
from commitlog.store_directory import StoreDirectory
from commitlog.topic_index import TopicIndex

PATIENCE_SECONDS = 5.0
"""How long a name that is held is waited for: a query that was stopped just now is still ending."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FILE_BYTES_MAX = 16 << 20

Lag = dict[str, dict[int, int]]
"""topic → lane → messages that are there and not read."""


@dataclass(frozen=True)
class RegisteredReader:
    """Where a reader is. `offsets`: topic → lane → next queue offset; `moved_ms`: wall time of its last progress."""

    name: str
    store_id: str
    offsets: Mapping[str, Mapping[int, int]]
    moved_ms: int
    pattern: str | None = None
    """It reads topics that match as well (`re`, full match), from their first message."""
    all_lanes: bool = True
    """Whether it reads lanes that have no offset, from their first message."""

    def offset(self, topic: str, lane: int) -> int | None:
        """The next queue offset it needs; None where it does not read the topic in that lane."""
        lanes = self.offsets.get(topic)
        if lanes is None:
            return 0 if self.pattern is not None and re.fullmatch(self.pattern, topic) else None
        return lanes.get(lane, 0 if self.all_lanes else None)

    def lag(self, index: TopicIndex) -> Lag:
        """How many messages are there that it has not read; what retention took is none of them."""
        found: Lag = {}
        for topic in index.topics():
            for lane, queue in sorted(index.ranges(topic).items()):
                offset = self.offset(topic, lane)
                if offset is not None:
                    found.setdefault(topic, {})[lane] = max(queue.end - max(offset, queue.first), 0)
        return found


class RegisteredReaders:
    """The readers of one store."""

    def __init__(self, directory: StoreDirectory, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory, self.channel, self.clock = directory, directory.channel, clock

    def names(self) -> list[str]:
        """Names of all registered readers, sorted."""
        files = self.channel.list(self.directory.readers_directory)
        return sorted(name for file in files if (name := file.removesuffix(".json")) != file and _NAME.fullmatch(name))

    def load(self, name: str) -> RegisteredReader:
        """Raises ReaderError for a file that says no reader's position, FileNotFoundError."""
        path = self._path(name, "json")
        data = self.channel.read_file(path, _FILE_BYTES_MAX)
        try:
            return _from_json(name, orjson.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, re.error) as error:
            raise ReaderError(
                f"{path}: not the position of a reader ({error!r}); remove the file if that reader is gone"
            ) from error

    def save(self, reader: RegisteredReader) -> None:
        """Registers a reader or moves it, durably: whoever looks sees the old position or the new. Raises OSError."""
        self.channel.create_directory(self.directory.readers_directory, below=self.directory.path)
        self.channel.replace_file(self._path(reader.name, "json"), orjson.dumps(_to_json(reader)) + b"\n")

    def remove(self, name: str) -> None:
        """Forgets a reader: nothing is kept for it any more. Raises ReaderError where there is none, ReaderInUse."""
        path = self._path(name, "json")
        if name not in self.names():
            there = ", ".join(self.names())
            raise ReaderError(f"{self.directory.path}: no reader {name!r}; there are {there or 'none'}")
        held = self.hold(name)
        try:
            self.channel.unlink(path)
            self.channel.unlink(self._path(name, "lock"))
            self.channel.sync_directory(self.directory.readers_directory)
        finally:
            self.let_go(held)

    # ---- holding a name ------------------------------------------------------------------------------------------

    def hold(self, name: str) -> int:
        """Takes the name for this process and gives a descriptor: closing it, or dying, lets go.

        Raises ReaderInUse where another process holds it, ReaderError where the store may not be written.
        """
        path = self._path(name, "lock")
        deadline = self.clock.monotonic_ns() + int(PATIENCE_SECONDS * 1e9)
        while True:
            fd = self._open_lock(path)
            if self.channel.try_lock(fd) and self._is_at(fd, path):
                self.channel.truncate(fd, 0)
                self.channel.pwrite(fd, b"%d\n" % os.getpid(), 0)
                return fd
            self.channel.close(fd)
            if self.clock.monotonic_ns() >= deadline:
                raise ReaderInUse(
                    f"reader {name} is in use by process {self._holder(path)}: stop that query first, or give this one a "
                    "name of its own"
                )
            self.clock.sleep(0.02)

    def let_go(self, held: int) -> None:
        """Gives back what `hold` gave."""
        self.channel.close(held)

    def is_held(self, name: str) -> bool:
        """Whether a process reads under the name now."""
        return self.channel.is_locked(self._path(name, "lock"))

    def _open_lock(self, path: Path) -> int:
        try:
            self.channel.create_directory(path.parent, below=self.directory.path)
            return self.channel.open(path, write=True, create=True)
        except OSError as error:
            raise ReaderError(
                f"{path.parent}: {error.strerror}; the position of a registered reader is kept in the store: run as a user "
                "who may write there, or read without readerName"
            ) from error

    @staticmethod
    def _is_at(fd: int, path: Path) -> bool:
        """Whether the file that was opened still has its name: `remove` may have taken it in between."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            return False

    def _holder(self, path: Path) -> str:
        try:
            return self.channel.read_file(path, 32).decode("ascii", "replace").strip() or "?"
        except OSError:
            return "?"

    def _path(self, name: str, kind: str) -> Path:
        check_name(name)
        return self.directory.readers_directory / f"{name}.{kind}"


def check_name(name: str) -> None:
    """Raises ReaderError for what can't be the name of a reader."""
    if not _NAME.fullmatch(name):
        raise ReaderError(f"{name!r} is no reader's name: letters, digits, _ . and -, 100 at most, not . or - first")


def _to_json(reader: RegisteredReader) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": reader.name,
        "store": reader.store_id,
        "moved_ms": reader.moved_ms,
        "offsets": {
            topic: {str(lane): offset for lane, offset in sorted(lanes.items())}
            for topic, lanes in sorted(reader.offsets.items())
        },
    }
    if reader.pattern is not None:
        values["pattern"] = reader.pattern
    if not reader.all_lanes:
        values["all_lanes"] = False
    return values


def _from_json(name: str, values: dict[str, Any]) -> RegisteredReader:
    offsets = {
        topic: {int(lane): int(offset) for lane, offset in lanes.items()} for topic, lanes in values["offsets"].items()
    }
    if any(lane < 0 or offset < 0 for lanes in offsets.values() for lane, offset in lanes.items()):
        raise ValueError("an offset below 0")
    pattern = values.get("pattern")
    if pattern is not None:
        re.compile(pattern)
    return RegisteredReader(
        name, str(values["store"]), offsets, int(values["moved_ms"]), pattern, bool(values.get("all_lanes", True))
    )


# ---- for people ------------------------------------------------------------------------------------------------------

STANDS_STILL_MS = 86_400_000
"""A reader that is behind and has not moved for so long is warned of."""


@dataclass(frozen=True)
class ReaderState:
    """A registered reader as `commitlog stat` and `commitlog readers` show it."""

    name: str
    running: bool
    """Whether a query reads under the name now."""
    still_ms: int = 0
    """For how long it has not moved."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    lag: Lag | None = None
    warning: str = ""

    @property
    def behind(self) -> int:
        """Messages it has not read, over all topics and lanes."""
        return sum(sum(lanes.values()) for lanes in (self.lag or {}).values())


def reader_states(index: TopicIndex, clock: Clock = SYSTEM_CLOCK) -> list[ReaderState]:
    """All registered readers of the store that the index looks at, by name; damaged positions come as warnings."""
    view = index.view
    readers = RegisteredReaders(StoreDirectory(view.path), clock)
    found = []
    for name in readers.names():
        running = readers.is_held(name)
        try:
            reader = readers.load(name)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ReaderError) as error:
            found.append(
                ReaderState(name, running, warning=f"reader {name}: {error}; until then everything is kept for it")
            )
            continue
        still_ms = max(clock.wall_ms() - reader.moved_ms, 0)
        if reader.store_id != view.store_id:
            warning = f"reader {name}: belongs to another store, nothing is kept for it"
            found.append(ReaderState(name, running, still_ms, reader.offsets, {}, warning))
            continue
        state = ReaderState(name, running, still_ms, reader.offsets, reader.lag(index))
        if state.behind and still_ms >= STANDS_STILL_MS:
            warning = (
                f"reader {name} has not moved for {still_ms // 3_600_000:,} hours and keeps what it has not read: start its "
                f"query, or `commitlog readers {view.path} --remove {name}`"
            )
            state = ReaderState(name, running, still_ms, reader.offsets, state.lag, warning)
        found.append(state)
    return found

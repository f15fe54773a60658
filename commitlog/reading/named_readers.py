"""Readers that the store knows by name, and how far each has come: `STORE/readers/<name>.json`.

    {"name": "billing", "store": "<store id>", "moved_ms": 1790000000000,
     "boot": "<boot id>", "moved_boot_ms": 86400000,
     "offsets": {"orders": {"0": 42, "1": 7}}, "crc32": "9d0f1a2b"}

An offset is the queue offset of the next message that the reader needs of a topic in a lane. A lane
without an offset counts as 0: the reader has not seen anything of it yet. More fields, where they
are needed:

    "kind": "python"        a `Reader`, which goes on from here; without it a Spark query's
    "kind": "forward"       a forwarder's: Kafka has its position, and this follows behind it
    "all_topics": true      topics without offsets are read too, from 0
    "pattern": "or.*"       topics that match are read too, from 0 when they appear
    "passed_over": ["x"]    topics that were looked at and do not match
    "all_lanes": false      only lanes that have an offset are read
    "lanes": [0, 2]         only these lanes are read
    "members": [1, 3]       only lanes whose number modulo 3 is 1 are read
    "client": {"name": "billing", "topics": ["or*"]}    a server's client made it, with this token
    "host": "10.0.0.7"      the machine of the server's client that reads under the name

Retention keeps what a named reader needs, so a reader that is gone for good has to be removed.
Only its owner matches a pattern, because a regular expression may take for ever. All others assume
that a topic may match if it is neither among the offsets nor passed over. It is kept from its first
message on, until the owner has looked. (The file of an older version has no `passed_over`. It keeps
more than it needs until its query runs again.)

A file may hold nonsense, so it is checked. If a file can't be believed, everything is kept: that
costs space, and harms no other reader and no stage.

Beside it is `<name>.lock`, which the process that reads under the name holds locked until it dies.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.disk.locks import Lock, poll, present_holder_of, write_holder
from commitlog.disk.replica_mark import check_original
from commitlog.disk.store_directory import StoreDirectory, boot_id
from commitlog.errors import FAULT_BY_ERRNO, CommitLogError, OptionError, ReaderError, ReaderInUse, refusal
from commitlog.lines import for_shell
from commitlog.reading.lane_choice import ALL_LANES, LaneChoice
from commitlog.record.topic_names import check_topic
from commitlog.shm.layout import LANE_ROWS

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex  # what it needs takes long to import

PATIENCE_SECONDS = 5.0
"""How long to wait for a name in use: a reader that was just stopped may still be ending."""
SPARK, PYTHON, FORWARD = "spark", "python", "forward"
"""Kinds of readers."""
OFFSET_END = (1 << 63) // ENTRY_BYTES
"""Queue offsets are below this, because an entry's place is a signed number of 64 bits."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FILE_BYTES_MAX = 4 << 20
"""The largest file of a named reader. It has room for 300,000 queues."""
PATTERN_LENGTH_MAX = 10_000
_TIME_MS_END = 1 << 62
_FIELDS = (
    "name",
    "store",
    "moved_ms",
    "boot",
    "moved_boot_ms",
    "offsets",
    "kind",
    "all_topics",
    "pattern",
    "passed_over",
    "all_lanes",
    "lanes",
    "members",
    "client",
    "host",
)
_UNBELIEVABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    CommitLogError,
)
"""The errors that nonsense in a file raises."""

Lag = dict[str, dict[int, int]]
"""topic → lane → number of messages that are there and not read."""


@dataclass(frozen=True)
class Client:
    """The token of a server's client that made a reader: its name, and what it is for."""

    name: str
    topics: tuple[str, ...]

    def is_like(self, other: Client) -> bool:
        """Whether two tokens may use the same readers.

        A new token that takes the place of an old one has the same topics.
        """
        return self.name == other.name or set(self.topics) == set(other.topics)


@dataclass(frozen=True)
class NamedReader:
    """A named reader and its position.

    `offsets`: topic → lane → next queue offset; `moved_ms`: wall time of its last progress. Readers
    are equal wherever they are at the same place, whenever they came there.
    """

    name: str
    store_id: str
    offsets: Mapping[str, Mapping[int, int]]
    moved_ms: int = field(compare=False)
    pattern: str | None = None
    """A regular expression: the reader also reads matching topics, from their first message on.

    Only its owner does the matching.
    """
    all_lanes: bool = True
    """Whether it reads lanes that have no offset, from their first message."""
    passed_over: frozenset[str] = frozenset()
    """Topics that do not match the pattern, as its owner has found."""
    kind: str = SPARK
    all_topics: bool = False
    lanes: LaneChoice = ALL_LANES
    client: Client | None = None
    """The token whose client made the reader; None for a reader of this machine."""
    boot: str = field(default="", compare=False)
    """The boot of the machine on which it made its last progress; empty if that is not known."""
    moved_boot_ms: int = field(default=0, compare=False)
    """When it did, since that boot (CLOCK_BOOTTIME): the wall clock may be set."""
    host: str = ""
    """The machine of the server's client that reads under the name; empty for a process here."""

    def still_ms(self, clock: Clock) -> int:
        """For how long it has made no progress. After another boot only the wall clock tells."""
        is_this_boot = self.boot == boot_id()
        still = clock.boot_ns() // 1_000_000 - self.moved_boot_ms if is_this_boot else clock.wall_ms() - self.moved_ms
        return max(still, 0)

    def offset(self, topic: str, lane: int) -> int | None:
        """The next queue offset that the reader needs; None if it does not read this queue."""
        if lane not in self.lanes:
            return None
        known = self.offsets.get(topic)
        if known is not None:
            return known.get(lane, 0 if self.all_lanes else None)
        may_match = self.pattern is not None and topic not in self.passed_over
        return 0 if self.all_topics or may_match else None

    def lag(self, index: TopicIndex) -> Lag:
        """How many present messages the reader has not read. Deleted messages do not count."""
        found: Lag = {}
        for topic in index.topics():
            for lane, queue in sorted(index.ranges(topic).items()):
                offset = self.offset(topic, lane)
                if offset is not None:
                    found.setdefault(topic, {})[lane] = max(queue.end - max(offset, queue.first), 0)
        return found


class NamedReaders:
    """The readers of one store."""

    def __init__(self, directory: StoreDirectory, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory, self.channel, self.clock = directory, directory.channel, clock
        self._place = str(directory.readers_directory)

    def names(self) -> list[str]:
        """Names of all named readers, sorted."""
        files = self.channel.list(self.directory.readers_directory)
        return sorted(name for file in files if (name := file.removesuffix(".json")) != file and _NAME.fullmatch(name))

    def load(self, name: str) -> NamedReader:
        """The reader of a name. Raises FileNotFoundError, OSError, ReaderError (not a position)."""
        return self.parsed(name, self.channel.read_file(self._path(name, "json"), _FILE_BYTES_MAX + 1))

    def parsed(self, name: str, data: bytes) -> NamedReader:
        """Makes the reader from the content of its file. Raises ReaderError."""
        try:
            if len(data) > _FILE_BYTES_MAX:
                raise ValueError(f"more than {_FILE_BYTES_MAX:,} bytes")
            return _from_json(name, from_checked_json(data, _FIELDS))
        except _UNBELIEVABLE as error:
            raise ReaderError(
                f"{self._path(name, 'json')}: not the position of a reader ({repr(error)[:200]}); put it back; or remove "
                "the file if the reader is gone: one of that name then begins as a new one"
            ) from error

    @staticmethod
    def check(reader: NamedReader) -> None:
        """Raises ReaderError for a position that `load` would not accept from the file."""
        try:
            _from_json(reader.name, from_checked_json(to_checked_json(_to_json(reader)), _FIELDS))
        except _UNBELIEVABLE as error:
            raise ReaderError(f"reader {reader.name}: this is no position of a reader ({error!r:.200})") from None

    def stamp(self, name: str) -> tuple[int, int, int]:
        """A value that changes whenever the reader's file does. Raises OSError."""
        facts = os.lstat(f"{self._place}/{name}.json")  # a Path takes as long as the call
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def moved(self, reader: NamedReader) -> NamedReader:
        """The reader with progress that it makes now."""
        now_ms, boot_ms = self.clock.wall_ms(), self.clock.boot_ns() // 1_000_000
        return replace(reader, moved_ms=now_ms, boot=boot_id(), moved_boot_ms=boot_ms)

    def save(self, reader: NamedReader) -> None:
        """Registers a reader or moves it, durably. Others see the old position or the new.

        Raises OSError, and ReaderError for a reader of too many queues.
        """
        data = to_checked_json(_to_json(reader))
        if len(data) > _FILE_BYTES_MAX:
            raise ReaderError(
                f"reader {reader.name}: {len(data):,} bytes of offsets, and its file may have {_FILE_BYTES_MAX:,}: read "
                "fewer topics under one name"
            )
        self.channel.create_directory(self.directory.readers_directory, below=self.directory.path)
        self.channel.replace_file(self._path(reader.name, "json"), data)

    def remove(self, name: str) -> None:
        """Forgets a reader. Retention keeps nothing for it any more.

        Raises ReaderInUse, and ReaderError if there is no reader of this name.
        """
        path = self._path(name, "json")
        self.check_is_registered(name)
        held = self.hold(name)
        try:
            self.channel.unlink(path)
            self.channel.unlink(self._path(name, "lock"))
            self.channel.sync_directory(self.directory.readers_directory)
        except OSError as error:
            raise ReaderError(f"{path}: can't be removed ({error.strerror}): remove it by hand") from error
        finally:
            self.let_go(held)

    def check_is_registered(self, name: str) -> None:
        """Raises a ReaderError that lists the readers, if there is none of this name."""
        names = self.names()
        if name not in names:
            raise ReaderError(f"{self.directory.path}: no reader {name!r}; there are {', '.join(names) or 'none'}")

    # ---- holding a name -------------------------------------------------------------------------

    def hold(self, name: str) -> Lock:
        """Takes the name for this process, until the process closes the lock or dies.

        A forked child does not hold the name. Raises ReaderInUse if another process holds it, and
        ReaderError if this process may not write to the store. Raises StoreRefused for a store of
        another user, and for a replica or a backup: its readers are where those of its store are.
        """
        check_original(self.directory)
        path = self._path(name, "lock")
        until = self.clock.monotonic_ns() + int(PATIENCE_SECONDS * 1e9)
        lock = poll(lambda: self._try(name, path), until, self.clock)
        if lock is None:
            holder = present_holder_of(path, self.channel)
            raise ReaderInUse(
                f"reader {name} is in use by process {holder}: stop that reader first, or give this one a name of its own"
            )
        return lock

    def _remove_leftovers(self, name: str) -> None:
        """Removes files of the position whose writers were killed before the rename."""
        left = re.compile(rf"\.{re.escape(name)}\.json\.[0-9]+\.tmp")
        for file in self.channel.list(self.directory.readers_directory):
            if left.fullmatch(file):
                self.channel.unlink(self.directory.readers_directory / file)

    def let_go(self, held: Lock) -> None:
        """Gives back the name that `hold` took.

        It does nothing in a forked child, which holds no name.
        """
        held.close()

    def is_held(self, name: str) -> bool:
        """Whether a process reads under the name now."""
        return self.channel.is_locked(self._path(name, "lock"))

    def _try(self, name: str, path: Path) -> Lock | None:
        lock = Lock(self.channel)
        try:
            if self._take(lock, name, path):
                return lock
        except BaseException:  # a caller that keeps the error would keep the lock
            lock.close()
            raise
        lock.close()
        return None

    def _take(self, lock: Lock, name: str, path: Path) -> bool:
        try:
            self.channel.create_directory(path.parent, below=self.directory.path)
            if not lock.try_take(path):
                return False
            write_holder(lock.fd, self.channel)
            self._remove_leftovers(name)
            return True
        except OSError as error:
            raise self._refused(path, error) from error

    @staticmethod
    def _refused(path: Path, error: OSError) -> CommitLogError:
        if error.errno in FAULT_BY_ERRNO and error.errno != errno.ENOENT:
            return refusal(error, path, "taking the reader's name")
        return ReaderError(
            f"{path.parent}: {error.strerror}; the position of a named reader is kept in the store: run as a user "
            "who may write there, or read without a name (readerName)"
        )

    def _path(self, name: str, kind: str) -> Path:
        check_name(name)
        return self.directory.readers_directory / f"{name}.{kind}"


def check_name(name: str) -> None:
    """Raises OptionError if the text can't be the name of a reader."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"{name!r} is not a reader's name: letters, digits, _ . and -, 100 at most, not . or - first")


def _to_json(reader: NamedReader) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": reader.name,
        "store": reader.store_id,
        "moved_ms": reader.moved_ms,
        "offsets": {
            topic: {str(lane): offset for lane, offset in sorted(lanes.items())}
            for topic, lanes in sorted(reader.offsets.items())
        },
    }
    if reader.boot:
        values |= {"boot": reader.boot, "moved_boot_ms": reader.moved_boot_ms}
    if reader.kind != SPARK:
        values["kind"] = reader.kind
    if reader.all_topics:
        values["all_topics"] = True
    if reader.pattern is not None:
        values["pattern"] = reader.pattern
        values["passed_over"] = sorted(reader.passed_over)
    if not reader.all_lanes:
        values["all_lanes"] = False
    if reader.lanes.numbers is not None:
        values["lanes"] = sorted(reader.lanes.numbers)
    if reader.lanes.member is not None:
        values["members"] = list(reader.lanes.member)
    if reader.client is not None:
        values["client"] = {"name": reader.client.name, "topics": list(reader.client.topics)}
    if reader.host:
        values["host"] = reader.host
    return values


def _from_json(name: str, values: dict[str, Any]) -> NamedReader:
    """The reader that a file describes; raises one of _UNBELIEVABLE.

    Types are checked strictly: neither True nor "1" is a number.
    """
    pattern = values.get("pattern")
    if pattern is not None and len(_is(str, pattern)) > PATTERN_LENGTH_MAX:
        raise ValueError("a pattern that long")
    passed_over = frozenset(_is(list, values.get("passed_over", [])))
    for topic in passed_over:
        check_topic(topic)
    kind = values.get("kind", SPARK)
    if kind not in (SPARK, PYTHON, FORWARD):
        raise ValueError(f"kind {kind!r}")
    return NamedReader(
        name,
        _is(str, values["store"]),
        {topic: _queues(topic, lanes) for topic, lanes in _is(dict, values["offsets"]).items()},
        _number(values["moved_ms"], _TIME_MS_END),
        pattern,
        _is(bool, values.get("all_lanes", True)),
        passed_over,
        kind,
        _is(bool, values.get("all_topics", False)),
        LaneChoice.of(values.get("lanes"), values.get("members")),
        _client(values.get("client")),
        _is(str, values.get("boot", "")),
        _number(values.get("moved_boot_ms", 0), _TIME_MS_END),
        _is(str, values.get("host", "")),
    )


def _client(values: object) -> Client | None:
    if values is None:
        return None
    fields = _is(dict, values)
    return Client(_is(str, fields["name"]), tuple(_is(str, topic) for topic in _is(list, fields["topics"])))


def _queues(topic: str, lanes: object) -> dict[int, int]:
    check_topic(topic)
    return {_lane(lane): _number(offset, OFFSET_END) for lane, offset in _is(dict, lanes).items()}


def _lane(text: str) -> int:
    if not (
        text.isascii() and text.isdecimal() and len(text) <= 4 and str(int(text)) == text and int(text) < LANE_ROWS
    ):
        raise ValueError(f"lane {text[:20]!r}")
    return int(text)


def _number(value: object, end: int) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{str(value)[:40]} is not in [0, {end:,})")
    return value


def _is(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value


# ---- for people --------------------------------------------------------------------------------

STANDS_STILL_MS = 86_400_000
"""A reader that is behind and has not moved for this time gets a warning."""


@dataclass(frozen=True)
class ReaderState:
    """A named reader as `commitlog stat` and `commitlog readers` show it."""

    name: str
    running: bool
    """Whether a process reads under the name now."""
    kind: str = ""
    """SPARK, PYTHON or FORWARD; empty if the reader's position can't be read."""
    still_ms: int = 0
    """For how long the reader has not moved."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    lag: Lag | None = None
    warning: str = ""
    host: str = ""
    """The machine of the server's client that reads under the name; empty for a process here."""

    @property
    def behind(self) -> int:
        """How many messages the reader has not read, over all topics and lanes."""
        return sum(sum(lanes.values()) for lanes in (self.lag or {}).values())


def reader_states(index: TopicIndex, clock: Clock = SYSTEM_CLOCK) -> list[ReaderState]:
    """Returns all named readers of the index's store, by name.

    One with a damaged position has a `warning`.
    """
    view = index.view
    readers = NamedReaders(StoreDirectory(view.path), clock)
    found = []
    for name in readers.names():
        running = False
        try:
            running = readers.is_held(name)
            reader = readers.load(name)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ReaderError) as error:
            found.append(
                ReaderState(name, running, warning=f"reader {name}: {error}; until then everything is kept for it")
            )
            continue
        still_ms = reader.still_ms(clock)
        if reader.store_id != view.store_id:
            warning = f"reader {name}: belongs to another store, nothing is kept for it"
            found.append(ReaderState(name, running, reader.kind, still_ms, reader.offsets, {}, warning))
            continue
        lag = reader.lag(index)
        state = ReaderState(name, running, reader.kind, still_ms, reader.offsets, lag, host=reader.host)
        if state.behind and still_ms >= STANDS_STILL_MS:
            warning = (
                f"reader {name} has not moved for {still_ms // 3_600_000:,} hours and keeps what it has not read: start it "
                f"again, or `commitlog readers {for_shell(view.path)} --remove {for_shell(name)}`"
            )
            state = replace(state, warning=warning)
        found.append(state)
    return found

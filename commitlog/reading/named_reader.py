"""A reader that the store knows by name, and its position: `STORE/readers/<name>.json`.

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
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.disk.store_directory import boot_id
from commitlog.errors import CommitLogError, OptionError
from commitlog.reading.lane_choice import ALL_LANES, LaneChoice
from commitlog.record.topic_names import check_topic
from commitlog.shm.layout import LANE_ROWS
from commitlog.system.clock import Clock

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex  # what it needs takes long to import

SPARK, PYTHON, FORWARD = "spark", "python", "forward"
"""Kinds of readers."""
OFFSET_END = (1 << 63) // ENTRY_BYTES
"""Queue offsets are below this, because an entry's place is a signed number of 64 bits."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
FILE_BYTES_MAX = 4 << 20
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
UNBELIEVABLE = (
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


def is_name(text: str) -> bool:
    """Whether the text can be the name of a reader."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raises OptionError if the text can't be the name of a reader."""
    if not isinstance(name, str) or not is_name(name):
        raise OptionError(f"{name!r} is not a reader's name: letters, digits, _ . and -, 100 at most, not . or - first")


def encode(reader: NamedReader) -> bytes:
    """The content of a reader's file."""
    return to_checked_json(_to_json(reader))


def decode(name: str, data: bytes) -> NamedReader:
    """The reader of this name that the content of a file describes. Raises one of UNBELIEVABLE."""
    return _from_json(name, from_checked_json(data, _FIELDS))


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
    """The reader that a file describes; raises one of UNBELIEVABLE.

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

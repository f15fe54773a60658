"""Says where a read begins, in one small language for Python, the command line and Spark.

    earliest | latest | last 100 | 10 minutes ago | 2026-03-01T12:00:00+01:00 | 42

`Reader(start=)`, `commitlog cat --from` and Spark's startingOffsets take this language. `last N`
counts in each topic and lane. A plain number is a queue offset for every lane (not for Spark). A
time means the first message that was stored at this time or later, or the end if there is none.
Offsets of single queues are Kafka's JSON, `{"orders": {"0": 42, "1": -2}}`, or the same as a
mapping: −1 is the latest, −2 the earliest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Literal

from commitlog.errors import BadStart, OffsetOutOfRange
from commitlog.record.topic_names import check_topic
from commitlog.system.clock import SYSTEM_CLOCK, Clock

ALLOWED = "earliest, latest, 'last 100', '10 minutes ago', an ISO time such as 2026-03-01T12:00:00"

_UNIT_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_SHORT = {"ms": "millisecond", "s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour"}
_SHORT |= {"d": "day", "w": "week"}
_LAST = re.compile(r"last\s+(\d{1,18})", re.IGNORECASE)
_AGO = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s*([a-z]+)\s+ago", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}.*")

LATEST_OFFSET, EARLIEST_OFFSET = -1, -2
"""Kafka's numbers for the ends of a queue."""
_NUMBER_END = 1 << 62

Offsets = dict[str, dict[int, int]]
"""topic → lane → queue offset."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    `value` depends on the kind: a number of messages for `last`, ms before now for `ago`, ms since
    1970 for `time`, otherwise an offset.
    """

    kind: Literal["earliest", "latest", "last", "ago", "time", "offset"]
    value: int = 0

    def at(self, now_ms: int) -> Start:
        """The same start, with `ago` turned into the time that it means at this moment."""
        return Start("time", max(now_ms - self.value, 0)) if self.kind == "ago" else self


EARLIEST, LATEST = Start("earliest"), Start("latest")


@dataclass(frozen=True)
class QueueStarts:
    """Where to begin in each queue: at its offset in `offsets`, or at `other` if it has none."""

    other: Start = EARLIEST
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, topic: str, lane: int) -> Start:
        """Returns the start of one queue."""
        number = self.offsets.get(topic, {}).get(lane)
        if number is None:
            return self.other
        return {LATEST_OFFSET: LATEST, EARLIEST_OFFSET: EARLIEST}.get(number) or Start("offset", number)

    def wants_old(self, topics: Collection[str] | None, lane: int) -> bool:
        """Whether some queue of these topics (None: of all) begins before its newest message."""
        wanted = [self.other] if topics is None else [self.of(topic, lane) for topic in topics]
        return any(start != LATEST for start in wanted)

    @property
    def is_everything(self) -> bool:
        """Whether all queues begin at their first message."""
        return self.other == EARLIEST and not self.offsets


def parse_starts(
    start: str | int | datetime | Mapping[str, Mapping[int, int]], clock: Clock = SYSTEM_CLOCK
) -> QueueStarts:
    """Reads a start for all queues, or offsets for single ones (a mapping, or JSON).

    If offsets are given, queues without one begin at the earliest. So do all of an empty mapping,
    which is a reader's position in an empty store. `ago` counts from now. Raises BadStart.
    """
    if isinstance(start, Mapping) and not start:
        return QueueStarts(EARLIEST)
    if isinstance(start, str) and start.lstrip().startswith("{"):
        try:
            start = read_json(start)
        except (ValueError, RecursionError) as error:
            raise BadStart(f"{str(start)[:200]!r} is not JSON ({error}); {_SHAPE}") from None
    if isinstance(start, Mapping):
        offsets = offsets_by_queue(start)
        if not any(offsets.values()):
            raise BadStart(f"{str(start)[:80]} names no queue; {_SHAPE}")
        return QueueStarts(EARLIEST, offsets)
    return QueueStarts(parse_start(start).at(clock.wall_ms()))


def read_json(text: str) -> Any:
    """Reads JSON in which no object has a name twice: one of its values would not count.

    Raises ValueError, RecursionError.
    """
    return json.loads(text, object_pairs_hook=_with_names_once)


def _with_names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:40]!r} is named twice")
    return found


_SHAPE = 'give offsets such as {"orders": {"0": 42, "1": -2}} (−1 latest, −2 earliest)'


def offsets_by_queue(value: Mapping[str, object], smallest: int = EARLIEST_OFFSET) -> Offsets:
    """Checks offsets of single queues: topic → lane (a number, or its digits) → offset.

    An offset is at least `smallest`. Raises BadStart, IllegalTopic.
    """
    found: Offsets = {}
    for topic, lanes in value.items():
        check_topic(topic)
        if not isinstance(lanes, Mapping):
            raise BadStart(f"topic {topic}: {str(lanes)[:80]} is not a mapping; {_SHAPE}")
        queue = found[topic] = {}
        for lane, number in lanes.items():
            is_lane = re.fullmatch(r"[0-9]{1,10}", str(lane)) and not isinstance(lane, bool)
            if not is_lane or type(number) is not int or not smallest <= number < _NUMBER_END:
                raise BadStart(f"topic {topic}: {str(lane)[:40]}: {str(number)[:40]} is not an offset; {_SHAPE}")
            if int(lane) in queue:
                raise BadStart(f"topic {topic}: lane {int(lane)} is named twice; {_SHAPE}")
            queue[int(lane)] = number
    return found


def parse_start(
    text: str | int | datetime, *, offsets: bool = True, zone: Callable[[], tzinfo | None] = lambda: None
) -> Start:
    """Reads a start. A time without a zone is in that of `zone()`, or local time if that is None.

    `offsets` says whether a plain number is allowed as an offset. Raises BadStart, which lists what
    is allowed, and what `zone` raises.
    """
    text = str(text).strip()
    lower = text.lower()
    if lower in ("earliest", "latest"):
        return EARLIEST if lower == "earliest" else LATEST
    if offsets and re.fullmatch(r"\d{1,18}", text):
        return Start("offset", int(text))
    if found := _LAST.fullmatch(text):
        return Start("last", int(found[1]))
    if found := _AGO.fullmatch(text):
        unit = _SHORT.get(found[2].lower(), found[2].lower().removesuffix("s"))
        if unit in _UNIT_MS:
            return Start("ago", int(float(found[1]) * _UNIT_MS[unit]))
    if _TIME.fullmatch(text):
        with suppress(ValueError, OverflowError):
            time = datetime.fromisoformat(text)
            time = time if time.tzinfo else time.replace(tzinfo=zone())
            return Start("time", max(int(time.timestamp() * 1000), 0))
    also = " or an offset such as 42" if offsets else ' or JSON such as {"orders": {"0": 42, "1": -2}}'
    raise BadStart(f"{text!r} is no place in a topic; give {ALLOWED},{also}")


def resolve(start: Start, first: int, end: int, find_by_time: Callable[[int], int | None], *, where: str = "") -> int:
    """Returns the queue offset that a start means in a queue with the offsets [first, end).

    `find_by_time(ms)` returns the offset of the first message that was stored at that time or
    later, or None. A start with `ago` must first become a time (`Start.at`), so that all queues
    have the same time. `where` names the queue in errors. Raises OffsetOutOfRange for a plain
    offset outside [first, end].
    """
    if start.kind == "earliest":
        return first
    if start.kind == "last":
        return max(first, end - start.value)
    if start.kind == "time":
        found = find_by_time(start.value)
        return end if found is None else min(max(found, first), end)
    if start.kind == "offset":
        if not first <= start.value <= end:
            place = f"{where}: " if where else ""
            raise OffsetOutOfRange(
                f"{place}offset {start.value:,} is outside [{first:,}, {end:,}]: give an offset in this range"
            )
        return start.value
    return end

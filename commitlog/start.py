"""Where to begin to read: one small language for `Reader(start=)`, `commitlog cat --from` and Spark's startingOffsets.

    earliest | latest | last 100 | 10 minutes ago | 2026-03-01T12:00:00+01:00 | 42

`last N` counts in each topic and lane; a plain number is a queue offset for every lane (not for Spark, whose
language for that is Kafka's JSON). A time means the first message stored at or after it; where there is none, the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.errors import BadStart, OffsetOutOfRange

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


@dataclass(frozen=True, slots=True)
class Start:
    """One start. `value`: messages for `last`, ms before now for `ago`, ms since the epoch for `time`, else an offset."""

    kind: Literal["earliest", "latest", "last", "ago", "time", "offset"]
    value: int = 0

    def at(self, clock: Clock = SYSTEM_CLOCK) -> Start:
        """The same start with `ago` turned into the time it means now; the others as they are."""
        return Start("time", max(clock.wall_ms() - self.value, 0)) if self.kind == "ago" else self


EARLIEST, LATEST = Start("earliest"), Start("latest")


def parse_start(text: str | int, *, offsets: bool = True) -> Start:
    """Reads a start; a time without a zone is local time. `offsets`: whether a plain number is one.

    Raises BadStart, which lists what is allowed.
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
            return Start("time", max(int(datetime.fromisoformat(text).timestamp() * 1000), 0))
    also = " or an offset such as 42" if offsets else ' or JSON such as {"orders": {"0": 42, "1": -2}}'
    raise BadStart(f"{text!r} is no start; give {ALLOWED},{also}")


def resolve(start: Start, first: int, end: int, find_by_time: Callable[[int], int | None], *, where: str = "") -> int:
    """The queue offset that a start means in a queue which holds [first, end).

    `find_by_time(ms)` gives the offset of the first message stored at or after a time, None where there is none. `ago`
    has to be turned into a time before (`Start.at`), so that all queues agree on it. `where` names the queue in errors.
    Raises OffsetOutOfRange for a plain offset outside [first, end].
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
                f"{place}offset {start.value:,} is outside [{first:,}, {end:,}], which is all there is"
            )
        return start.value
    return end

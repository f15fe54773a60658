"""Where a read begins and ends: `startingOffsets`, `endingOffsets`, and the same by times.

The text of these options becomes a Bound. `resolving.py` makes offsets of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.errors import BadStart, OptionError
from commitlog.planning.option_values import bad, choice, json_object, topic_name
from commitlog.planning.session_zone import session_zone
from commitlog.reading.starting_point import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    Offsets,
    Start,
    offsets_by_queue,
    parse_start,
)


@dataclass(frozen=True)
class Bound:
    """Where a read begins or ends: a start for all queues, or offsets or times (ms) for some.

    Queues that `offsets` or `times` do not name get `start`. In a `strict` bound, a time after the
    last message is an error.
    """

    option: str
    start: Start
    offsets: Offsets | None = None
    times: Offsets | None = None
    strict: bool = False


def starting_bound(values: Mapping[str, str]) -> Bound | None:
    """What `startingOffsets`, or an option in its place, says. Raises OptionError."""
    strategy = choice(values, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    strict = strategy == "error"
    found = []  # the first one counts; all are read, so that a bad value of any is an error
    if "startingTimestamp" in values:
        found.append(Bound("startingTimestamp", _timestamp(values, "startingTimestamp"), strict=strict))
    if "startingOffsetsByTimestamp" in values:
        times = _by_queue(values, "startingOffsetsByTimestamp", smallest=0)
        found.append(Bound("startingOffsetsByTimestamp", EARLIEST, times=times, strict=strict))
    if "startingOffsets" in values:
        found.append(_start_or_json(values, "startingOffsets", EARLIEST))
    return found[0] if found else None


def ending_bound(values: Mapping[str, str]) -> Bound | None:
    """What `endingOffsets`, or an option in its place, says. Raises OptionError."""
    found = []
    if "endingTimestamp" in values:
        found.append(Bound("endingTimestamp", _timestamp(values, "endingTimestamp")))
    if "endingOffsetsByTimestamp" in values:
        times = _by_queue(values, "endingOffsetsByTimestamp", smallest=0)
        found.append(Bound("endingOffsetsByTimestamp", LATEST, times=times))
    if "endingOffsets" in values:
        found.append(_start_or_json(values, "endingOffsets", LATEST))
    return found[0] if found else None


def _timestamp(values: Mapping[str, str], option: str) -> Start:
    text = values[option].strip()
    if not re.fullmatch(r"\d{1,15}", text):
        raise bad(option, text, "give milliseconds since 1970")
    return Start("time", int(text))


def _start_or_json(values: Mapping[str, str], option: str, default: Start) -> Bound:
    text = values[option].strip()
    if text.startswith("{"):
        return Bound(option, default, offsets=_by_queue(values, option, smallest=EARLIEST_OFFSET))
    try:
        return Bound(option, parse_start(text, offsets=False, zone=session_zone))
    except BadStart as error:
        raise OptionError(f"option {option}: {error}") from None


def _by_queue(values: Mapping[str, str], option: str, smallest: int) -> Offsets:
    example = '{"orders": {"0": 42, "1": -2}}' if smallest < 0 else '{"orders": {"0": 1700000000000}}'
    shape = f"give JSON such as {example}" + (" (−1 latest, −2 earliest)" if smallest < 0 else " (ms since 1970)")
    parsed = json_object(option, values[option], shape)
    for topic in parsed:
        topic_name(option, topic)
    try:
        return offsets_by_queue(parsed, smallest)
    except BadStart:
        raise bad(option, values[option], shape) from None

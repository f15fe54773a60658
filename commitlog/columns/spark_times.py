"""Reads texts as dates and times, by the rules of Spark's casts and of its JSON reader.

The results are numbers, as in Arrow's columns, because Python has no years before 1 and after 9999.
Three of Spark's rules are left out: a time without a date, Java's own short names of zones, and a
region's time in a year that Python does not have. docs/typed-topics.md names them.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo

import pyarrow as pa
import pyarrow.compute as pc

_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_DAYS = re.compile(r"[+-]?[0-9]{1,10}")
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2})(?::?([0-9]{2}))?)?")
_OFFSET_MOST = 18 * 3600
_SPACE = "".join(map(chr, range(33)))
_INT32, _INT64 = 1 << 31, 1 << 63
_SHIFTED_YEARS = 400
_SECONDS_A_DAY = 86_400

_USUAL_DATE_BYTES = len("2024-01-05")
_USUAL_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_USUAL_ZONE = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])"
_USUAL_LOCAL = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_USUAL_CLOCK}$"
_USUAL_TIME = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_USUAL_CLOCK}{_USUAL_ZONE}?$"


def times_of(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Reads texts in the usual forms, many at a time, like `day_number` and `microseconds`.

    Raises ValueError if a text has another form.
    """
    if pa.types.is_date(kind):
        is_usual = pc.equal(pc.binary_length(texts), _USUAL_DATE_BYTES)  # a cast takes only one form so long
    else:
        is_usual = pc.match_substring_regex(texts, _USUAL_LOCAL if kind.tz is None else _USUAL_TIME)
    if pc.any(pc.invert(is_usual)).as_py():
        raise ValueError("an unusual form")
    if pa.types.is_timestamp(kind) and kind.tz is not None and not pc.all(pc.ends_with(texts, "Z")).as_py():
        has_zone = pc.match_substring_regex(texts, f"{_USUAL_ZONE}$")
        texts = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return texts.cast(kind)


def day_number(text: str) -> int:
    """A date as days since 1970. Raises ValueError."""
    text = text.strip(_SPACE)
    found = _DATE.fullmatch(text)
    if found is not None:
        return _days(found[1], found[2], found[3])
    if _DAYS.fullmatch(text) is None or not -_INT32 <= int(text) < _INT32:
        raise ValueError("no date")
    return int(text)  # as Spark 1.5 has written dates


def microseconds(text: str, *, has_zone: bool) -> int:
    """A time as microseconds since 1970. Without a zone it is UTC. Raises ValueError."""
    found = _TIME.fullmatch(text.strip(_SPACE))
    if found is None:
        raise ValueError("no time")
    days = _days(found[1], found[2], found[3])
    hour, minute, second = (int(found[group] or 0) for group in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("no time of a day")
    seconds = days * _SECONDS_A_DAY + hour * 3600 + minute * 60 + second
    if found[8] is not None:
        if not has_zone:
            raise ValueError("a time zone where there is none")
        seconds -= _offset(found[8].strip(_SPACE), seconds)
    return checked(seconds * 1_000_000 + int((found[7] or "")[:6].ljust(6, "0")))


def checked(microseconds: int) -> int:
    """Returns a time, or raises ValueError if a column can't hold it."""
    if not -_INT64 <= microseconds < _INT64:
        raise ValueError("out of range")
    return microseconds


def _days(year: str, month: str | None, day: str | None) -> int:
    """Days since 1970 of a Gregorian date, even before that calendar. Raises ValueError."""
    cycles, in_cycle = divmod(int(year), _SHIFTED_YEARS)
    shifted = datetime.date(in_cycle + _SHIFTED_YEARS, int(month or 1), int(day or 1))  # cycles have equal days
    return (shifted - datetime.date(1970, 1, 1)).days + (cycles - 1) * 146_097


def _offset(zone: str, seconds: int) -> int:
    """How many seconds a zone's clocks are ahead of UTC when they show this time.

    Raises ValueError.
    """
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        hours, minutes, rest = (int(found[group] or 0) for group in (2, 3, 4))
        offset = hours * 3600 + minutes * 60 + rest
        if minutes > 59 or rest > 59 or offset > _OFFSET_MOST:
            raise ValueError("no offset of a zone")
        return offset if found[1] == "+" else -offset
    try:
        there = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
        ahead = there.replace(tzinfo=zoneinfo.ZoneInfo(zone)).utcoffset()
    except (OverflowError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise ValueError(str(error)) from None
    if ahead is None:
        raise ValueError("no zone")
    return int(ahead.total_seconds())

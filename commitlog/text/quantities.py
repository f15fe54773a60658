"""Sizes, durations, times, numbers and addresses as people write them: `64MiB`, `10m`, `db2:40`."""

from __future__ import annotations

import re
from datetime import datetime
from fractions import Fraction

from commitlog.errors import IllegalArgument

_BYTES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _BYTES |= {_letter: 1024**_power, f"{_letter}iB": 1024**_power, f"{_letter}B": 1000**_power}
_BYTES["kB"] = 1000
_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_NUMBER = r"\d{1,18}(?:\.\d{1,9})?"
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]*)")
_PART = re.compile(rf"({_NUMBER}) ?([a-zµ]+)")


def bytes_of(text: str) -> int:
    """The bytes that a text such as `64MiB`, `64MB`, `1.5G` or `65536` stands for.

    KiB, MiB, GiB, TiB and the letters alone are powers of 1024, as in `head -c` and Docker. kB, MB,
    GB, TB are powers of 1000. Raises ValueError, with what is allowed.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _BYTES.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is no size; write bytes, or a unit as in 64MiB, 64MB or 1.5GiB")
    size = Fraction(found[1]) * unit
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def nanoseconds_of(text: str) -> int:
    """The nanoseconds of a duration with units, such as `250us`, `12ms`, `1.5h` or `1h30m`.

    Units are ns, us, ms, s, m (or min), h and d. Raises ValueError, with what is allowed.
    """
    stripped = text.strip()
    parts = _PART.findall(stripped)
    known = all(unit in _NANOSECONDS for _, unit in parts)
    if not parts or not known or not re.fullmatch(rf"(?:{_PART.pattern} ?)+", stripped):
        raise ValueError(f"{text!r} is no duration; write a number and a unit, as in 12ms, 30s, 10m, 1.5h or 2d")
    return int(sum(Fraction(number) * _NANOSECONDS[unit] for number, unit in parts))


def seconds_of(text: str) -> float:
    """The seconds of a duration; a number without a unit is seconds. Raises ValueError."""
    if re.fullmatch(_NUMBER, text.strip()):
        return float(text)
    return nanoseconds_of(text) / 1e9


def rounded_down(size: int) -> tuple[int, str]:
    """A size in bytes of at most two digits and a unit, and how it is written: `12GB`.

    It is the largest one that is no larger than `size`.
    """
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            digits = len(str(size // 10**power))
            step = 10 ** max(digits - 2, 0)
            number = size // 10**power // step * step
            return number * 10**power, f"{number}{unit}"
    return size, str(size)


def counted(number: int, noun: str) -> str:
    """Writes a number with its noun: `0 messages`, `1 message`, `12,345 messages`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def address_of(text: str) -> tuple[str, int]:
    """Splits HOST:PORT into host and port. Raises IllegalArgument."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        host.encode("idna")  # as a connection does
    except UnicodeError:
        host = ""
    if not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise IllegalArgument(f"{text!r} is no address; give HOST:PORT, as in 10.0.0.1:4440")
    return host, int(port)


def shown_time(ms: int) -> str:
    """A time (ms since 1970) in this machine's zone, as in `2026-03-01 12:00:00+01:00`."""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")

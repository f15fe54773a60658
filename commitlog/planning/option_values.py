"""The values of options, as text from a user: numbers, words, times, topics, JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commitlog.disk.writable_topic import check_writable_name
from commitlog.errors import OptionError, TopicNotWritable
from commitlog.reading.starting_point import read_json
from commitlog.record.topic_names import check_topic

_DELAY_MS = {"ms": 1, "": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def bad(option: str, value: object, allowed: str) -> OptionError:
    """Makes the error for an option's value that is not allowed."""
    return OptionError(f"option {option}: {str(value)[:200]!r} is not allowed; {allowed}")


def whole_number(values: Mapping[str, str], option: str) -> int | None:
    """An option that is a number from 1 on, or None if it is not given. Raises OptionError."""
    text = values.get(option)
    if text is None:
        return None
    if not re.fullmatch(r"\+?\d{1,18}", text.strip()) or int(text) < 1:
        raise bad(option, text, "give a whole number from 1 on")
    return int(text)


def boolean(values: Mapping[str, str], option: str, default: bool) -> bool:
    """An option that is true or false. Raises OptionError."""
    text = values.get(option, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise bad(option, values[option], "give true or false")
    return text == "true"


def choice(values: Mapping[str, str], option: str, allowed: tuple[str, ...]) -> str:
    """An option that is one of some words; the first is the default. Raises OptionError."""
    text = values.get(option, allowed[0]).strip().lower()
    if text not in allowed:
        raise bad(option, values[option], f"give {' or '.join(allowed)}")
    return text


def duration_ms(values: Mapping[str, str], option: str, default: str) -> int:
    """An option that is a length of time, in milliseconds. Raises OptionError."""
    text = values.get(option, default)
    found = re.fullmatch(r"\s*(\d{1,12})\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in _DELAY_MS:
        raise bad(option, text, "give a time such as 500ms, 30s, 15m, 1h")
    return int(found[1]) * _DELAY_MS[found[2]]


def topic_name(option: str, topic: str) -> str:
    """Checks a topic that an option names, to read it. Raises OptionError."""
    try:
        check_topic(topic)
    except TopicNotWritable as error:
        raise bad(option, topic, str(error)) from None
    return topic


def writable_name(option: str, topic: str) -> str:
    """Checks a topic that an option names, to send to it. Raises TopicNotWritable."""
    try:
        check_writable_name(topic)
    except TopicNotWritable as error:
        raise type(error)(f"option {option}: {error}") from None
    return topic


def json_object(option: str, text: str, shape: str) -> dict[str, Any]:
    """The text of an option as a JSON object, which is not empty. Raises OptionError."""
    try:
        parsed = read_json(text)
    except (ValueError, RecursionError) as error:
        raise bad(option, text, f"{shape} ({error})") from None
    if not isinstance(parsed, dict) or not parsed:
        raise bad(option, text, shape)
    return parsed

"""Makes a `Config` from a TOML file or a dictionary, and checks every value.

What a knob may be stands in its annotation (`config.py`). An error names file, key and value, and
what is allowed.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from commitlog.config import SECTIONS, Config, RetentionConfig
from commitlog.errors import ConfigError
from commitlog.lines import printable

_HOUR = r"([01]?\d|2[0-3])"


def load_config(source: str | Path | Mapping[str, Any] | Config | None) -> Config:
    """A `Config` from a TOML file, a dictionary of sections, or the defaults for None.

    Raises ConfigError.
    """
    if source is None:
        return Config()
    if isinstance(source, Config):
        return _validated(source.to_json(), "config")
    if isinstance(source, Mapping):
        return _validated(source, "config")
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"config is a TOML file's path, a dictionary of sections or a Config, not {type(source).__name__}"
        )
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: the text is not UTF-8, or the path is impossible
        reason = error.strerror if isinstance(error, OSError) else error  # an OSError's text has the path again
        raise ConfigError(f"{printable(str(source))}: can't be read: {reason}") from error
    try:
        values = tomllib.loads(text)
    except ValueError as error:  # also of a number that is too long
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    return _validated(values, str(source))


def _validated(values: Mapping[str, Any], where: str) -> Config:
    problems: list[str] = []
    sections: dict[str, Any] = {}
    for name, given in values.items():
        kind = SECTIONS.get(name)
        if kind is None:
            problems.append(_unknown(name, SECTIONS))
            continue
        section = dataclasses.asdict(given) if isinstance(given, kind) else given
        if isinstance(section, Mapping):
            problems += _problems(name, kind, section)
            sections[name] = section
        else:
            problems.append(f"{name} = {given!r:.80}: allowed are keys and values below [{name}]")
    if problems:
        raise ConfigError("; ".join(f"{where}: {problem}" for problem in problems))
    config = Config.from_json(sections)
    size = config.store.segment_bytes
    if size and (size & (size - 1) or size < 1 << 16):
        raise ConfigError(
            f"{where}: store.segment_bytes = {size}: allowed are 0 (chosen by free memory) and "
            f"powers of two from 65536 to 1073741824"
        )
    _check_retention(config.retention, where)
    return config


def _check_retention(retention: RetentionConfig, where: str) -> None:
    if not re.fullmatch(rf"({_HOUR}(;{_HOUR})*)?", retention.delete_when):
        raise ConfigError(
            f"{where}: retention.delete_when = {retention.delete_when!r}: allowed are hours from 00 to 23, as in '04' or "
            f"'04;16', and '' for any hour"
        )
    low, middle = retention.disk_max_used_percent, retention.disk_clean_forcibly_percent
    if not low <= middle <= retention.disk_refuse_percent:
        raise ConfigError(
            f"{where}: retention.disk_clean_forcibly_percent = {middle}: it has to lie between disk_max_used_percent ({low}) "
            f"and disk_refuse_percent ({retention.disk_refuse_percent})"
        )


def _problems(section: str, kind: Any, values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the keys and values of one section, one clause for each."""
    hints = get_type_hints(kind, include_extras=True)
    knobs = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    problems = []
    for key, value in values.items():
        if key not in knobs:
            problems.append(_unknown(f"{section}.{key}", knobs))
        elif not _is_allowed(value, knobs[key]):
            problems.append(f"{section}.{key} = {value!r:.80}: allowed are {_allowed(knobs[key])}")
    return problems


def _unknown(key: object, known: Iterable[str]) -> str:
    return f"unknown key {printable(str(key))} (there are {', '.join(known)})"


def _is_allowed(value: object, hint: Any) -> bool:
    """Whether a knob of this type may have the value. No value is converted: 1 is not `true`."""
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint in (bool, str):
        return isinstance(value, hint)
    (bounds,) = hint.__metadata__
    return type(value) is int and bounds.ge <= value <= bounds.le


def _allowed(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " and ".join(map(repr, get_args(hint)))
    if hint in (bool, str):
        return "true and false" if hint is bool else "strings"
    (bounds,) = hint.__metadata__
    return f"whole numbers from {bounds.ge} to {bounds.le}"

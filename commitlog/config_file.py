"""Makes a `Config` from a TOML file or a dictionary, checked by pydantic.

An error names file, key and value, and what is allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import orjson

from commitlog.config import Config, Interval, ReplicationConfig, RetentionConfig
from commitlog.errors import ConfigError, IllegalArgument
from commitlog.shm.layout import LANE_ROWS
from commitlog.text.lines import printable
from commitlog.text.quantities import address_of, bytes_of, nanoseconds_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_UNITS = {"_bytes": 1, "_ms": 1_000_000, "_hours": 3_600_000_000_000}
"""The end of a knob's name → its unit: 1 for bytes, or the unit's length in nanoseconds."""
_HOUR = r"([01]?\d|2[0-3])"


def load_config(source: str | Path | Mapping[str, Any] | Config | None) -> Config:
    """Makes a `Config` from a TOML file or a dictionary of sections; None gives the defaults.

    Raises ConfigError.
    """
    if source is None:
        return Config()
    if isinstance(source, Config):
        return _validated(source.to_json(), "config")
    if isinstance(source, Mapping):
        return _validated(dict(source), "config")
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
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    return _validated(values, str(source))


def _with_units(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the values, with a number in place of each size or time that is a text with a unit.

    Raises ConfigError.
    """
    return {
        section: {name: _number(f"{section}.{name}", value, where) for name, value in knobs.items()}
        if isinstance(knobs, Mapping)
        else knobs
        for section, knobs in values.items()
    }


def _number(key: str, value: Any, where: str) -> Any:
    """Converts a text with a unit into a number.

    The number has the unit at the end of the knob's name.
    """
    unit = next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), None)
    if unit is None or not isinstance(value, str):
        return value
    try:
        number = Fraction(bytes_of(value) if unit == 1 else nanoseconds_of(value)) / unit
    except ValueError as error:
        raise ConfigError(f"{where}: {key} = {error}") from None
    if number.denominator != 1:
        raise ConfigError(f"{where}: {key} = {value!r}: that is {float(number):g}, and allowed are whole numbers")
    return int(number)


@functools.cache
def _adapter() -> TypeAdapter[Config]:
    """What checks values. To make it takes many times as long as to check them."""
    from pydantic import TypeAdapter

    return TypeAdapter(Config)


def _validated(values: dict[str, Any], where: str) -> Config:
    values = _with_units(values, where)
    try:
        text = orjson.dumps(values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; names are strings, values strings, whole numbers and booleans") from error
    from pydantic import ValidationError  # a store with the defaults need not wait for it

    try:
        config = _adapter().validate_json(text)  # JSON: strict, and still dataclasses from objects
    except ValidationError as error:
        raise ConfigError("; ".join(_describe(problem, where) for problem in error.errors())) from error
    size = config.store.segment_bytes
    if size and (size & (size - 1) or size < 1 << 16):
        raise ConfigError(
            f"{where}: store.segment_bytes = {size}: allowed are 0 (chosen by free memory) and "
            f"powers of two from 65536 to 1073741824"
        )
    _check_retention(config.retention, where)
    _check_replication(config.replication, where)
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


def _check_replication(replication: ReplicationConfig, where: str) -> None:
    for name in ("listen", "slave_listen"):
        address = getattr(replication, name)
        if address and not _is_address(address):
            raise ConfigError(f"{where}: replication.{name} = {address!r}: allowed are HOST:PORT, and '' for none")
    if not all(map(_is_address, replication.peers.split())):
        raise ConfigError(
            f"{where}: replication.peers = {replication.peers!r}: allowed are HOST:PORT, with spaces between"
        )
    for part in replication.slaves.split():
        lane, _, address = part.partition("=")
        if not (lane.isdecimal() and int(lane) < LANE_ROWS and _is_address(address)):
            raise ConfigError(f"{where}: replication.slaves: {part!r}: allowed are LANE=HOST:PORT, with spaces between")
    if replication.slave_listen and not replication.allow_plain and not _is_loopback(replication.slave_listen):
        raise ConfigError(
            f"{where}: replication.slave_listen = {replication.slave_listen!r}: RocketMQ's protocol has no encryption: "
            f"listen at 127.0.0.1 and give slaves a tunnel, or set allow_plain"
        )
    if replication.listen or replication.peers:
        for name in ("certificate", "key", "authority"):
            file = getattr(replication, name)
            if not file or not Path(file).is_file():
                raise ConfigError(f"{where}: replication.{name} = {file!r}: replicas come over TLS: give a file in PEM")
    if (
        replication.role == "SYNC_MASTER"
        and not replication.listen
        and not (replication.slave_listen and replication.slaves_count)
    ):
        raise ConfigError(
            f"{where}: replication.role = 'SYNC_MASTER': no replica can come that counts: give replication.listen"
        )


def _is_address(text: str) -> bool:
    try:
        address_of(text)
    except IllegalArgument:
        return False
    return True


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name
        return False


def _describe(problem: Any, where: str) -> str:
    """Says one problem in one clause: file, key, value, and what the knob's annotation allows."""
    *path, last = problem["loc"]
    section: Any = Config
    for part in path:
        section = section.__dataclass_fields__[part].default_factory
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{where}: unknown key {key} (there are {', '.join(section.__dataclass_fields__)})"
    allowed = _allowed(get_type_hints(section, include_extras=True)[last])
    return f"{where}: {key} = {problem['input']!r}: allowed are {allowed}"


def _allowed(hint: Any) -> str:
    for bound in getattr(hint, "__metadata__", ()):
        if isinstance(bound, Interval):
            return f"whole numbers from {bound.ge} to {bound.le}"
    if hint is bool:
        return "true and false"
    if get_origin(hint) is Literal:
        return " and ".join(map(repr, get_args(hint)))
    return "strings" if hint is str else f"keys and values below [{_section_name(hint)}]"


def _section_name(kind: Any) -> str:
    return next(field.name for field in dataclasses.fields(Config) if field.default_factory is kind)

"""What several commands have in common: STORE, sizes and durations, and how JSON is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commitlog.lines import to_json
from commitlog.quantities import bytes_of, nanoseconds_of, seconds_of

STORE_VARIABLE = "COMMITLOG_STORE"

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the store.", envvar=STORE_VARIABLE)]
"""A store that must be there. Without the argument it is the one that the variable names."""
NewStoreArgument = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="Directory of the store; made if it is missing.", envvar=STORE_VARIABLE),
]
"""A store that the command makes where there is none."""
AnyStoreArgument = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="Directory of the store, or a RocketMQ store root.", envvar=STORE_VARIABLE),
]
"""A store of ours, or RocketMQ's."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def size(given: str | int) -> int:
    """Reads an option's size: bytes, or a number with a unit (`64MiB`)."""
    try:
        return bytes_of(str(given))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def duration(given: str | float) -> float:
    """Reads an option's duration: seconds, or a number with a unit (`10m`). It is not negative."""
    try:
        return seconds_of(str(given))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def past_time(given: str) -> int:
    """Reads an option's time in the past, in ms since 1970: an ISO time, `3 days ago` or `3d`.

    Raises BadStart.
    """
    from commitlog.errors import BadStart
    from commitlog.reading.starting_point import Start, parse_start
    from commitlog.reading.trimming import in_the_past

    try:
        start = Start("ago", nanoseconds_of(given) // 1_000_000)
    except ValueError:
        start = parse_start(given)
    if start.kind not in ("ago", "time"):
        raise BadStart(f"{given!r} is not a time; give '3 days ago', 3d, or an ISO time such as 2026-03-01T12:00:00")
    return in_the_past(start, given).value


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object, indented: what `--json` gives in every command."""
    typer.echo(to_json(values, indent=2))

"""What several commands have in common: STORE, sizes and durations, and how JSON is printed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated, Any

import typer

from commitlog.errors import CommitLogError, DamagedFile, disk_error
from commitlog.lines import to_json
from commitlog.quantities import bytes_of, seconds_of

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


def index_error(error: DamagedFile | OSError) -> CommitLogError:
    """The error of a command that can't tell topics, because what tells of them is damaged."""
    if isinstance(error, DamagedFile):
        return error
    place = error.filename or "the index"
    return disk_error(error.errno or errno.EIO, f"{place}: {error.strerror}, while topics were looked for")


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object, indented: what `--json` gives in every command."""
    typer.echo(to_json(values, indent=2))

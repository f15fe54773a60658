"""The common parts of commands: the argument STORE, sizes and times, and how they print."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.text.lines import to_json, wrapped
from commitlog.text.quantities import bytes_of, counted, nanoseconds_of, seconds_of, shown_time

if TYPE_CHECKING:
    from commitlog.reading.topic_facts import MessageFacts

STORE_VARIABLE = "COMMITLOG_STORE"
_RATE_MIN, _RATE_MAX = 0.001, 1e9

StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", help="Directory of the store.", envvar=STORE_VARIABLE, readable=False)
]
"""A store that must exist. Without the argument it is the store in COMMITLOG_STORE.

Typer does not look whether it may be read, here and elsewhere: a command says that by name.
"""
StoresArgument = Annotated[
    list[Path], typer.Argument(metavar="STORE", help="Directories of stores.", envvar=STORE_VARIABLE, readable=False)
]
NewStoreArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", help="Directory of the store; made if it is missing.", envvar=STORE_VARIABLE, readable=False
    ),
]
"""A store that the command makes if it does not exist."""
AnyStoreArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", help="Directory of the store, or a RocketMQ store root.", envvar=STORE_VARIABLE, readable=False
    ),
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


def rate(given: str | float) -> float:
    """Reads an option's messages per second.

    Infinity is refused, and so is a rate that would never send.
    """
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not _RATE_MIN <= number <= _RATE_MAX:
        raise typer.BadParameter(f"{given!r} is no rate; give messages a second, from {_RATE_MIN} to {_RATE_MAX:,.0f}")
    return number


def past_time(given: str) -> int:
    """Reads an option's time in the past, in ms since 1970: an ISO time, `3 days ago` or `3d`.

    Raises BadStart.
    """
    from commitlog.errors import BadStart
    from commitlog.reading.starting_point import Start, parse_start
    from commitlog.reading.topic_trim import in_the_past

    refused = BadStart(f"{given!r} is not a time; give '3 days ago', 3d, or an ISO time such as 2026-03-01T12:00:00")
    try:
        start = Start("ago", nanoseconds_of(given) // 1_000_000)
    except ValueError:
        try:
            start = parse_start(given)
        except BadStart:  # it names words that are no times
            raise refused from None
    if start.kind not in ("ago", "time"):
        raise refused
    return in_the_past(start, given).value


class ForShell(str):
    """A line that is a command to paste: it stays whole, also on a terminal."""


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Prints lines.

    On a terminal a line that is too wide goes on below, indented. Elsewhere each stays whole, as
    `grep` wants it.
    """
    if not (sys.stderr if err else sys.stdout).isatty():
        for line in lines:
            typer.echo(line, err=err)
        return
    width = shutil.get_terminal_size().columns
    for line in lines:
        if isinstance(line, ForShell):
            typer.echo(line, err=err)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        typer.echo("\n".join(wrapped(line, width, indent)), err=err)


class Unanswered(typer.BadParameter):
    """A question that nobody has answered: no value is wrong, so its text stands alone."""

    def format_message(self) -> str:
        return self.message


def confirm(question: str) -> None:
    """Ends the command unless somebody says yes."""
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        typer.echo()  # the question's line has no end yet
        if sys.stdin.isatty():  # Ctrl-C
            raise
        raise Unanswered("nobody has answered the question; --yes does it without one") from None
    if not agreed:
        raise typer.Abort


def shown_facts(facts: MessageFacts) -> str:
    """How many messages there are, how large and how old, as in `2 messages, 1,246 bytes, …`."""
    about = "about " if facts.bytes_are_estimated else ""
    text = f"{counted(facts.messages, 'message')}, {about}{counted(facts.bytes, 'byte')}"
    if facts.first_timestamp is None or facts.last_timestamp is None:
        return text
    return f"{text}, stored {shown_time(facts.first_timestamp)} to {shown_time(facts.last_timestamp)}"


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object, indented: what `--json` gives in every command."""
    typer.echo(to_json(values, indent=2))

"""`commitlog logs STORE`: what the stages and the supervisor have logged, in one order of time."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoreArgument, past_time, print_lines
from commitlog.cli.output import discard_output
from commitlog.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from commitlog.inspecting.store_logs import LogEntry

_POLL_SECONDS = 0.1


class LoggerName(StrEnum):
    supervisor = "supervisor"
    committer = "committer"
    flusher = "flusher"
    allocator = "allocator"
    dispatcher = "dispatcher"
    ha_service = "ha_service"


class Level(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


_RANKS = {"DEBUG": 0, "INFO": 1, "WARNING": 2, "ERROR": 3, "CRITICAL": 4}


def logs(
    store: StoreArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    stage: Annotated[
        list[LoggerName] | None,
        typer.Option(
            metavar="NAME",
            help=f"Only this one: {', '.join(LoggerName)}; may be given again.",
        ),
    ] = None,
    level: Annotated[
        Level, typer.Option(metavar="LEVEL", help="Nothing below debug, info, warning or error.")
    ] = Level.debug,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", metavar="LINES", min=0, help="Only the newest; a traceback counts as one."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Nothing older: '10 minutes ago', 10m, or an ISO time."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object an entry.")] = False,
) -> None:
    """Show the logs of all stages in one order of time.

        commitlog logs data/events --level warning --since 1h
        commitlog logs data/events -n 20
        commitlog logs data/events -f --stage flusher

    It reads both formats of `logs.format`, also while the files are rotated. A traceback counts as
    an error.
    """
    from commitlog.inspecting.store_logs import StoreLogs

    since_ms = 0 if since is None else past_time(since)
    found = StoreLogs(store, [name.value for name in stage or ()])
    least = _RANKS[level.value.upper()]
    try:
        wanted = (entry for entry in _at_least(found.read(), least) if entry.time_ms >= since_ms)
        _print(wanted if lines is None else deque(wanted, min(lines, sys.maxsize)), json=json)
        while follow:
            SYSTEM_CLOCK.sleep(_POLL_SECONDS)
            _print(_at_least(found.read(), least), json=json)
    except KeyboardInterrupt:  # the way to end `-f`
        if not follow:
            raise
    except BrokenPipeError:  # `| head` has seen enough
        discard_output()


def _at_least(entries: Iterable[LogEntry], least: int) -> Iterator[LogEntry]:
    return (entry for entry in entries if _RANKS.get(entry.level, least) >= least)


def _print(entries: Iterable[LogEntry], *, json: bool) -> None:
    for entry in entries:
        if json:
            sys.stdout.write(_as_json(entry))
        elif sys.stdout.isatty():
            print_lines(_as_lines(entry))
        else:
            sys.stdout.writelines(f"{line}\n" for line in _as_lines(entry))
    sys.stdout.flush()


def _as_lines(entry: LogEntry) -> list[str]:
    from commitlog.text.lines import printable

    time = datetime.fromtimestamp(entry.time_ms / 1000).astimezone().isoformat(" ", "milliseconds")
    first, *more = entry.message.split("\n")
    return [
        f"{time} {entry.level:<7} {entry.stage:<10} {printable(first)}",
        *(f"    {printable(line)}" for line in more),
    ]


def _as_json(entry: LogEntry) -> str:
    from commitlog.text.lines import to_json

    time = datetime.fromtimestamp(entry.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    values = {"time": time.replace("+00:00", "Z"), "level": entry.level, "stage": entry.stage, "message": entry.message}
    return to_json(values).decode() + "\n"

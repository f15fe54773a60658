"""`commitlog health STORE`: whether a store does its work, for probes and for people."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.cli.arguments import ForShell, JsonOption, StoreArgument, duration, print_json, print_lines
from commitlog.errors import CommitLogError
from commitlog.text.lines import printable

if TYPE_CHECKING:
    from commitlog.watching.health import Health, HealthLimits, Reason
    from commitlog.watching.health_checks import Check

EXIT_CODES = {"good": 0, "degraded": 1, "down": 2}


def _time(said: str) -> Any:
    return typer.Option(parser=duration, metavar="TIME", show_default=False, help=said)


def health(
    store: StoreArgument,
    json: JsonOption = False,
    silent: Annotated[float, _time("Longest silence of a stage or of the supervisor.  [default: 5s]")] = 5.0,
    blocked: Annotated[float, _time("Longest wait of a producer for a write buffer.  [default: 1s]")] = 1.0,
    unflushed: Annotated[
        float,
        _time("Longest time from committed to flushed; larger than flusher.thorough_interval_ms.  [default: 30s]"),
    ] = 30.0,
    undispatched: Annotated[
        float, _time("Greatest age of a message that is not in the consume queues.  [default: 1m]")
    ] = 60.0,
    reader_behind: Annotated[
        int, typer.Option(metavar="N", min=0, help="Most messages that a named reader has not read; 0: no limit.")
    ] = 0,
    reader_still: Annotated[
        float, _time("Longest time that a named reader which is behind does not move.  [default: 1d]")
    ] = 86_400.0,
    full_percent: Annotated[
        int,
        typer.Option(
            metavar="PERCENT", min=1, max=100, help="Fullest disk or shared memory, where less than 4 GiB are free."
        ),
    ] = 95,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="A reason that does not count; may be given again.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say what was looked at: each value, and its limit.")
    ] = False,
) -> None:
    """Say whether STORE does its work, and if not, what to do.

        commitlog health data/events
        commitlog health data/events --reader-still 2h --ignore damage-noted
        commitlog health data/events --explain

    Exit code 0: good. 1: degraded, it runs and something needs your eyes. 2: down, or no store.
    """
    from commitlog.watching.health import HealthLimits

    limits = HealthLimits(
        silent_ms=int(silent * 1000),
        blocked_ms=int(blocked * 1000),
        unflushed_ms=int(unflushed * 1000),
        undispatched_ms=int(undispatched * 1000),
        reader_behind=reader_behind,
        reader_still_ms=int(reader_still * 1000),
        full_percent=full_percent,
        ignored=_codes(ignore or []),
    )
    found, checked = _look(store, limits)
    if json:
        print_json(as_json(store, found) | ({"checks": [asdict(check) for check in checked]} if explain else {}))
    else:
        if found.status == "good":
            print_lines([printable(f"good: {store}")])
        print_lines(line for reason in found.reasons for line in _lines(reason))
        print_lines(printable(_explained(check)) for check in checked if explain)
    raise typer.Exit(EXIT_CODES[found.status])


def _lines(reason: Reason) -> tuple[str, ...]:
    """A reason in one line. On a terminal its command has a line of its own, to be pasted."""
    head = f"{reason.severity} {reason.code}"
    if not sys.stdout.isatty():
        return (printable(f"{head}: {reason.said}"),)
    return printable(f"{head}: {reason.words}:"), ForShell(f"    {printable(reason.command)}")


def _explained(check: Check) -> str:
    """A check in one line."""
    limit = f"; a reason if {check.limit}" if check.limit else ""
    source = f" ({check.source})" if check.source else ""
    return f"{check.verdict} {', '.join(check.codes)}: {check.seen}{limit}{source}"


def _codes(names: list[str]) -> frozenset[str]:
    from commitlog.watching.health import CODES

    for name in names:
        if name not in CODES:
            raise typer.BadParameter(f"{name!r} is no reason; there are {', '.join(CODES)}", param_hint="--ignore")
    return frozenset(names)


def _look(store: Path, limits: HealthLimits) -> tuple[Health, tuple[Check, ...]]:
    from commitlog.watching.health import health, unreadable
    from commitlog.watching.health_checks import checks
    from commitlog.watching.snapshot import StoreWatch

    try:
        with StoreWatch(store, only_health=True) as watch:
            watch.view.directory.check_owner()  # another user, root too, sees no pool: the store would seem to start
            snapshot = watch.snapshot()
            return health(snapshot, limits), checks(snapshot, limits)
    except (CommitLogError, OSError) as error:
        return unreadable(error, store), ()


def as_json(store: Path, found: Health) -> dict[str, Any]:
    """What `--json` prints. docs/command-line.md has the fields."""
    return {"path": str(store.absolute()), **asdict(found)}

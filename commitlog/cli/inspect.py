"""`commitlog dump` and `commitlog verify`: look into a store of ours or RocketMQ's, change nothing.

The store may run or not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import STORE_VARIABLE, JsonOption, print_lines
from commitlog.cli.output import discard_output
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.quantities import counted

if TYPE_CHECKING:
    from commitlog.inspecting.verify import StoreReport

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="A store, one of its lanes, or a RocketMQ store root.",
        envvar=STORE_VARIABLE,
        readable=False,
    ),
]
_PROGRESS_NS = 1_000_000_000


def dump(
    directory: Directory,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a record, with RocketMQ's names.")] = False,
) -> None:
    """Print every good record, in the order of the log.

        commitlog dump data/events
        commitlog dump data/events/lanes/0 --json

    Damaged ranges are passed over; `commitlog verify` names them.
    """
    import orjson

    from commitlog.inspecting.dump import dump_records

    write = sys.stdout.buffer.write
    try:
        for record in dump_records(directory):
            if json:
                write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
                continue
            line = f"{record['physicOffset']} {record['topic']}/{record['queueId']}/{record['queueOffset']}"
            write(f"{line} {record['storeSize']} bytes, stored {record['storeTimestamp']} {record['msgId']}\n".encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # `| head` has seen enough
        discard_output()


def _progress() -> Callable[[int], None]:
    """Prints its progress on standard error, one line a second, but nothing in the first second."""
    last = SYSTEM_CLOCK.monotonic_ns()

    def tell(where: int) -> None:
        nonlocal last
        now = SYSTEM_CLOCK.monotonic_ns()
        if now - last >= _PROGRESS_NS:
            last = now
            typer.echo(f"verify is at {where / 1e6:,.0f} MB", err=True)

    return tell


def _lines(report: StoreReport) -> Iterator[str]:
    yield from report.findings
    for lane in report.lanes:
        name = lane.path if lane.lane is None else f"lane {lane.lane}"
        yield (
            f"{name}: {counted(lane.records, 'good record')}, {counted(lane.records_bytes, 'byte')}, "
            f"in [{lane.first:,}, {lane.end:,}); consume queue entries: {lane.entries:,}"
        )
        if lane.records_behind:
            yield (
                f"    behind its recorded end: {counted(lane.records_behind, 'record')}, "
                f"{counted(lane.bytes_behind, 'byte')}, which nobody reads; the next start of the store takes them in "
                f"or sets them aside"
            )
        yield from (f"    {found.file} at offset {found.offset}: {found.reason}" for found in lane.findings)
        if lane.findings_more:
            yield f"    and {lane.findings_more:,} more"


def verify(
    directory: Directory,
    json: JsonOption = False,
) -> None:
    """Check every record and every index entry; repair nothing.

        commitlog verify data/events
        commitlog verify data/events --json

    The exit code is 1 if anything is wrong.
    """
    from dataclasses import asdict

    from commitlog.inspecting.verify import verify_store
    from commitlog.text.lines import to_json

    report = verify_store(directory, progress=_progress())
    if json:
        typer.echo(to_json({"good": report.good, **asdict(report)}, indent=2))
    else:
        print_lines(_lines(report))
        typer.echo("good" if report.good else "NOT good")
    if not report.good:
        raise typer.Exit(1)

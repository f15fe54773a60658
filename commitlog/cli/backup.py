"""`commitlog backup STORE DEST`: copies what is new to a directory that can replace STORE."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import JsonOption, StoreArgument, print_json, print_lines
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.lines import can_draw, printable
from commitlog.text.quantities import counted

_PROGRESS_NS = 200_000_000
_ERASE_LINE = "\r\x1b[K"


def backup(
    store: StoreArgument,
    dest: Annotated[
        Path,
        typer.Argument(
            readable=False, metavar="DEST", help="Directory of the backup: a new one, or an earlier backup of STORE."
        ),
    ],
    verify_all: Annotated[
        bool, typer.Option("--verify-all", help="Check all of the backup at the end, not only what is new.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy what is new in STORE to DEST, also while it runs.

        commitlog backup data/events /mnt/backup/events

    DEST can be read, and opened as a store.
    Exit code 1 if anything is damaged.
    """
    from dataclasses import asdict

    from commitlog.backups.store_backup import backup as make_backup

    try:
        report = make_backup(store, dest, verify_all=verify_all, progress=_progress())
    finally:
        if can_draw(sys.stderr):
            typer.echo(_ERASE_LINE, nl=False, err=True)
    if json:
        print_json({"good": report.good, **asdict(report)})
    else:
        print_lines(printable(finding) for finding in report.findings)
        print_lines(
            [
                f"{report.destination}: {'good' if report.good else 'NOT good'}, "
                f"{counted(report.copied_messages, 'message')} and {counted(report.copied_bytes, 'byte')} copied from "
                f"{counted(report.lanes, 'lane')}, {counted(report.removed_segments, 'old segment')} removed"
            ]
        )
    if not report.good:
        raise typer.Exit(1)


def _progress() -> Callable[[int], None]:
    """Shows on a terminal how much is copied, in one line that it writes again and again."""
    last = SYSTEM_CLOCK.monotonic_ns()
    is_shown = can_draw(sys.stderr)

    def tell(copied: int) -> None:
        nonlocal last
        now = SYSTEM_CLOCK.monotonic_ns()
        if is_shown and now - last >= _PROGRESS_NS:
            last = now
            typer.echo(f"{_ERASE_LINE}{copied / 1e6:,.0f} MB copied", nl=False, err=True)

    return tell

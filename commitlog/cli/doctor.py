"""`commitlog doctor [STORE]`: checks this machine, this Python, Spark's surroundings, a store."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import commitlog
from commitlog.cli.arguments import STORE_VARIABLE, JsonOption, print_json
from commitlog.text.lines import printable

if TYPE_CHECKING:
    from commitlog.doctor.finding import Finding

_COLUMNS = 80
_SIGNS = {"good": "✓", "note": "!", "problem": "✗"}


def doctor(
    store: Annotated[
        Path | None,
        typer.Argument(metavar="STORE", help="Directory of a store.", envvar=STORE_VARIABLE, readable=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check what a store and Spark need here; repair nothing.

        commitlog doctor
        commitlog doctor data/events

    Exit code 1 if there is a problem, such as a STORE that is not there. The disk where it would be
    is looked at all the same.
    """
    from commitlog.disk.store_directory import checked_path
    from commitlog.doctor.checks import examine
    from commitlog.doctor.finding import Surroundings

    findings = list(examine(Surroundings(checked_path(store) if store else None)))
    counts = Counter(finding.severity for finding in findings)
    if json:
        print_json(
            {
                "commitlog": commitlog.__version__,
                "store": str(checked_path(store)) if store else None,
                "problems": counts["problem"],
                "notes": counts["note"],
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        for line in _lines(findings):
            typer.echo(line)
        typer.echo(f"problems: {counts['problem']}, notes: {counts['note']}")
    if counts["problem"]:
        raise typer.Exit(1)


def _lines(findings: list[Finding]) -> Iterator[str]:
    """Each finding with a sign in front, and its remedy below, in lines of 80 columns."""
    has_signs = sys.stdout.isatty() and sys.stdout.encoding.lower() == "utf-8"
    signs = _SIGNS if has_signs else {severity: f"{severity:7}" for severity in _SIGNS}
    for finding in findings:
        sign = signs[finding.severity]
        margin = " " * (len(sign) + 1)
        yield from _wrapped(finding.text, f"{sign} ", margin)
        if finding.remedy:
            yield from _wrapped(finding.remedy, f"{margin}→ " if has_signs else f"{margin}> ", f"{margin}  ")


def _wrapped(text: str, first: str, margin: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=margin,
        break_long_words=False,  # a path stays whole
        break_on_hyphens=False,
    )

"""What several commands have in common: the argument STORE, and how JSON is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commitlog.lines import to_json

STORE_VARIABLE = "COMMITLOG_STORE"

StoreArgument = Annotated[Path, typer.Argument(help="Directory of the store.", envvar=STORE_VARIABLE)]
"""A store that must be there. Without the argument it is the one that the variable names."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object, indented: what `--json` gives in every command."""
    typer.echo(to_json(values, indent=2))

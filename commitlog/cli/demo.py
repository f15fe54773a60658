"""`commitlog demo`: what this package does, to look at for two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import duration


def demo(
    seconds: Annotated[float, typer.Option(parser=duration, metavar="TIME", help="How long, as in 90 or 10m.")] = 120.0,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make the store here, and keep it.  [default: in a folder that is removed]"),
    ] = None,
    notebook: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the demo as a notebook of Jupyter, and run nothing.")
    ] = None,
) -> None:
    """Show it at work: producers, live tables, and keys that kill.

        commitlog demo
        commitlog demo --notebook demo.ipynb

    Three processes send rows. Polars counts them in the log, and Spark in its stream. A key kills a
    producer or a stage with `kill -9`, and the screen says what becomes of it. At the end each row
    that was accepted is looked for. The exit code is 1 if one is lost or double.
    """
    if notebook is not None:
        if store is not None:
            raise typer.BadParameter("--notebook runs nothing, and goes without --store")
        from commitlog.demo.notebook_file import write

        write(notebook)
        typer.echo(f"{notebook} is written; run it with: jupyter lab {notebook}")
        return
    from commitlog.demo import check_packages

    check_packages()
    from commitlog.demo.show import show

    raise typer.Exit(0 if show(seconds, store) else 1)

"""`commitlog ingest`: the options of the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlog.errors import IngestError


def ingest(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="More files for --input.", show_default=False)
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="FILE", help="Send the lines of files instead; - is stdin. Repeatable."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep tailing the files, through rotation and truncation.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="How long to send.  [default: 60; with --input until the input is read, with --follow until Ctrl-C]",
            show_default=False,
        ),
    ] = None,
    producers: Annotated[int, typer.Option(help="Producer processes; with --input at most one a file.")] = 2,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Messages/s of each producer; 0 is as fast as it goes.  [default: 2000; with --input 0]",
            show_default=False,
        ),
    ] = None,
    store: Annotated[Path | None, typer.Option(help="The store.  [default: commitlog-runs/<date-time>/store]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Parquet, spark.log, report.  [default: commitlog-runs/<date-time>/out]")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="The report as JSON, its picture beside it.  [default: OUT/report.json]")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The store's configuration, a TOML file.")] = None,
) -> None:
    """The main job: processes send, Spark makes a live table and Parquet, a verdict counts all.

    Without --input the machine itself is the input: CPU, memory, disks, networks and all processes.
    --seconds count from the moment Spark is ready. Ctrl-C drains and stops; a second one stops
    without draining.
    """
    from commitlog.ingest.run import run
    from commitlog.ingest.settings import choose

    if more and not input_:
        raise IngestError(f"{more[0]}: to send the lines of files, say --input {' '.join(more)}")
    settings = choose(
        inputs=[*(input_ or []), *(more or [])],
        follow=follow,
        seconds=seconds,
        producers=producers,
        rate=rate,
        store=store,
        out=out,
        report=report,
        config=config,
    )
    raise typer.Exit(run(settings))

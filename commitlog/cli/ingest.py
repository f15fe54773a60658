"""`commitlog ingest`: the options of the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import duration
from commitlog.errors import IngestError

SecondsOption = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        metavar="TIME",
        help="How long, as in 90 or 10m.  [default: 60; with --input until it is read, with --follow until Ctrl-C]",
        show_default=False,
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        help="Messages/s of each producer; 0 is as fast as it goes.  [default: 2000; with --input 0]",
        show_default=False,
    ),
]


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
    skip_long: Annotated[
        bool, typer.Option("--skip-long", help="Pass over lines that are too long, and count them.")
    ] = False,
    seconds: SecondsOption = None,
    producers: Annotated[
        int, typer.Option(metavar="N", help="Producer processes; with --input at most one a file.")
    ] = 2,
    rate: RateOption = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The store.  [default: commitlog-runs/<date-time>/store]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Parquet, spark.log, report.  [default: commitlog-runs/<date-time>/out]"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The report as JSON, picture and page beside it.  [default: OUT/report.json]"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The store's configuration, a TOML file.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Spark reads from a server of the store, by its URL.")] = False,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Spark gets each message as it comes, not in micro-batches.")
    ] = False,
) -> None:
    """The main job: send, stream into Spark and Parquet, count all.

        commitlog ingest --seconds 10m
        commitlog ingest --input app.log --follow --out tables/app

    Without --input the machine itself is the input: CPU, memory, disks, networks and all processes.
    --seconds count from the moment Spark is ready. Ctrl-C drains and stops; a second one stops
    without draining.
    """
    from commitlog.ingest.run import run
    from commitlog.ingest.run_settings import choose

    if more and not input_:
        raise IngestError(f"{more[0]}: to send the lines of files, say --input {' '.join(more)}")
    settings = choose(
        inputs=[*(input_ or []), *(more or [])],
        follow=follow,
        skip_long=skip_long,
        seconds=seconds,
        producers=producers,
        rate=rate,
        store=store,
        out=out,
        report=report,
        config=config,
        serve=serve,
        real_time=real_time,
    )
    raise typer.Exit(run(settings))

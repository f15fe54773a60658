"""`commitlog profile STAGE`: where the time of a stage goes, as a flame graph and a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import duration, size
from commitlog.shm.layout import ALL_STAGES, HA_SERVICE, STAGES

if TYPE_CHECKING:
    from commitlog.inspecting.profiling import Profile


def profile(
    stage: Annotated[
        str, typer.Argument(metavar="STAGE", help=f"{', '.join(STAGES)}; with --store also {HA_SERVICE}.")
    ],
    store: Annotated[
        Path | None,
        typer.Option(readable=False, metavar="DIR", help="A running store; without it the stage is run alone."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="TIME", show_default=False, help="How long to look, from 1s to 1d.  [default: 10s]"
        ),
    ] = 10.0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for profile-STAGE.svg.", file_okay=False, writable=True)
    ] = Path(),
    segment_bytes: Annotated[
        int,
        typer.Option(
            parser=size,
            metavar="SIZE",
            show_default=False,
            help="Segment size of a stage run alone, as in 64MiB.  [default: 64MiB]",
        ),
    ] = 1 << 26,
    body_bytes: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="Body size of a stage run alone, as in 1KiB.")
    ] = 100,
) -> None:
    """Show where the time of a stage goes: a flame graph and a table.

        commitlog profile committer
        commitlog profile flusher --store data/events --seconds 30s

    With --store it attaches to the stage of a running store, which slows that down a little.
    Without it, the stage works on prepared input with no other process beside it.
    """
    from commitlog.disk.file_channel import DISK
    from commitlog.inspecting.flame_graph import flame_graph
    from commitlog.inspecting.profiling import profile_alone, profile_running

    if not 1 <= seconds <= 86_400:
        raise typer.BadParameter(f"--seconds {seconds:g}: allowed are times from 1s to 1d")
    if store is not None and (segment_bytes, body_bytes) != (1 << 26, 100):
        raise typer.BadParameter("--segment-bytes and --body-bytes are for a stage run alone: they go without --store")
    stages = STAGES if store is None else ALL_STAGES
    if stage not in stages:
        raise typer.BadParameter(f"no stage {stage}; there are {', '.join(stages)}")
    try:
        DISK.create_directory(out)
    except OSError as error:
        raise typer.BadParameter(f"--out {out}: {error.strerror}") from None
    picture, draft = out.absolute() / f"profile-{stage}.svg", out.absolute() / f".profile-{stage}.raw"
    if store is not None:
        found = profile_running(store, stage, seconds, draft)
    else:
        room = out.absolute() / f"profile-{stage}-store"
        found = profile_alone(stage, seconds, room, draft, segment_bytes, body_bytes)
    title, subtitle = f"commitlog {stage}", f"{found.where}, {found.clocks.wall:.1f} s; grey: waits for something to do"
    DISK.replace_file(picture, flame_graph(title, subtitle, found.stacks, found.asleep).encode())
    typer.echo("\n".join(describe(found)))
    typer.echo(f"\nflame graph: {picture}")


def describe(found: Profile) -> list[str]:
    """The tables, line by line."""
    clocks = found.clocks
    waiting = max(clocks.wall - clocks.user - clocks.system, 0.0)
    lines = [f"{found.stage}, {found.where}", "", f"{'where the time went':<44} seconds    share"]
    rows = (
        ("Python and C", clocks.user),
        ("system calls, on a core", clocks.system),
        ("waiting: for the disk, a wakeup, a core", waiting),
    )
    lines += [f"  {name:<42} {value:>7.2f}  {value / clocks.wall:>6.1%}" for name, value in rows]
    lines += [
        f"  {clocks.switches:,} times switched away",
        "",
        f"{'innermost function, while not asleep':<68}    share",
    ]
    lines += [f"  {name:<66}  {share:>6.1%}" for name, share in found.functions()]
    if found.system_calls:
        lines += ["", "system calls by the clock, traced apart from the above", *(f"  {c}" for c in found.system_calls)]
    lines += ["", "counters"]
    lines += [f"  {name:<42} {value:>15,.0f}" for name, value in found.counters.items()]
    return lines

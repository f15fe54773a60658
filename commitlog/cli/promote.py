"""`commitlog promote DIR`: makes a replica the store."""

from __future__ import annotations

import typer

from commitlog.cli.arguments import print_lines
from commitlog.cli.replica import ReplicaArgument, VerifyAllOption
from commitlog.text.lines import for_shell


def promote(directory: ReplicaArgument, verify_all: VerifyAllOption = False) -> None:
    """Make a replica a store, because its primary is gone.

        commitlog promote data/copy

    End `commitlog replica` before, and make sure that the primary does not run: nothing here
    decides that by itself.
    """
    from commitlog.replicas.promotion import promote as make_store
    from commitlog.text.lines import printable

    made = make_store(directory, lambda line: print_lines([printable(line)], err=True), verify_all=verify_all)
    for lane, end in made.ends.items():
        typer.echo(f"lane {lane} ends at {end:,}")
    print_lines([f"{made.path} is a store now, epoch {made.epoch}; `commitlog run {for_shell(made.path)}` starts it"])

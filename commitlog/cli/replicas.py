"""`commitlog replicas STORE`: shows the replicas of a store; forgets one that is gone for good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from commitlog.cli.arguments import JsonOption, StoreArgument, print_json, print_lines
from commitlog.disk.replica_files import ReplicaState
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.quantities import counted

REPLICA_HEADS = ("replica", "state", "in sync", "behind", "for", "sent MB", "MB/s", "connects")


def replicas(
    store: StoreArgument,
    json: JsonOption = False,
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NAME", help="Keep nothing for this replica any more.")
    ] = None,
) -> None:
    """List the replicas of STORE, and how far each is behind; forget one.

        commitlog replicas data/events
        commitlog replicas data/events --forget standby

    A replica that is forgotten and comes again is a new one.
    """
    from commitlog.disk.replica_files import forget_replica, known_replicas
    from commitlog.disk.store_directory import StoreDirectory

    if forget is not None and json:
        raise typer.BadParameter("give one of --forget and --json")
    directory = StoreDirectory(store)
    directory.load()
    if forget is not None:
        forget_replica(directory, forget)
        print_lines([f"forgot replica {forget}: nothing is kept for it any more"])
        return
    found = known_replicas(directory)
    if json:
        print_json({"replicas": [as_json(state) for state in found]})
    else:
        print_lines(lines(found) if found else ("no replicas; [replication] of the configuration lets them come",))


def as_json(state: ReplicaState) -> dict[str, Any]:
    """A replica as the commands' JSON has it."""
    values = asdict(state)
    del values["store_id"]
    now = SYSTEM_CLOCK.wall_ms()
    acknowledged = [{"lane": lane, "where": where} for lane, where in sorted(state.acknowledged.items())]
    return {
        **values,
        "acknowledged": acknowledged,
        "state": state.state,
        "behind_ms": state.behind_ms(now),
    }


def lines(replicas: Iterable[ReplicaState]) -> Iterator[str]:
    """Two lines for each replica: its state, and how far it has each lane."""
    now = SYSTEM_CLOCK.wall_ms()
    for state in replicas:
        behind = (
            f"{counted(state.behind_bytes, 'byte')} behind for {state.behind_ms(now):,} ms"
            if state.behind_bytes
            else ""
        )
        yield (
            f"replica {state.name}: {state.state} ({state.address}), {behind or 'has everything'}, "
            f"in sync in {counted(len(state.in_sync), 'lane')}, {counted(state.connects, 'connect')}, "
            f"{state.sent_bytes / 1e6:,.3f} MB sent, {state.sent_bytes_per_second / 1e6:,.3f} MB/s"
        )
        for lane, where in sorted(state.acknowledged.items()):
            yield f"    lane {lane}: acknowledged up to {where:,}{', in sync' if lane in state.in_sync else ''}"
        if state.refusal:
            yield f"WARNING: replica {state.name} was refused: {state.refusal}"


def replica_rows(replicas: Iterable[ReplicaState]) -> Iterator[tuple[str, ...]]:
    """Cells for REPLICA_HEADS: a row for each replica."""
    now = SYSTEM_CLOCK.wall_ms()
    for state in replicas:
        yield (
            state.name,
            state.state,
            f"{len(state.in_sync)} of {len(state.acknowledged)}",
            f"{state.behind_bytes:,}",
            f"{state.behind_ms(now):,} ms",
            f"{state.sent_bytes / 1e6:,.3f}",
            f"{state.sent_bytes_per_second / 1e6:,.3f}",
            f"{state.connects:,}",
        )

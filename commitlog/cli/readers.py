"""`commitlog readers STORE`: shows named readers and where they are; moves or drops one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import JsonOption, StoreArgument, print_json, print_lines
from commitlog.cli.completion import readers_of
from commitlog.reading.reader_states import ReaderState
from commitlog.text.lines import printable
from commitlog.text.quantities import counted
from commitlog.watching.store_facts import reader_as_json

_STEPS = ((172_800_000, 86_400_000, "day"), (7_200_000, 3_600_000, "hour"), (120_000, 60_000, "minute"))


def readers(
    store: StoreArgument,
    json: JsonOption = False,
    remove: Annotated[
        str | None,
        typer.Option(
            "--remove",
            metavar="NAME",
            help="Drop this reader: nothing is kept for it.",
            autocompletion=readers_of,
        ),
    ] = None,
    seek: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--seek",
            metavar="NAME TO",
            help="Move a reader of Python that does not run: to earliest, latest, 'last 100', '10 minutes ago', an ISO "
            'time, or offsets such as \'{"orders": {"0": 42}}\'. Queues that the offsets do not name stay.',
        ),
    ] = None,
) -> None:
    """List the named readers of STORE; move or drop one.

        commitlog readers data/events
        commitlog readers data/events --seek billing "10 minutes ago"

    These are `Reader(name=…)` of Python, and Spark's streams with option readerName.
    """
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.reading.named_readers import NamedReaders

    if [remove is None, seek is None, not json].count(False) > 1:
        raise typer.BadParameter("give one of --remove, --seek and --json")
    if remove is not None:
        directory = StoreDirectory(store)
        directory.load()
        NamedReaders(directory).remove(remove)
        print_lines([f"removed reader {remove}: nothing is kept for it any more"])
        return
    if seek is not None:
        _seek(store, *seek)
        return
    states = _states(store)
    if json:
        print_json({"readers": [reader_as_json(state) for state in states]})
        return
    print_lines(_lines(states))


def _seek(store: Path, name: str, to: str) -> None:
    from commitlog.reading.reader_position import seek
    from commitlog.reading.topic_index import current_index
    from commitlog.reading.view import StoreView

    with current_index(StoreView(store)) as index:
        reader = seek(index, name, to)
        behind = sum(sum(lanes.values()) for lanes in reader.lag(index).values())
    print_lines([f"moved reader {name}: it is {counted(behind, 'message')} behind now"])


def _states(store: Path) -> list[ReaderState]:
    from commitlog.reading.reader_states import reader_states
    from commitlog.reading.topic_index import current_index
    from commitlog.reading.view import StoreView

    with current_index(StoreView(store)) as index:
        return reader_states(index)


def summary(state: ReaderState) -> str:
    """How far behind a reader is, in one line."""
    if state.lag is None:
        return f"{state.name}: its position can't be read"
    running = ", in use" if state.running else ""
    host = f", from {printable(state.host)}" if state.host else ""
    return f"{state.name}: {counted(state.behind, 'message')} behind, moved {_time(state.still_ms)} ago{running}{host}"


def _time(ms: int) -> str:
    for least, unit, name in _STEPS:
        if ms >= least:
            return counted(ms // unit, name)
    return counted(ms // 1000, "second")


def _lines(states: list[ReaderState]) -> Iterator[str]:
    if not states:
        yield "no named readers; a Reader with a name is one, and a Spark stream with option readerName"
    for state in states:
        yield summary(state)
        for topic, lanes in (state.lag or {}).items():
            for lane, behind in lanes.items():
                at = ((state.offsets or {}).get(topic) or {}).get(lane, 0)
                yield f"    {topic}, lane {lane}: at {at:,}, {behind:,} behind"
        if state.warning:
            yield f"WARNING: {state.warning}"

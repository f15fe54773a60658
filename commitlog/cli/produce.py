"""`commitlog produce STORE TOPIC [FILE…]`: one message a line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from commitlog.errors import CommitLogError, StoreNotFound, StoreNotRunning


class InputError(CommitLogError):
    """An input file can't be read."""


def produce(
    store: Annotated[Path, typer.Argument(help="Directory of the store; made if it is missing.")],
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files to send line by line; - or none: standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
    tags: Annotated[str | None, typer.Option(help="Tags of every message.")] = None,
) -> None:
    """Send each line of the FILEs as a message, and return when all of them are on disk.

    Where the stages of STORE are not running, they run for as long as this command does.
    """
    from commitlog.producer import Producer
    from commitlog.store import Store

    names = files or ["-"]
    for name in names:
        if name != "-" and not Path(name).is_file():
            raise InputError(f"{name}: no such file; nothing was sent")
    with contextlib.ExitStack() as stack:
        try:
            producer = stack.enter_context(Producer(store))
        except (StoreNotFound, StoreNotRunning):
            stack.enter_context(Store.open(store))
            producer = stack.enter_context(Producer(store))
        sent = 0
        try:
            for line in _lines(names):
                producer.send(topic, line, key, tags, wait=False)
                sent += 1
        except (CommitLogError, OSError) as error:
            producer.flush()
            raise InputError(f"stopped after {sent:,} messages, which are on disk: {error}") from error
        producer.flush()
    typer.echo(f"{sent:,} messages sent to {topic}, all on disk", err=True)


def _lines(names: list[str]) -> Iterator[bytes]:
    for name in names:
        if name == "-":
            yield from _split(sys.stdin.buffer)
        else:
            with open(name, "rb") as file:
                yield from _split(file)


def _split(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        yield line.removesuffix(b"\n")

"""`commitlog produce STORE TOPIC [FILE…]`: one message a line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.errors import CommitLogError, StoreNotFound, StoreNotRunning
from commitlog.lines import LineSplitter, why_unreadable

if TYPE_CHECKING:
    from commitlog.producer import Producer

_READ_BYTES = 1 << 18


class InputError(CommitLogError):
    """An input file can't be read, or a line of it can't be sent."""


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
    from commitlog.record.properties import check_topic, encode_properties
    from commitlog.store import Store

    names = files or ["-"]
    for name in names:
        reason = None if name == "-" else why_unreadable(name)
        if reason:
            raise InputError(f"{name}: {reason}; nothing was sent")
    # Raises for a bad topic, key or tags before anything is made.
    overhead = len(check_topic(topic)) + len(encode_properties(key, tags, None)) + 128
    with contextlib.ExitStack() as stack:
        try:
            producer = stack.enter_context(Producer(store))
        except (StoreNotFound, StoreNotRunning):
            stack.enter_context(Store.open(store))
            producer = stack.enter_context(Producer(store))
        sent = 0
        try:
            for lines in _batches(names, producer, overhead):
                producer.send_batch(topic, lines, key=key, tags=tags)
                sent += len(lines)
        except (CommitLogError, OSError) as error:
            producer.flush()
            raise InputError(f"stopped after {sent:,} lines, all of which are on disk: {error}") from error
        producer.flush()
    typer.echo(f"{sent:,} messages sent to {topic}, all on disk", err=True)


def _batches(names: list[str], producer: Producer, overhead: int) -> Iterator[list[bytes]]:
    """The lines as they arrive, in batches that fit into a segment.

    A line that is too large for a batch is alone in its batch.
    """
    for name in names:
        batch: list[bytes] = []
        size = 0
        for chunk in _lines_as_they_come(name, producer.message_bytes_max):
            for line in chunk:
                if batch and size + len(line) + overhead > producer.message_bytes_max:
                    yield batch
                    batch, size = [], 0
                batch.append(line)
                size += len(line) + overhead
            if batch:
                yield batch
                batch, size = [], 0


def _lines_as_they_come(name: str, longest: int) -> Iterator[list[bytes]]:
    """The lines that each read of a file or of standard input completes.

    The last line may lack its newline. Raises MessageTooLarge for a line of more than `longest`
    bytes.
    """
    splitter = LineSplitter("standard input" if name == "-" else name, longest)
    fd = 0 if name == "-" else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while data := os.read(fd, _READ_BYTES):
            yield splitter.feed(data)
        yield splitter.end()
    finally:
        if fd:
            os.close(fd)

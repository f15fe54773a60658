"""`commitlog cat STORE`: prints the messages of a live or stopped store, or of a RocketMQ root."""

from __future__ import annotations

import base64
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from commitlog.message import Message


class Format(StrEnum):
    value = "value"
    json = "json"


class Isolation(StrEnum):
    flushed = "flushed"
    committed = "committed"


def cat(
    store: Annotated[Path, typer.Argument(help="Directory of the store, or a RocketMQ store root.")],
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be given again.")] = None,
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, 'last 100', '10 minutes ago', an ISO time, or an offset."),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
    form: Annotated[
        Format, typer.Option("--format", help="Values a line each, or one JSON object a message.")
    ] = Format.value,
    isolation: Annotated[Isolation, typer.Option(help="How far to read.")] = Isolation.flushed,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Go on behind damaged records, and count them at the end.")
    ] = False,
) -> None:
    """Print the messages of STORE."""
    from commitlog.errors import CommitLogError
    from commitlog.reader import Reader

    out = sys.stdout.buffer
    try:
        with Reader(
            store,
            topic or None,
            start=start,
            follow=follow,
            isolation=isolation.value,
            ignore_corrupt=skip_corrupt,
        ) as reader:
            for message in reader:
                out.write(_as_json(message) if form is Format.json else message.value + b"\n")
                if follow:
                    out.flush()
        out.flush()
    except (KeyboardInterrupt, CommitLogError) as error:  # first print the good messages before it
        out.flush()
        if isinstance(error, CommitLogError):
            raise
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_json(message: Message) -> bytes:
    import orjson

    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": message.key,
        "tags": message.tags,
        "headers": message.headers,
        "message_id": message.message_id,
    }
    try:
        fields["value"] = message.value.decode("utf-8")
    except UnicodeDecodeError:
        fields["value_base64"] = base64.b64encode(message.value).decode()
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

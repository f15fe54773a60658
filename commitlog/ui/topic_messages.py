"""Messages of one topic for the page: a few at a time, from an offset or a time on."""

from __future__ import annotations

import base64
import os
from typing import Any

from commitlog.message import Message
from commitlog.reader import Reader

COUNT_MAX = 200
"""Most messages of one answer."""
VALUE_BYTES_MAX = 4096
"""What an answer shows of a value. The rest is left to `commitlog cat`."""


def messages(
    path: str | os.PathLike[str], topic: str, start: str, partition: int | None, count: int
) -> list[dict[str, Any]]:
    """Up to `count` messages from `start` on, in the words of `Reader(start=)`.

    `partition` chooses one; None takes all. Raises what Reader raises.
    """
    lanes = None if partition is None else {partition}
    with Reader(path, topic, start=start, lanes=lanes) as reader:
        return [_shown(message) for message, _ in zip(reader, range(min(count, COUNT_MAX)), strict=False)]


def _shown(message: Message) -> dict[str, Any]:
    part = message.value[:VALUE_BYTES_MAX]
    shown: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": message.key,
        "tags": message.tags,
        "headers": message.headers,
        "bytes": len(message.value),
    }
    try:
        shown["value"] = part.decode()
    except UnicodeDecodeError as error:
        if len(part) < len(message.value) and error.start > len(part) - 4:  # cut off within a character
            shown["value"] = part[: error.start].decode()
        else:
            shown["value_base64"] = base64.b64encode(part).decode()
    return shown

"""The option `--where` of `commitlog cat`: which messages it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from commitlog.message import Message


def where_condition(text: str) -> Callable[[Message], bool]:
    """What `--where KEY=VALUE` asks for: `key`, `tags`, or a header. Raises typer.BadParameter."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--where {text!r}: write key=VALUE, tags=VALUE or HEADER=VALUE")
    if name == "key":
        return lambda message: message.key == value
    if name == "tags":
        return lambda message: message.tags == value
    return lambda message: message.headers.get(name) == value

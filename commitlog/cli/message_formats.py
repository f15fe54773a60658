"""How `commitlog cat` writes a message: its value, a JSON object, or a line of your own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from commitlog.text.lines import for_terminal

if TYPE_CHECKING:
    from commitlog.message import Message

Write = Callable[["Message"], bytes]


def _key(message: Message) -> bytes | None:
    from commitlog.record.properties import BytesKey

    key = message.key
    if key is None:
        return None
    return key.data if isinstance(key, BytesKey) else key.encode()


_PIECE = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|.", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
_FIELDS: dict[str, Write] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "k": lambda message: _key(message) or b"",
    "K": lambda message: b"%d" % (-1 if (key := _key(message)) is None else len(key)),
    "s": lambda message: message.value,
    "S": lambda message: b"%d" % len(message.value),
    "T": lambda message: b"%d" % message.timestamp,
    "h": lambda message: ",".join(f"{name}={value}" for name, value in message.headers.items()).encode(),
    "g": lambda message: (message.tags or "").encode(),
    "%": lambda message: b"%",
}
"""kcat's letters, and `g` for tags. A key that is not there is empty, and its size −1."""


def as_value(message: Message) -> bytes:
    """The value and a line end."""
    return message.value + b"\n"


def as_line_of_json(message: Message) -> bytes:
    """One JSON object on a line: see `Message.to_json`."""
    from commitlog.message import as_json

    return as_json(message) + b"\n"


def format_of(text: str, *, terminal: bool = False) -> Write:
    """What `--format` asks for; of messages, a `terminal` gets nothing that it would obey.

    Raises typer.BadParameter.
    """
    if text in ("value", "json"):
        write = as_value if text == "value" else as_line_of_json
        return _escaped(write) if terminal else write
    if "%" not in text:
        raise typer.BadParameter(f"--format {text!r}: allowed are value, json, or a text with % as in '%t %k %s\\n'")
    pieces = [_piece(found) for found in _PIECE.finditer(text)]
    if terminal:
        pieces = [piece if isinstance(piece, bytes) else _escaped(piece) for piece in pieces]
    return lambda message: b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)


def _escaped(write: Write) -> Write:
    return lambda message: for_terminal(write(message))


def unescaped(text: str, option: str) -> bytes:
    """A text in which \\t, \\n, \\x41 stand for what they name. Raises typer.BadParameter."""

    def character(found: re.Match[str]) -> bytes:
        _, code, escape, _ = found.groups()
        if code is not None:
            return bytes.fromhex(code)
        if escape is not None and escape not in _ESCAPES:
            raise typer.BadParameter(f"{option}: {found[0]!r} is not known; there are \\n \\r \\t \\0 \\\\ \\x41")
        return _ESCAPES[escape] if escape is not None else found[0].encode(errors="surrogateescape")

    return b"".join(map(character, _PIECE.finditer(text)))


def _piece(found: re.Match[str]) -> bytes | Write:
    field, code, escape, plain = found.groups()
    if plain is not None:
        return plain.encode(errors="surrogateescape")
    if code is not None:
        return bytes.fromhex(code)
    if field in _FIELDS:
        return _FIELDS[field]
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    raise typer.BadParameter(
        f"--format: {found[0]!r} is not known; there are %{' %'.join(_FIELDS)} and \\n \\r \\t \\0 \\\\ \\x41"
    )

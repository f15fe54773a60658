"""Small JSON files with a checksum, so that a flipped bit never changes what a file says.

    {"lane": 0, "store": "…", "topics": {"orders": {"before": 42}}, "crc32": "3b1f2c4d"}

The last field, `crc32`, is the CRC-32 of the document without it, in the form that orjson writes
without spaces. So spaces and line ends don't count. All else does.

Older packages wrote no checksum. A file without one is believed if it has no other fields than they
knew: a bit that is flipped in the name `crc32` makes a field that nobody knew. Where the field is
not the last one, it does not count. Then an older package has written `store.json` again: it keeps
the fields that it does not know, and puts them before its own.

Whoever changes such a file by hand takes the field `crc32` out. The next write puts it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from commitlog.record.crc import crc32

FIELD = "crc32"
_OPTIONS = orjson.OPT_NON_STR_KEYS


def to_checked_json(values: Mapping[str, Any], *, indented: bool = False) -> bytes:
    """The text of a document, with its checksum and a line end."""
    option = _OPTIONS | (orjson.OPT_INDENT_2 if indented else 0)
    return orjson.dumps({**values, FIELD: _checksum(values)}, option=option) + b"\n"


def from_checked_json(data: bytes, known: Collection[str]) -> dict[str, Any]:
    """The document of a text, without its checksum.

    `known` are the fields that a document without a checksum may have. Raises ValueError for what
    is no document, and for a checksum that does not match.
    """
    values = orjson.loads(data)
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    is_last = next(reversed(values), None) == FIELD
    said = values.pop(FIELD, None)
    if is_last and said != _checksum(values):
        raise ValueError(f"its {FIELD} does not match: it is damaged, or was changed by hand (then take {FIELD} out)")
    if said is None and (unknown := values.keys() - known):
        raise ValueError(f"it has no {FIELD}, and a field that is not known: {min(unknown)!r:.80}")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return f"{crc32(orjson.dumps(values, option=_OPTIONS)):08x}"

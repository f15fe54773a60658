"""Readers that the store knows by name, and how far each has come: `STORE/readers/<name>.json`.

    {"name": "billing", "store": "<store id>", "moved_ms": 1790000000000, "offsets": {"orders": {"0": 42, "1": 7}}}

An offset is the queue offset of the next message that the reader needs of a topic in a lane. A lane that a topic has no
offset for counts as 0: the reader has not seen anything of it yet. Retention keeps what a registered reader needs, so
one that is gone for good has to be removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from commitlog.errors import ReaderError
from commitlog.store_directory import StoreDirectory

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class RegisteredReader:
    """Where a reader is. `offsets`: topic → lane → next queue offset; `moved_ms`: wall time of its last progress."""

    name: str
    store_id: str
    offsets: Mapping[str, Mapping[int, int]]
    moved_ms: int

    def offset(self, topic: str, lane: int) -> int | None:
        """The next queue offset it needs; None where it does not read the topic."""
        lanes = self.offsets.get(topic)
        return None if lanes is None else lanes.get(lane, 0)


class RegisteredReaders:
    """The readers of one store."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory, self.channel = directory, directory.channel

    def names(self) -> list[str]:
        """Names of all registered readers, sorted."""
        files = self.channel.list(self.directory.readers_directory)
        return [name for file in files if (name := file.removesuffix(".json")) != file and _NAME.fullmatch(name)]

    def load(self, name: str) -> RegisteredReader:
        """Raises ReaderError for a file that says no reader's position, FileNotFoundError."""
        path = self._path(name)
        data = self.channel.read_file(path, _FILE_BYTES_MAX)
        try:
            values = orjson.loads(data)
            offsets = {
                topic: {int(lane): int(offset) for lane, offset in lanes.items()}
                for topic, lanes in values["offsets"].items()
            }
            return RegisteredReader(name, str(values["store"]), offsets, int(values["moved_ms"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReaderError(
                f"{path}: not the position of a reader ({error!r}); remove the file if that reader is gone"
            ) from error

    def save(self, reader: RegisteredReader) -> None:
        """Registers a reader or moves it, durably: whoever looks sees the old position or the new."""
        self.channel.create_directory(self.directory.readers_directory)
        values = {
            "name": reader.name,
            "store": reader.store_id,
            "moved_ms": reader.moved_ms,
            "offsets": {
                topic: {str(lane): offset for lane, offset in sorted(lanes.items())}
                for topic, lanes in sorted(reader.offsets.items())
            },
        }
        self.channel.replace_file(self._path(reader.name), orjson.dumps(values) + b"\n")

    def remove(self, name: str) -> None:
        """Forgets a reader: nothing is kept for it any more. Raises FileNotFoundError."""
        self.channel.unlink(self._path(name))
        self.channel.sync_directory(self.directory.readers_directory)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ReaderError(
                f"{name!r} is no reader's name: letters, digits, _ . and -, 100 at most, not . or - first"
            )
        return self.directory.readers_directory / f"{name}.json"

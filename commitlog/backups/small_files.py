"""The small files of a store that belong to a copy of it: schemas, deletions, named readers.

Backups copy them from one directory to another, and the HAService sends them to replicas. A file
has a name below the store's directory, such as `topics/orders/1.json`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from commitlog.disk.quarantine import corruption_range
from commitlog.disk.schema_versions import last_deleted, schema_values
from commitlog.disk.store_directory import DELETED_FILE, StoreDirectory
from commitlog.disk.trim_marks import trim_marks
from commitlog.errors import CommitLogError
from commitlog.reading.named_readers import NamedReaders

_BYTES_MAX = 64 << 20
_NOTE = re.compile(r"lanes/\d+/quarantine/.*")
_SCHEMA = re.compile(r"[1-9][0-9]{0,8}\.json")


class SmallFiles:
    """The small files in one directory. Raises OSError."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory, self.channel = directory, directory.channel

    # ---- reading --------------------------------------------------------------------------------

    def schemas(self) -> Iterator[str]:
        """The names of all versions of schemas. A version never changes."""
        for topic in self._list(self.directory.topics_directory):
            for name in self._list(self.directory.topics_directory / topic):
                if _SCHEMA.fullmatch(name):
                    yield f"topics/{topic}/{name}"

    def deletions(self) -> dict[str, bytes]:
        """The files that say up to which version a topic's schema was deleted."""
        topics = self._list(self.directory.topics_directory)
        return self._read_all(f"topics/{topic}/{DELETED_FILE}" for topic in topics)

    def readers(self) -> dict[str, bytes]:
        """The positions of named readers."""
        return self._read_all(f"readers/{name}.json" for name in NamedReaders(self.directory).names())

    def read(self, name: str) -> bytes:
        return self.channel.read_file(self.directory.path / name, _BYTES_MAX)

    def damage(self, name: str, data: bytes, *, decodes: bool = True) -> str:
        """Why nobody would believe a file of this name and content; empty where it is sound.

        Without `decodes` a schema is believed by its checksum, and Arrow is not needed.
        """
        path = self.directory.path / name
        try:
            if name.startswith("readers/"):
                NamedReaders(self.directory).parsed(path.stem, data)
            elif path.name == DELETED_FILE:
                last_deleted(path, data)
            elif is_note(name):
                corruption_range(path, data)
            elif name.startswith("lanes/"):
                trim_marks(path, data)
            elif not decodes:
                schema_values(path, data)
            else:
                from commitlog.schemas.topic_schemas import TopicSchema  # most stores have none, and Arrow is large

                TopicSchema.from_bytes(data, path)
        except CommitLogError as error:
            return str(error)
        return ""

    def kept(self, name: str, data: bytes) -> str:
        """Why the file of this name stays as it is here; empty where this content is taken for it.

        What is damaged never takes the place of an intact file. Where there is none it is taken, so
        that what it has said is not forgotten without an error. But nobody needs a damaged note of
        damage: what it was about is refused without one.
        """
        if not (damage := self.damage(name, data, decodes=False)) or is_note(name):
            return damage
        return damage if self.exists(name) and not self.damage(name, self.read(name), decodes=False) else ""

    def _read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it was just removed
                found[name] = self.read(name)
        return found

    def _list(self, directory: Path) -> list[str]:
        """Names in a directory; a file that somebody has put in its place has none."""
        try:
            return self.channel.list(directory)
        except NotADirectoryError:
            return []

    # ---- writing --------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        return (self.directory.path / name).exists()

    def write(self, name: str, data: bytes) -> None:
        """Makes this the content of a file, durably."""
        path = self.directory.path / name
        try:
            is_known = self.channel.read_file(path, len(data) + 1) == data
        except FileNotFoundError:
            is_known = False
        if not is_known:
            self.channel.create_directory(path.parent, below=self.directory.path)
            self.channel.replace_file(path, data)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files, durably. Those that are not there are passed over."""
        changed = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self.channel.unlink(self.directory.path / name)
                changed.add((self.directory.path / name).parent)
        for directory in changed:
            self.channel.sync_directory(directory)

    def become(self, known: Iterable[str], wanted: Mapping[str, bytes]) -> None:
        """Writes the files that are wanted, and removes those that are known and not wanted."""
        for name, data in wanted.items():
            self.write(name, data)
        self.remove([name for name in known if name not in wanted])


def is_note(name: str) -> bool:
    """Whether a small file is a note of damage (`disk/quarantine.py`)."""
    return bool(_NOTE.fullmatch(name))

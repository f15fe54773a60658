"""The rotated files of a tailed name: those that nobody has seen, because several came at once.

A name is looked at every few milliseconds. If it is rotated twice between two looks, the file in
between never had the name while somebody looked. It is found by its new name: `log.1`,
`log-20251126`, `app.2025-11-26.log`. What was there at the look before is not new. An inode alone
does not tell, because a file system gives the one of a removed file to the next. So the beginning
of a file counts, too.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_PART = r"([-._]?[0-9][0-9TZ:._-]*)"
_COMPRESSED = r"(\.(?:gz|bz2|xz|zst|lz4))?"
HEAD_BYTES = 4096
_NUMBER_MOST = 10_000

Identity = tuple[int, int]
"""Device, inode."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file with the name of a rotated one. `number` is None where it has a date."""

    path: str
    identity: Identity
    head: bytes
    is_compressed: bool
    number: int | None
    order: tuple[int, str]


class RotatedFiles:
    """The rotated files of one name. `missed` finds those that are new since the look before."""

    def __init__(self, path: str) -> None:
        named = Path(path)
        self._directory, stem, suffix = named.parent, re.escape(named.stem), re.escape(named.suffix)
        names = f"{stem}{suffix}{_PART}", f"{stem}{_PART}{suffix}"
        self._name = re.compile(f"(?:{'|'.join(names)}){_COMPRESSED}", re.ASCII)
        self._known: dict[Identity, bytes] = {}
        self.look()

    def look(self) -> list[Found]:
        """All that are there now. They are known from now on."""
        found = [one for name in self._names() if (one := self._file(name))]
        self._known = {one.identity: one.head for one in found}
        return found

    def missed(self, read: Collection[tuple[Identity, bytes]], *, is_gone: bool) -> tuple[list[str], list[str]]:
        """Paths of the files to read, the oldest first, and what cannot be read, a line each.

        `read` has identity and beginning of the files that are open; the last of them had the name
        at the look before. `is_gone` says that it was removed since.
        """
        known, there = self._known, self.look()
        open_now = {identity for identity, _ in read}
        new = [one for one in there if one.identity not in open_now and not _is_same(known.get(one.identity), one.head)]
        copies = {one.path for one in new if any(_is_same(head, one.head) for _, head in read)}
        plain = [one for one in new if not one.is_compressed and one.path not in copies]
        said = [f"{one.path} is new and compressed; it is not read" for one in new if one.is_compressed]
        said += [f"{path} begins like a file that was read; it is taken for a copy, and not read" for path in copies]
        last = next((one.number for one in there if read and one.identity == [*read][-1][0]), None)
        lacking = set(range(1, last or 1)) - {one.number for one in there}
        if lacking or (is_gone and plain):
            said.append("it was rotated several times at once, and not all of its files are there")
        if all(one.number is not None for one in plain):
            plain.sort(key=lambda one: -(one.number or 0))
        else:
            plain.sort(key=lambda one: one.order)
        return [one.path for one in plain], said

    def copies(self, head: bytes) -> tuple[list[str], list[str]]:
        """Paths of new files that begin like a file that was cut, and what cannot be read of them.

        Who cuts a file in place, as copytruncate does, has made a copy of it just before.
        """
        known, there = self._known, self.look()
        new = [one for one in there if not _is_same(known.get(one.identity), one.head)]
        found = [one.path for one in new if not one.is_compressed and _is_same(head, one.head)]
        others = {one.path: "compressed" if one.is_compressed else "begins otherwise" for one in new}
        return found, [f"{path} is new and {why}; it is not read" for path, why in others.items() if path not in found]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except OSError:  # the tailed file is waited for; who opens it says why
            return []

    def _file(self, name: str) -> Found | None:
        match = self._name.fullmatch(name)
        if match is None:
            return None
        path, part = str(self._directory / name), match[1] or match[2]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # it was renamed since, or may not be read
            return None
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                return None
            head = beginning(descriptor)
        finally:
            os.close(descriptor)
        digits = re.sub(r"\D", "", part)
        number = int(digits) if part.lstrip("-._") == digits and int(digits) < _NUMBER_MOST else None
        identity, order = (facts.st_dev, facts.st_ino), (facts.st_mtime_ns, digits)
        return Found(path, identity, head, match[3] is not None, number, order)


def beginning(descriptor: int) -> bytes:
    """The first bytes of an open file; none where it has none, or can't be read."""
    try:
        return os.pread(descriptor, HEAD_BYTES, 0)
    except OSError:
        return b""


def _is_same(known: bytes | None, head: bytes) -> bool:
    """Whether a file that began like this may be the one that begins so now."""
    return bool(known) and head.startswith(known or b"")

"""A disk as a power cut may leave it: what was synced is there; anything else may be missing.

- Bytes: a sector of 512 bytes is as it was after some of the writes to it, at least those of the
  last sync. Each sector is on its own, so writes are lost, torn and reordered.
- Lengths: any that the file has had since its last sync.
- Names: each one as it was after some of the changes to it, at least those of its directory's last
  sync. Each name is on its own; the name of a directory brings all that is below it.

This is harsher than ext4, whose journal keeps the order of such changes. Two things are taken for
granted, as on every file system: a rename never loses the file, and a sector is written whole or
not at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.crash.recording import Entry

SECTOR = 512
Luck = Literal["none", "all", "some"]
"""How much of what was not synced is there: nothing, all as after a kill, or any part."""


@dataclass(slots=True)
class _Change:
    """A change of a file: `data` at `offset`; or, with `data` None, another length."""

    number: int
    offset: int
    data: bytes | None
    length: int
    cuts: bool = False


@dataclass(eq=False)
class File:
    """An inode."""

    kept: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def sync(self, until: int) -> None:
        """Makes the changes up to that number durable."""
        for change in self.pending:
            if change.number <= until:
                _apply(self.kept, change)
        self.pending = [change for change in self.pending if change.number > until]

    def content(self, chance: random.Random, luck: Luck) -> bytes:
        """The file's bytes as a power cut may leave them."""
        if not self.pending or luck == "none":
            return bytes(self.kept)
        if luck == "all":
            made = bytearray(self.kept)
            for change in self.pending:
                _apply(made, change)
            return bytes(made)
        return self._mixed(chance)

    def _mixed(self, chance: random.Random) -> bytes:
        how = chance.choice(("in order", "writes", "sectors"))
        if how == "in order":
            some: Iterable[_Change] = self.pending[: chance.randrange(len(self.pending) + 1)]
        else:
            share = chance.choice((0.1, 0.5, 0.9))
            some = [change for change in self.pending if chance.random() < share or how == "sectors"]
        made = bytearray(self.kept)
        for change in some:
            _apply(made, change)
        if how == "sectors":
            made = self._sectors(chance, made)
        length = chance.choice(self._lengths())
        return bytes(made[:length]).ljust(length, b"\0")

    def _lengths(self) -> list[int]:
        """The lengths that the file has had since its last sync."""
        lengths = [len(self.kept)]
        for change in self.pending:
            longest = max(lengths[-1], change.length)
            if change.data is not None:
                lengths.append(max(lengths[-1], change.offset + len(change.data)))
            else:
                lengths.append(change.length if change.cuts else longest)
        return lengths

    def _sectors(self, chance: random.Random, newest: bytearray) -> bytearray:
        """The bytes, each sector after some of the writes to it."""
        made, share = bytearray(newest), chance.choice((0.1, 0.5, 0.9))
        touched = {at for change in self.pending for at in change_sectors(change)}
        for at in sorted(touched):
            if chance.random() < share:
                continue
            sector = bytearray(self.kept[at : at + SECTOR].ljust(SECTOR, b"\0"))
            changes = [change for change in self.pending if at in change_sectors(change)]
            for change in changes[: chance.randrange(len(changes))]:
                _apply_to_sector(sector, at, change)
            made[at : at + SECTOR] = sector[: len(made[at : at + SECTOR])]
        return made


def change_sectors(change: _Change) -> range:
    """The offsets of the sectors that a change writes to."""
    if change.data is None:
        return range(change.length, change.length)
    return range(change.offset - change.offset % SECTOR, change.offset + len(change.data), SECTOR)


def _apply(content: bytearray, change: _Change) -> None:
    if change.data is not None:
        end = change.offset + len(change.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[change.offset : end] = change.data
    elif change.length > len(content):
        content.extend(bytes(change.length - len(content)))
    elif change.cuts:
        del content[change.length :]


def _apply_to_sector(sector: bytearray, at: int, change: _Change) -> None:
    assert change.data is not None
    begin, end = max(change.offset, at), min(change.offset + len(change.data), at + SECTOR)
    sector[begin - at : end - at] = change.data[begin - change.offset : end - change.offset]


Node = File | Literal["directory"] | None
"""What a name stands for; None for nothing."""


@dataclass(slots=True)
class _Version:
    """What a name stands for since the change of that number.

    `moved_to` is the path of the rename by which the name disappeared.
    """

    number: int
    node: Node
    moved_to: str = ""


class Disk:
    """Takes in a journal, entry by entry, and says at any time what a power cut may leave."""

    def __init__(self) -> None:
        self._number = 0
        self._names: dict[str, list[_Version]] = {}  # path → the durable version, then those since
        self._files: dict[int, File] = {}  # inode → the file that has it now
        self._begun: dict[str, int] = {}

    def take(self, entry: Entry) -> None:
        """Takes in an entry. Notes of the test itself are ignored."""
        self._number += 1
        facts = entry.facts
        if facts.get("path") == "." and entry.what == "mkdir":
            return  # the store itself: a power cut before that leaves nothing to check
        if entry.what == "create":
            self._files[facts["file"]] = file = File()
            self._is_now(facts["path"], file)
        elif entry.what == "mkdir":
            self._is_now(facts["path"], "directory")
        elif entry.what in ("unlink", "rmdir"):
            self._is_now(facts["path"], None)
        elif entry.what == "rename":
            self._is_now(facts["target"], self._names[facts["path"]][-1].node)
            self._is_now(facts["path"], None, facts["target"])
        elif entry.what in ("write", "truncate", "allocate"):
            self._change(entry)
        elif entry.what == "begin":
            self._begun[facts["sync"]] = self._number
        elif entry.what == "end":
            self._sync(self._begun.pop(facts["sync"]), facts)

    def _is_now(self, path: str, node: Node, moved_to: str = "") -> None:
        self._names.setdefault(path, [_Version(0, None)]).append(_Version(self._number, node, moved_to))

    def _change(self, entry: Entry) -> None:
        facts, file = entry.facts, self._files[entry.facts["file"]]
        data = entry.data if entry.what == "write" else None
        file.pending.append(
            _Change(self._number, facts.get("offset", 0), data, facts.get("length", 0), entry.what == "truncate")
        )

    def _sync(self, until: int, facts: dict[str, str]) -> None:
        if "file" in facts:
            self._files[int(facts["file"])].sync(until)
            return
        for path in [path for path in self._names if _parent(path) == facts["path"]]:
            self._settle(path, until)

    def _settle(self, path: str, until: int) -> None:
        """Makes the name's state at that change durable; where it moved away, also its new name."""
        versions = self._names[path]
        last = max((i for i, version in enumerate(versions) if version.number <= until), default=0)
        for version in versions[: last + 1]:
            if version.moved_to and version.number > self._names[version.moved_to][0].number:
                self._settle(version.moved_to, version.number)
        del versions[:last]
        if len(versions) == 1 and versions[0].node is None:
            versions[0] = _Version(versions[0].number, None)

    # ---- what is left ---------------------------------------------------------------------------

    def state(self, chance: random.Random, luck: Luck) -> dict[str, bytes | None]:
        """Path → the file's bytes, or None for a directory; parents first."""
        chosen = {path: self._choose(versions, chance, luck) for path, versions in self._names.items()}
        for path, index in list(chosen.items()):
            self._arrive(path, index, chosen)
        left: dict[str, bytes | None] = {}
        contents: dict[File, bytes] = {}
        for path in sorted(chosen):
            node, parent = self._names[path][chosen[path]].node, _parent(path)
            if node is None or (parent != "." and parent not in left):
                continue
            if isinstance(node, File) and node not in contents:
                contents[node] = node.content(chance, luck)
            left[path] = contents[node] if isinstance(node, File) else None
        return left

    def _choose(self, versions: list[_Version], chance: random.Random, luck: Luck) -> int:
        if luck != "some":
            return 0 if luck == "none" else len(versions) - 1
        return chance.randrange(len(versions))

    def _arrive(self, path: str, index: int, chosen: dict[str, int]) -> None:
        """Where a rename has removed a name, puts the other name there."""
        for version in self._names[path][: index + 1]:
            if version.moved_to:
                there = self._names[version.moved_to]
                if there[chosen[version.moved_to]].number < version.number:
                    arrived = next(i for i, other in enumerate(there) if other.number == version.number)
                    chosen[version.moved_to] = arrived
                    self._arrive(version.moved_to, arrived, chosen)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def write_state(state: dict[str, bytes | None], root: Path) -> None:
    """Makes the files of a state, below a directory that does not exist yet."""
    root.mkdir(mode=0o700)
    for path, data in state.items():
        if data is None:
            (root / path).mkdir(mode=0o700)
        else:
            with (root / path).open("xb") as file:
                file.write(data)
            (root / path).chmod(0o600)

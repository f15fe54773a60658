"""What may befall any file of a store: a disk, a person or a program has damaged it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
_KINDS = (
    ("segment", "lanes/*/commitlog/*"),
    ("queue", "lanes/*/consumequeue/*/*/*"),
    ("positions", "lanes/*/positions"),
    ("checkpoint", "lanes/*/checkpoint"),
    ("abort", "lanes/*/abort"),
    ("trim marks", "lanes/*/trimmed.json"),
    ("note", "lanes/*/quarantine/*"),
    ("lane lock", "lanes/*/lock"),
    ("store.json", "store.json"),
    ("lock", "lock"),
    ("lock", "locks/*"),
    ("reader", "readers/*.json"),
    ("reader lock", "readers/*.lock"),
    ("schema", "topics/*/*"),
    ("forwarder", "forwarders/*"),
    ("replica", "replicas/*"),
    ("log", "logs/*"),
    ("lane directory", "lanes/*"),
    ("queue directory", "lanes/*/consumequeue/*"),
    ("queue directory", "lanes/*/consumequeue"),
    ("log directory", "lanes/*/commitlog"),
    ("store directory", "*/"),
)
"""Kind of a file → where such files are in a store."""
_POOL_KINDS = (("control", "control"), ("buffers", "lane-*"), ("pool name", "store"))
_OFTEN = {"segment": 8, "queue": 4, "positions": 2, "buffers": 4, "control": 2, "store.json": 2, "reader": 2}
_FOREIGN = (
    "trim.json",
    "superseded.json",
    "replica.json",
    "incomplete-backup.json",
    "lanes/7",
    "lanes/x",
    "lanes/0/index",
)
_POOL_FOREIGN = ("lane-5", "committer.ipc", "notices.ipc", "unknown")


@dataclass(frozen=True)
class Places:
    """The store to damage, its pool if it is there, and a store whose files are foreign to it."""

    store: Path
    pool: Path | None
    other: Path

    def kinds(self) -> dict[str, list[Path]]:
        """Kind of a file → the files of it."""
        found: dict[str, list[Path]] = {}
        for kind, pattern in _KINDS:
            found.setdefault(kind, []).extend(sorted(self.store.glob(pattern)))
        for kind, pattern in _POOL_KINDS if self.pool else ():
            found[kind] = sorted(self.pool.glob(pattern)) if self.pool else []
        return {kind: paths for kind, paths in found.items() if paths}


def damage(places: Places, chance: random.Random) -> tuple[str, str]:
    """Does one thing to one file; returns its kind, and what was done in one line."""
    if chance.random() < 0.05:
        return _put_foreign(places, chance)
    kinds = places.kinds()
    kind = chance.choices(list(kinds), [_OFTEN.get(kind, 1) for kind in kinds])[0]
    path = chance.choice(kinds[kind])
    is_plain = path.is_file() and not path.is_symlink()
    choices = {**_ANY, **(_PLAIN if is_plain else {})}
    if is_plain and path.stat().st_size:
        choices |= _BYTES
        if chance.random() < 0.6:  # what a disk does, rather than people
            choices = _BYTES
    what = chance.choice(list(choices))
    others = [other for other in kinds[kind] if other != path]
    foreign = places.other / path.relative_to(places.store) if path.is_relative_to(places.store) else path
    said = choices[what](_Victim(path, others, foreign, chance))
    place = path.relative_to(places.store) if path.is_relative_to(places.store) else f"pool/{path.name}"
    return kind, f"{kind} {what}: {place}{said}"


@dataclass(frozen=True)
class _Victim:
    """A file, the others of its kind, the file of its name in another store."""

    path: Path
    others: list[Path]
    foreign: Path
    chance: random.Random

    def used(self) -> int:
        """Where its last byte that is not zero ends; its size if there is none."""
        data = self.path.read_bytes()
        return len(data.rstrip(b"\0")) or len(data)

    def write(self, at: int, data: bytes) -> str:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)
        return f" at {at}, {len(data)} bytes"


# ---- to the bytes of a file ---------------------------------------------------------------------


def _flip(victim: _Victim) -> str:
    at = victim.chance.randrange(victim.used())
    (byte,) = victim.path.read_bytes()[at : at + 1]
    return victim.write(at, bytes([byte ^ 1 << victim.chance.randrange(8)]))


def _flip_some(victim: _Victim) -> str:
    return "".join(_flip(victim) for _ in range(victim.chance.randrange(2, 9)))


def _cut(victim: _Victim) -> str:
    length = victim.chance.randrange(victim.used() + 1)
    os.truncate(victim.path, length)
    return f" to {length}"


def _zero_page(victim: _Victim) -> str:
    at = victim.chance.randrange(victim.used())
    at -= at % PAGE_BYTES
    return victim.write(at, bytes(min(PAGE_BYTES, victim.path.stat().st_size - at)))


def _zero_end(victim: _Victim) -> str:
    at = victim.chance.randrange(victim.used())
    return victim.write(at, bytes(victim.path.stat().st_size - at))


def _zero_all(victim: _Victim) -> str:
    return victim.write(0, bytes(victim.path.stat().st_size))


def _garbage(victim: _Victim) -> str:
    at = victim.chance.randrange(victim.used())
    count = min(victim.chance.choice((1, 8, 100, PAGE_BYTES)), victim.path.stat().st_size - at)
    return victim.write(at, victim.chance.randbytes(count))


def _move_within(victim: _Victim) -> str:
    """A piece of the file is at another place of it too, as a misdirected write leaves it."""
    data, used = victim.path.read_bytes(), victim.used()
    source, target = (victim.chance.randrange(used) for _ in range(2))
    count = min(victim.chance.choice((20, 512, PAGE_BYTES)), len(data) - max(source, target))
    return f" from {source}" + victim.write(target, data[source : source + count])


def _splice(victim: _Victim) -> str:
    """A piece of another file of its kind is at the same place here."""
    if not victim.others:
        return _zero_page(victim)
    other, at = victim.chance.choice(victim.others), victim.chance.randrange(victim.used())
    data = other.read_bytes()[at : at + PAGE_BYTES][: victim.path.stat().st_size - at] if other.is_file() else b""
    return f" from {other.parent.name}/{other.name}" + victim.write(at, data)


def _lengthen(victim: _Victim) -> str:
    with victim.path.open("ab") as file:
        file.write(victim.chance.choice((bytes(20), bytes(PAGE_BYTES), victim.chance.randbytes(100))))
    return f", now {victim.path.stat().st_size}"


def _remove_within(victim: _Victim) -> str:
    """Some bytes are gone, and what is behind them has moved up."""
    data = bytearray(victim.path.read_bytes())
    at, count = victim.chance.randrange(victim.used()), victim.chance.choice((1, 20, 512))
    del data[at : at + count]
    victim.path.write_bytes(data)
    return f" at {at}, {count} bytes"


# ---- to a file as a whole -----------------------------------------------------------------------


def _empty(victim: _Victim) -> str:
    os.truncate(victim.path, 0)
    return ""


def _remove(victim: _Victim) -> str:
    if victim.path.is_dir() and not victim.path.is_symlink():
        shutil.rmtree(victim.path)
    else:
        victim.path.unlink()
    return ""


def _directory(victim: _Victim) -> str:
    _remove(victim)
    victim.path.mkdir()
    return ""


def _file(victim: _Victim) -> str:
    _remove(victim)
    victim.path.write_bytes(victim.chance.choice((b"", b"x", b"{}", b"null\n", b"0", b"[]", bytes(PAGE_BYTES))))
    return ""


def _dangling_link(victim: _Victim) -> str:
    _remove(victim)
    victim.path.symlink_to("nowhere")
    return ""


def _link(victim: _Victim) -> str:
    """The file is elsewhere, and a link to it is in its place."""
    aside = victim.path.parent / f"{victim.path.name}.moved"
    victim.path.rename(aside)
    victim.path.symlink_to(aside.name)
    return ""


def _fifo(victim: _Victim) -> str:
    _remove(victim)
    os.mkfifo(victim.path)
    return ""


def _rename(victim: _Victim) -> str:
    victim.path.rename(victim.path.with_name(f"{victim.path.name}.old"))
    return ""


def _swap(victim: _Victim) -> str:
    if not victim.others:
        return _rename(victim)
    other, aside = victim.chance.choice(victim.others), victim.path.with_name("aside")
    if _is_part_of(other, victim):
        return _rename(victim)
    victim.path.rename(aside)
    other.rename(victim.path)
    aside.rename(other)
    return f" with {other.parent.name}/{other.name}"


def _is_part_of(other: Path, victim: _Victim) -> bool:
    """Whether one lies in the other, or both are one, by way of a link."""
    one, two = other.resolve(), victim.path.resolve()
    return one == two or one in two.parents or two in one.parents


def _double(victim: _Victim) -> str:
    """Another file of its kind is in its place, and at its own."""
    if not victim.others:
        return _copy_beside(victim)
    other = victim.chance.choice(victim.others)
    if _is_part_of(other, victim):
        return _copy_beside(victim)
    return f" by {other.parent.name}/{other.name}" + _put(other, victim)


def _put(source: Path, victim: _Victim) -> str:
    _remove(victim)
    if source.is_dir():
        shutil.copytree(
            source, victim.path, symlinks=True, ignore=lambda folder, names: [n for n in names if _is_odd(folder, n)]
        )
    elif source.is_file():
        shutil.copyfile(source, victim.path)
    return ""


def _is_odd(folder: str, name: str) -> bool:
    path = Path(folder) / name
    return path.exists() and not path.is_dir() and not path.is_file()


def _replace_by_foreign(victim: _Victim) -> str:
    return _put(victim.foreign, victim)


def _copy_beside(victim: _Victim) -> str:
    name = victim.chance.choice(
        (f"{victim.path.name}.bak", f".{victim.path.name}.1", f"{victim.path.name}~", _next(victim.path))
    )
    target = victim.path.with_name(name)
    if not target.exists() and not _is_odd(str(victim.path.parent), victim.path.name):
        if victim.path.is_dir():
            shutil.copytree(
                victim.path, target, symlinks=True, ignore=lambda f, names: [n for n in names if _is_odd(f, n)]
            )
        elif victim.path.is_file():
            shutil.copyfile(victim.path, target)
    return f" as {name}"


def _next(path: Path) -> str:
    """The name of the file behind this one, if its name is a number."""
    if not path.name.isdecimal():
        return f"{path.name}2"
    step = path.lstat().st_size or 1
    return str(int(path.name) + step).zfill(len(path.name)) if len(path.name) > 9 else str(int(path.name) + 1)


Harm = Callable[[_Victim], str]
_BYTES: dict[str, Harm] = {
    "one bit flipped": _flip,
    "bits flipped": _flip_some,
    "cut": _cut,
    "page zeroed": _zero_page,
    "end zeroed": _zero_end,
    "zeroed": _zero_all,
    "garbage": _garbage,
    "moved within": _move_within,
    "spliced": _splice,
    "too long": _lengthen,
    "bytes removed": _remove_within,
}
_PLAIN: dict[str, Harm] = {"emptied": _empty, "a directory in place": _directory}
_ANY: dict[str, Harm] = {
    "removed": _remove,
    "a file in place": _file,
    "a dangling link in place": _dangling_link,
    "a link in place": _link,
    "a fifo in place": _fifo,
    "renamed": _rename,
    "swapped": _swap,
    "doubled": _double,
    "another store's in place": _replace_by_foreign,
    "a copy beside": _copy_beside,
}


def _put_foreign(places: Places, chance: random.Random) -> tuple[str, str]:
    """Puts something where nothing was."""
    folder, names = (places.pool, _POOL_FOREIGN) if places.pool and chance.random() < 0.3 else (places.store, _FOREIGN)
    path = folder / chance.choice(names)
    if path.exists() or not path.parent.is_dir():
        return "foreign", "foreign: nothing"
    if chance.random() < 0.3:
        path.mkdir()
    else:
        path.write_bytes(chance.choice((b"", b"{}", b"null", b"\0" * 100, b"x")))
    return "foreign", f"foreign: {path.relative_to(folder)}"

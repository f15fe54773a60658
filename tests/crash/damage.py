"""What may happen to files of a store that does not run, before a start that has its pool."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path


def _remove(queue: Path, _other: Path, _chance: random.Random) -> None:
    shutil.rmtree(queue.parent)


def _empty(queue: Path, _other: Path, _chance: random.Random) -> None:
    for file in queue.iterdir():
        file.unlink()


def _zero(queue: Path, _other: Path, _chance: random.Random) -> None:
    for file in queue.iterdir():
        size = file.stat().st_size
        os.truncate(file, 0)
        os.truncate(file, size)


def _cut(queue: Path, _other: Path, chance: random.Random) -> None:
    file = max(queue.iterdir())
    os.truncate(file, chance.randrange(file.stat().st_size + 1))


def _swap(one: Path, other: Path, _chance: random.Random) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


QUEUE_DAMAGE: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "queue removed": _remove,
    "queue emptied": _empty,
    "queue zeroed": _zero,
    "queue cut": _cut,
    "queues swapped": _swap,
}
KINDS = (*QUEUE_DAMAGE, "positions removed", "positions swapped")


def places(store: Path, what: str) -> list[Path]:
    """The places that may be damaged.

    They are the directory of each consume queue that has a file, or the `positions` of each lane. A
    damage needs two.
    """
    if what in QUEUE_DAMAGE:
        return sorted({file.parent for file in store.glob("lanes/*/consumequeue/*/*/*")})
    return sorted(store.glob("lanes/*/positions"))


def damage(store: Path, chance: random.Random, what: str = "") -> str:
    """Does `what`, or any of the kinds; returns which, "" where there was nothing to damage."""
    what = what or chance.choice(KINDS)
    found = places(store, what)
    if len(found) < 2:
        return ""
    one, other = chance.sample(found, 2)
    if what in QUEUE_DAMAGE:
        QUEUE_DAMAGE[what](one, other, chance)
    elif what == "positions removed":
        one.unlink()
    else:
        _swap(one, other, chance)
    return what

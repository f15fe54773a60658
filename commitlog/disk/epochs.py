"""The epochs of a store, as `store.json` and a replica's welcome have them.

An epoch begins where two stores may come out of one: a replica is promoted, or a backup is started
as a store. It begins, too, where a start finds damage, because queue offsets may be used again
behind it (opening/used_offsets.py). The history of epochs tells how far the logs of both are the
same. So whoever keeps a position of the store (Spark's checkpoints, forwarders, replicas) keeps the
epoch with it.

The number of an epoch is the wall time at its begin, in ms: two stores that part from one another
never begin the same one, and the later one is the one that somebody has chosen last. It is above
the number before it whatever the clock says. Where the clock was ahead at that one, and is right
now, it is above it by chance: both stores would count on to the same number. (Up to version 0.1 it
was a count, 1, 2, 3.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from commitlog.shm.layout import LANE_ROWS
from commitlog.system.clock import SYSTEM_CLOCK, Clock

OFFSET_MAX = 1 << 62
_CHANCES = 1 << 20
"""How many numbers there are for an epoch where the clock does not tell one."""


@dataclass(frozen=True)
class Epoch:
    """The number of an epoch, and where each lane ended when it began."""

    epoch: int
    ends: Mapping[int, int]


def epochs_from_json(values: Any) -> tuple[Epoch, ...]:
    """A history, as `store.json` and a welcome have it.

    Raises ValueError, KeyError, TypeError, AttributeError.
    """
    return tuple(
        Epoch(
            number_below(one["epoch"]),
            {number_below(int(lane), LANE_ROWS): number_below(end) for lane, end in one["ends"].items()},
        )
        for one in values
    )


def epochs_to_json(epochs: tuple[Epoch, ...]) -> list[dict[str, Any]]:
    """A history, as `store.json` has it."""
    return [{"epoch": one.epoch, "ends": {str(lane): end for lane, end in one.ends.items()}} for one in epochs]


def next_epoch(epochs: tuple[Epoch, ...], ends: Mapping[int, int], clock: Clock = SYSTEM_CLOCK) -> Epoch:
    """The epoch that begins now, where each lane ends at `ends`."""
    last, now = epochs[-1].epoch if epochs else 0, clock.wall_ms()
    by_chance = last + 1 + int.from_bytes(os.urandom(8)) % _CHANCES  # `secrets` would load OpenSSL at each start
    return Epoch(now if now > last else by_chance, dict(ends))


def is_of_history(epochs: tuple[Epoch, ...], epoch: int) -> bool:
    """Whether the store with this history was once in `epoch`.

    Otherwise that is an epoch of another store, which parted from this one nobody knows where.
    """
    return epoch == 0 or any(one.epoch == epoch for one in epochs)


def shared_end(epochs: tuple[Epoch, ...], epoch: int, lane: int) -> int:
    """Up to which log offset a lane may be the same in two stores that were one.

    One of them went on, and has the history `epochs`. The other one stayed behind in `epoch`, an
    epoch of this history.
    """
    return min((one.ends.get(lane, 0) for one in epochs if one.epoch > epoch), default=OFFSET_MAX)


def shared_epochs(own: tuple[Epoch, ...], other: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
    """The history that two stores had while they were one."""
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, other, strict=False)))


def parted_at(own: tuple[Epoch, ...], other: tuple[Epoch, ...], lane: int) -> int:
    """How far a lane is the same in two stores that were one, by the histories of both."""
    both = len(shared_epochs(own, other))
    return min((one.ends.get(lane, 0) for one in (*own[both:], *other[both:])), default=OFFSET_MAX)


def number_below(value: object, below: int = OFFSET_MAX) -> int:
    """The value, if it is a whole number in [0, below). Raises ValueError."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{value!r:.40} is no number below {below}")
    return value

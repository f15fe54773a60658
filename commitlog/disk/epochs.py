"""The promotions of a store, as `store.json` and a replica's welcome have them.

They tell how far the logs of two stores that were one once are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commitlog.shm.layout import LANE_ROWS

OFFSET_MAX = 1 << 62


@dataclass(frozen=True)
class Epoch:
    """A promotion: the epoch that began with it, and where each lane ended then."""

    epoch: int
    ends: Mapping[int, int]


def epochs_from_json(values: Any) -> tuple[Epoch, ...]:
    """Promotions, as `store.json` and a welcome have them.

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
    """Promotions, as `store.json` has them."""
    return [{"epoch": one.epoch, "ends": {str(lane): end for lane, end in one.ends.items()}} for one in epochs]


def shared_end(epochs: tuple[Epoch, ...], epoch: int, lane: int) -> int:
    """How far a lane of a store in an earlier `epoch` may have what the promoted store has.

    `epochs` is the history of the promoted one.
    """
    return min((one.ends.get(lane, 0) for one in epochs if one.epoch > epoch), default=OFFSET_MAX)


def number_below(value: object, below: int = OFFSET_MAX) -> int:
    """The value, if it is a whole number in [0, below). Raises ValueError."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{value!r:.40} is no number below {below}")
    return value

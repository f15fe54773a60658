"""Which lanes of a store a reader reads: all, some by their numbers, or a member's share.

Members share the lanes by number. So each lane has exactly one member, and so will lanes that do
not exist yet: member (1, 3) reads lanes 1, 4, 7, ….
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from commitlog.errors import OptionError
from commitlog.shm.layout import LANE_ROWS


@dataclass(frozen=True)
class LaneChoice:
    """The lanes that are read: `lane in choice`. At most one of `lanes` and `member` is given."""

    numbers: frozenset[int] | None = None
    member: tuple[int, int] | None = None
    """(i, n): the lanes whose number modulo n is i."""

    def __contains__(self, lane: int) -> bool:
        if self.member is not None:
            return lane % self.member[1] == self.member[0]
        return self.numbers is None or lane in self.numbers

    @classmethod
    def of(cls, lanes: Collection[int] | None, members: Sequence[int] | None) -> LaneChoice:
        """Makes the choice from a user's arguments.

        Raises OptionError for both arguments at once, for no lanes, and for impossible numbers.
        """
        if lanes is not None and members is not None:
            raise OptionError("lanes and members: give one of them, both say which lanes are read")
        if lanes is not None:
            return cls(numbers=_numbers(lanes))
        return cls(member=_member(members)) if members is not None else cls()


ALL_LANES, NO_LANES = LaneChoice(), LaneChoice(numbers=frozenset())


def _numbers(lanes: object) -> frozenset[int]:
    is_some = isinstance(lanes, Collection) and not isinstance(lanes, str | bytes) and len(lanes) > 0
    if not is_some or not all(type(lane) is int and 0 <= lane < LANE_ROWS for lane in lanes):  # type: ignore[attr-defined]
        raise OptionError(
            f"lanes: {str(lanes)[:80]} is not allowed; give numbers from 0 to {LANE_ROWS - 1}, such as {{0, 2}}"
        )
    return frozenset(lanes)  # type: ignore[call-overload, no-any-return]


def _member(members: object) -> tuple[int, int]:
    if isinstance(members, tuple | list) and len(members) == 2 and all(type(number) is int for number in members):
        number, count = members
        if 0 <= number < count <= 1 << 20:
            return number, count
    raise OptionError(
        f"members: {str(members)[:80]} is not allowed; give (i, n), the number of this member from 0 and how many there are, "
        "such as (0, 3)"
    )

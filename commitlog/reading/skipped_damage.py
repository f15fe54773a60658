"""Handles damage that a reader leaves out: it raises an error, or counts and warns."""

from __future__ import annotations

import warnings

from commitlog.errors import CorruptRecord, DamagedFile, ReadingWarning

WAY_OUT = (
    "Reader(ignore_corrupt=True), or `commitlog cat --skip-corrupt`, goes on behind it; `commitlog verify` lists all that "
    "is damaged"
)

LogError = CorruptRecord | DamagedFile


def with_way_out(error: LogError) -> LogError:
    """Returns the error with advice, for a reader that was not told to leave out damage."""
    if isinstance(error, CorruptRecord):
        return CorruptRecord(f"{error.reason}. {WAY_OUT}", error.offset, error.file)
    return DamagedFile(f"{error}. {WAY_OUT}")


class SkippedDamage:
    """Counts the damaged places of a lane or queue that a reader passed over, and warns of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._first: LogError | None = None
        self._places: set[int] = set()
        self._untold = self._missing = 0

    def add(self, place: int, error: LogError) -> None:
        """Counts a damaged place (offset of the log, or number of an entry), each place once."""
        if place not in self._places:
            self._places.add(place)
            self._untold += 1
            self._first = self._first or error

    def __bool__(self) -> bool:
        return bool(self._untold)

    def tell(self, missing: int) -> None:
        """Warns of the damage that was left out since the last warning.

        `missing` is how many messages are known to be missing in all.
        """
        if not self._untold:
            return
        count, more = len(self._places), max(missing - self._missing, 0)
        self._untold, self._missing = 0, missing
        places = "1 damaged place is" if count == 1 else f"{count:,} damaged places are"
        messages = "1 message is" if more == 1 else f"{more:,} messages are"
        warnings.warn(
            f"{self._where}: {places} left out (ignore_corrupt), {messages} known to be missing; the first: {self._first}; "
            "`commitlog verify` lists all",
            ReadingWarning,
            stacklevel=2,
        )

"""Finds the gaps that lost segment files leave in a log, without a walk over the whole log."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from commitlog.reading.log_scan import Gap, LogScan


def gaps_of_files(log: LogScan, first: int, end: int, too_short: Collection[int]) -> Iterator[Gap]:
    """Gives the gaps in [first, end) of segments without a file, or whose file was too short.

    `too_short` has the starts of the short files. `first` and `end` are begins of segments. No gap
    comes twice. If no record follows the last gap, it ends at the end of the last file.
    """
    done = first
    for start in sorted({*_missing(log, first, end), *too_short}):
        if start >= end or start + log.segments.size <= done:
            continue
        for piece in log.pieces(max(start, done)):
            if isinstance(piece, Gap):
                done = piece.end
                yield piece
            else:
                done = piece.buffer_start + piece.stop_position
            if done >= start + log.segments.size or (isinstance(piece, Gap) and piece.last):
                break


def _missing(log: LogScan, first: int, end: int) -> Iterator[int]:
    """The begin of each run of missing files in [first, end)."""
    expected = first
    for start in [*log.segments.starts, end]:
        if expected < min(start, end):
            yield expected
        expected = max(start + log.segments.size, expected)

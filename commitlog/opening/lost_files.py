"""The gaps that lost segment files leave in a log, found without a walk over all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from commitlog.reading.log_scan import Gap, LogScan


def gaps_of_files(log: LogScan, first: int, end: int, too_short: Collection[int]) -> Iterator[Gap]:
    """The gaps that begin in [first, end) in segments without a file, or whose file was too short.

    `too_short` has the starts of these. Both offsets are where a segment begins. No gap comes
    twice; where no record follows, the last one has the end of the last file.
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
    """Where each run of missing files begins in [first, end)."""
    expected = first
    for start in [*log.segments.starts, end]:
        if expected < min(start, end):
            yield expected
        expected = max(start + log.segments.size, expected)

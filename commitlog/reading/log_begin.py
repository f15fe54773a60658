"""Where a log begins: at what retention has left, by its own durable record.

What is missing behind that is damage, at the begin of a log as in its middle. So the files alone
never tell where a log begins.
"""

from __future__ import annotations

from commitlog.reading.log_scan import LogScan


def begin_of_log(log: LogScan, recorded: int | None) -> int:
    """The first offset of a log, for `recorded`: where its `positions` say that it begins.

    Retention records that before it removes anything. Files that it had no time to remove are still
    a part of the log. Without positions (None) nobody knows what retention has removed: then all
    before the first file counts as lost. Only a log without any record begins at its first file,
    because a new copy of a lane makes that file before its positions.
    """
    segments = log.segments
    if recorded is None:
        return 0 if any(map(log.holds_record, segments.starts)) else segments.first
    return min(recorded, segments.first) if segments.starts else recorded

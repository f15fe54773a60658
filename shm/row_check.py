"""What holds of a lane's words at any moment, and is said nowhere else.

    first, dispatched ≤ flushed ≤ committed ≤ wrote        the order of the pipeline
    dispatch_synced ≤ dispatched; replicated ≤ flushed     what follows one of them
    first_recorded ≤ first; rewritten ≤ rewrite_wanted     what carries out one of them
    wrote − flushed ≤ nine segments                        the window of unflushed segments
    segment size: 0 before the first lease, else the store's; slots: 8 at most

Each word has one writer, and a position is stored after what it covers. So a process that is killed
anywhere leaves them so, and whoever loads the smaller one first sees them so. A start stores many
words one after the other; nobody else looks then, or he looks again.
"""

from __future__ import annotations

from commitlog.shm.layout import DIRECT_WINDOW, MAX_SLOTS, Lane

UNFLUSHED_SEGMENTS_MAX = DIRECT_WINDOW + 1
"""How many segments of a lane may be written and not flushed: the window, and the one in work."""

_IN_ORDER = (
    ("first_recorded", Lane.FIRST_RECORDED, "first", Lane.FIRST),
    ("rewritten", Lane.REWRITTEN, "rewrite_wanted", Lane.REWRITE_WANTED),
    ("dispatch_synced", Lane.DISPATCH_SYNCED, "dispatched", Lane.DISPATCHED),
    ("first", Lane.FIRST, "flushed", Lane.FLUSHED),
    ("replicated", Lane.REPLICATED, "flushed", Lane.FLUSHED),
    ("dispatched", Lane.DISPATCHED, "flushed", Lane.FLUSHED),
    ("flushed", Lane.FLUSHED, "committed", Lane.COMMITTED),
    ("committed", Lane.COMMITTED, "wrote", Lane.WROTE),
)
"""Two words each, of which the first is never above the second. It is loaded first, too."""


def check_row(row: memoryview, segment_bytes: int) -> str:
    """What no lane of a store with segments of this size can have; empty for a sound row.

    `row` has the lane's words. Takes some microseconds.
    """
    for lower, lower_at, upper, upper_at in _IN_ORDER:
        low = row[lower_at]
        high = row[upper_at]
        if low > high:
            return f"{lower} is {low:,}, and {upper} {high:,}"
    size, slots, most = row[Lane.SEGMENT_SIZE], row[Lane.SLOTS], UNFLUSHED_SEGMENTS_MAX * segment_bytes
    if size not in (0, segment_bytes) or slots > MAX_SLOTS:
        return f"its segment size is {size:,}, the store's {segment_bytes:,}; it has {slots} buffers"
    wrote = row[Lane.WROTE]
    unflushed = wrote - row[Lane.FLUSHED]  # loaded last: it may have gone on, and then this is less
    if unflushed > most:
        return f"{unflushed:,} bytes are written and not flushed; {most:,} is the most"
    if unflushed and not size:
        return f"{unflushed:,} bytes are written and not flushed, and nobody has leased it in this pool"
    return ""

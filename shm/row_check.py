"""What holds of a lane's words at any moment, and is said nowhere else.

    first, dispatched ≤ flushed ≤ committed ≤ wrote        the order of the pipeline
    dispatch_synced ≤ dispatched; replicated ≤ flushed     what follows one of them
    first_recorded ≤ first; rewritten ≤ rewrite_wanted     what carries out one of them
    flush_requested ≤ wrote                                what is asked of one of them
    wrote − flushed ≤ nine segments                        the window of unflushed segments, or
    wrote ≤ allocated                                      of a lane without buffers, which has none
    first: the lower one of FIRST and RETIRED              see `first_kept`
    first, allocated: whole segments; the last unflushed segment begins at or below `allocated`
    segment size: the store's, or 0 before the first lease; slots: none, or 3 to 8
    no number has its top bit set                          but that of a count that is not known

Each word has one writer, and a position is stored after what it covers. So a process that is killed
anywhere leaves them so, and whoever loads the smaller one first sees them so. A start stores many
words one after the other; nobody else looks then, or he looks again.

A process that has the pool mapped may still write anything anywhere. A lane whose words can't be
true is *set aside*: the stages do nothing for it, and the next start recovers it from its files.
"""

from __future__ import annotations

import errno

from commitlog.shm.control_region import first_kept
from commitlog.shm.layout import DECLARED, DIRECT_WINDOW, MAX_SLOTS, Lane, segment_start
from commitlog.shm.memory_order import observe
from commitlog.shm.write_buffers import MIN_SLOTS

_UNFLUSHED_SEGMENTS_MAX = DIRECT_WINDOW + 1
"""How many segments of a lane may be written and not flushed: the window, and the one in work."""

WORDS_DAMAGED = errno.ENOTRECOVERABLE
"""The fault of a lane that is set aside: an errno that no disk has."""

_AHEAD_MAX = 64
"""How many segments may be made ahead: far more than any configuration allows."""
_TOP_BIT = 1 << 63

_IN_ORDER = (
    ("rewritten", Lane.REWRITTEN, "rewrite_wanted", Lane.REWRITE_WANTED),
    ("dispatch_synced", Lane.DISPATCH_SYNCED, "dispatched", Lane.DISPATCHED),
    ("replicated", Lane.REPLICATED, "flushed", Lane.FLUSHED),
    ("dispatched", Lane.DISPATCHED, "flushed", Lane.FLUSHED),
    ("flushed", Lane.FLUSHED, "committed", Lane.COMMITTED),
    ("committed", Lane.COMMITTED, "wrote", Lane.WROTE),
    ("flush_requested", Lane.FLUSH_REQUESTED, "wrote", Lane.WROTE),
)
"""Two words each, of which the first is never above the second. It is loaded first, too."""

_OF_A_LOG = (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED, Lane.DISPATCHED, Lane.ALLOCATED)
"""The words of which a lane with messages has more than one."""


def is_sound(row: memoryview, segment_bytes: int) -> bool:
    """Whether the words of a leased lane that a stage is about to use can be true.

    It takes about a microsecond. If it is false, `check_row` decides.
    """
    synced, dispatched, requested = (
        observe(row, Lane.DISPATCH_SYNCED),
        observe(row, Lane.DISPATCHED),
        observe(row, Lane.FLUSH_REQUESTED),
    )
    recorded, first = observe(row, Lane.FIRST_RECORDED), observe(row, Lane.FIRST)
    replicated, rewritten = observe(row, Lane.REPLICATED), observe(row, Lane.REWRITTEN)
    flushed, committed, wrote = observe(row, Lane.FLUSHED), observe(row, Lane.COMMITTED), observe(row, Lane.WROTE)
    allocated = observe(row, Lane.ALLOCATED)
    return (
        synced <= dispatched <= flushed <= committed <= wrote < _TOP_BIT
        and recorded <= first <= flushed
        and replicated <= flushed
        and requested <= wrote
        and rewritten <= observe(row, Lane.REWRITE_WANTED) < _TOP_BIT
        and is_within_reach(row, flushed, wrote, segment_bytes)
        and row[Lane.SEGMENT_SIZE] == segment_bytes
        and row[Lane.SLOTS] <= MAX_SLOTS
        and not (first % segment_bytes or allocated % segment_bytes)
        and flushed - segment_bytes < allocated <= wrote + _AHEAD_MAX * segment_bytes
    )


def is_within_reach(row: memoryview, flushed: int, where: int, segment_bytes: int) -> bool:
    """Whether a lane may have come up to a log offset, above `flushed`."""
    if row[Lane.SLOTS]:
        return where - flushed <= _UNFLUSHED_SEGMENTS_MAX * segment_bytes
    return where == flushed or where <= observe(row, Lane.ALLOCATED)


def check_row(row: memoryview, segment_bytes: int) -> str:
    """Says what is wrong with the words of a lane; empty for a sound row.

    `row` has the lane's words. Takes some microseconds.
    """
    recorded = observe(row, Lane.FIRST_RECORDED)
    first = first_kept(row)
    if recorded > first:
        return f"first_recorded is {recorded:,}, and first {first:,}"
    if first > (flushed := observe(row, Lane.FLUSHED)):
        return f"first is {first:,}, and flushed {flushed:,}"
    for lower, lower_at, upper, upper_at in _IN_ORDER:
        low = observe(row, lower_at)
        high = observe(row, upper_at)
        if low > high:
            return f"{lower} is {low:,}, and {upper} {high:,}"
    if wrong := _check_segments(row, segment_bytes):
        return wrong
    if max(row) >= _TOP_BIT:
        for name, word in DECLARED["Lane"].items():
            large = max(row[word.index : word.index + word.width])
            if large >= _TOP_BIT and name != "ENTRIES_AT":
                return f"{name.lower()} is {large:,}"
    return ""


def may_have_messages(row: memoryview, segment_bytes: int) -> bool:
    """Whether a lane may have messages, as its words say: for a lane whose directory is missing.

    Garbage in one word of a lane is no message, and hides none.
    """
    if not check_row(row, segment_bytes):
        return bool(observe(row, Lane.BUFFERS) & 1) or observe(row, Lane.WROTE) > first_kept(row)
    return row[Lane.SEGMENT_SIZE] == segment_bytes or sum(observe(row, word) > 0 for word in _OF_A_LOG) > 1


def _check_segments(row: memoryview, segment_bytes: int) -> str:
    """Says what is wrong with a row's segments and buffers; empty for a sound row."""
    size, slots = row[Lane.SEGMENT_SIZE], row[Lane.SLOTS]
    if size not in (0, segment_bytes) or not (slots == 0 or MIN_SLOTS <= slots <= MAX_SLOTS):
        return f"its segment size is {size:,}, the store's {segment_bytes:,}; it has {slots} buffers"
    if observe(row, Lane.BUFFERS) & 1 and not row[Lane.SEGMENT_SIZE]:
        return "it has buffers, and nobody has leased it in this pool"
    wrote = observe(row, Lane.WROTE)
    flushed = observe(row, Lane.FLUSHED)  # loaded last: it may have gone on, and then less is unflushed
    unflushed = wrote - flushed
    if not is_within_reach(row, flushed, wrote, segment_bytes):
        return f"{unflushed:,} bytes are written and not flushed, more than the lane has room for"
    if unflushed and not size:
        return f"{unflushed:,} bytes are written and not flushed, and nobody has leased it in this pool"
    flushed, allocated, first = observe(row, Lane.FLUSHED), observe(row, Lane.ALLOCATED), first_kept(row)
    if first % segment_bytes or allocated % segment_bytes:
        return f"first is {first:,}, and allocated {allocated:,}; segments have {segment_bytes:,} bytes"
    if not segment_start(flushed, segment_bytes) <= allocated <= observe(row, Lane.WROTE) + _AHEAD_MAX * segment_bytes:
        return f"allocated is {allocated:,}, and flushed {flushed:,}"
    return ""

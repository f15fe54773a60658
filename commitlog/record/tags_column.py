"""The tags codes of many property strings at once.

The code of each string is `tags_code(decode_properties(...).get("TAGS"))`, but the pairs are not
made. 0x02 always ends a pair. So a pair is named TAGS exactly if `TAGS` 0x01 stands at the start of
a string or after 0x02.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from commitlog.record.byte_ranges import ByteArray, Ints, gather
from commitlog.record.properties import tags_code

_NAME = b"TAGS\x01"
_SAME_BYTES_MAX = 8 << 20
"""Strings of one length are gathered if they have at most this number of bytes in all."""


def tags_codes_of(view: ByteArray, positions: Ints, sizes: Ints) -> Ints:
    """The tags code of each property string [position, position + size), 0 for one without TAGS."""
    codes = np.zeros(len(positions), np.int64)
    index = np.flatnonzero(sizes)
    if not len(index):
        return codes
    positions, sizes = positions[index], sizes[index]
    size, total = int(sizes[0]), int(sizes.sum())
    if total <= _SAME_BYTES_MAX and (sizes == size).all():
        strings = gather(view, f"S{size}", positions)
        same = bool((strings == strings[0]).all())  # they are in a batch
        flat = strings[:1].view(np.uint8) if same else strings.view(np.uint8)
        sizes = sizes[:1] if same else sizes
    else:
        source, bounds = view.data, zip(positions.tolist(), (positions + sizes).tolist(), strict=True)
        flat = np.frombuffer(b"".join([source[start:end] for start, end in bounds]), np.uint8)
    codes[index] = _codes_of_joined(flat, sizes)
    return codes


def _codes_of_joined(flat: ByteArray, sizes: Ints) -> Ints:
    """The codes of strings that lie one after the other."""
    codes = np.zeros(len(sizes), np.int64)
    if len(flat) < len(_NAME):
        return codes
    # three of the five bytes leave only few wrong places; all five are compared at these
    hits = np.flatnonzero((flat[4:] == _NAME[4]) & (flat[3:-1] == _NAME[3]) & (flat[2:-2] == _NAME[2]))
    hits = hits[gather(flat, "S5", hits) == _NAME]
    ends = np.cumsum(sizes)
    rows = np.searchsorted(ends, hits, side="right")
    starts, stops = (ends - sizes)[rows], ends[rows]
    values = hits + len(_NAME)
    separators = np.append(np.flatnonzero(flat == 2), len(flat))
    value_ends = np.minimum(separators[np.searchsorted(separators, values)], stops)
    # a whole pair in the same string, with a value that is not empty (readers drop empty ones)
    good = ((hits == starts) | (flat[hits - 1] == 2)) & (value_ends > values)
    rows, values, lengths = rows[good], values[good], (value_ends - values)[good]
    last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.empty(0, np.bool_)  # the last one counts
    rows, values, lengths = rows[last], values[last], lengths[last]
    for length in np.unique(lengths).tolist():
        chosen = lengths == length
        items = gather(flat, f"V{length}", values[chosen]).tolist()
        codes[rows[chosen]] = list(map(_code_of_bytes, items))
    return codes


@lru_cache(maxsize=4096)
def _code_of_bytes(tags: bytes) -> int:
    return tags_code(tags.decode(errors="replace"))

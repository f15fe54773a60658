"""Makes the consume queue entries of many records at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from commitlog.disk.consume_queue import ENTRY, Entries
from commitlog.record.byte_ranges import Ints
from commitlog.record.table import RecordTable


def by_topic(table: RecordTable, count: int) -> Iterator[tuple[str, Ints]]:
    """Each topic with the indices of its records among the first `count`.

    Only records with a consume queue entry count, and only topics that have such records are given.
    """
    wanted = np.flatnonzero(table.in_queue[:count])
    if len(table.topics) == 1 and len(wanted):
        yield table.topics[0], wanted
        return
    wanted = wanted[np.argsort(table.topic_index[wanted], kind="stable")]
    edges = np.searchsorted(table.topic_index[wanted], np.arange(len(table.topics) + 1))
    for index, topic in enumerate(table.topics):
        if edges[index] < edges[index + 1]:
            yield topic, wanted[edges[index] : edges[index + 1]]


def runs(offsets: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of indices in which the offsets are consecutive."""
    edges = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    yield from ((begin, end) for begin, end in itertools.pairwise(edges) if begin < end)


def entries_of(table: RecordTable, rows: Ints) -> Entries:
    """The entries of these rows of a table."""
    entries = np.empty(len(rows), ENTRY)
    entries["physical_offset"], entries["size"] = table.physical_offsets[rows], table.sizes[rows]
    entries["tags_code"] = table.tags_codes[rows]
    return entries

"""Columns that say where a row comes from, beside those of a typed topic or of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from commitlog.columns import arrays
from commitlog.columns.arrow_columns import TIMESTAMP, Decoder
from commitlog.record.byte_ranges import Ints


def metadata_columns(decoder: Decoder, names: Iterable[str], messages: Ints, counts: Ints) -> dict[str, pa.Array]:
    """Makes the metadata columns `names` of some rows.

    `messages` are the numbers of the rows' messages in the decoder, and `counts` says how many rows
    each message has.
    """
    source = _Source(decoder, np.repeat(messages, counts), counts)
    return {name: _BUILDERS[name](source) for name in names}


@dataclass
class _Source:
    decoder: Decoder
    message: Ints
    """The number of each row's message."""
    counts: Ints

    def rows(self) -> Ints:
        """The number of each row in its message."""
        starts = np.cumsum(self.counts) - self.counts
        return np.arange(len(self.message)) - np.repeat(starts, self.counts)


_BUILDERS: dict[str, Callable[[_Source], pa.Array]] = {
    "_topic": lambda rows: arrays.constant_strings(rows.decoder.topic, len(rows.message)),
    "_partition": lambda rows: arrays.fixed(np.full(len(rows.message), rows.decoder.queue.lane, np.int32), pa.int32()),
    "_offset": lambda rows: arrays.fixed(rows.message + rows.decoder.places.offset, pa.int64()),
    "_row": lambda rows: arrays.fixed(rows.rows().astype(np.int32), pa.int32()),
    "_timestamp": lambda rows: rows.decoder.timestamps(rows.decoder.store_timestamps[rows.message], TIMESTAMP),
    "_key": lambda rows: rows.decoder.keys(pa.binary()).take(arrays.indices(rows.message)),
}

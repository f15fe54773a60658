"""The rows of a topic behind a reader's place, as batches of columns."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from commitlog.columns.read_plan import ReadOptions, Values
from commitlog.planning.address import OF_READ_ARROW, Address, Credentials, address_of
from commitlog.planning.topic_columns import columns_of
from commitlog.reading.given_places import Places
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.reader_position import by_topic
from commitlog.reading.starting_point import EARLIEST, QueueStarts, parse_starts
from commitlog.remote.topic_reading import TopicRange, WantedRange, fix_range

Path = str | os.PathLike[str]
_PLACE_OF_BYTES, _PLACE_OF_ROWS = ("partition", "offset"), ("_partition", "_offset")
"""The columns that say where a row is from: of messages as bytes, and of a typed topic."""


class RowsBehind:
    """Looks for rows, and gives them with the places behind them. It holds nothing open.

    Making one checks the columns. Raises what `commitlog.read` raises.
    """

    def __init__(
        self,
        place: tuple[Path | Address, str | None, tuple[Path | None, ...]],
        topic: str,
        lanes: LaneChoice,
        options: ReadOptions,
        columns: Collection[str] | None,
        *,
        metadata: bool,
        values: Values | None,
    ) -> None:
        """`place` has a path, an address or a URL, a token, and the files of a URL."""
        path, token, files = place
        if not isinstance(path, Address):
            path = address_of(path, Credentials.of(token, *files), OF_READ_ARROW) or path
        self._place, latest = path, parse_starts("latest")
        self.epoch = 0
        """The epoch of the store in which the places were read. It is set before the first look."""
        self.ends: Places = {}
        """Where the queues of the last look end, whether or not they had any rows."""
        self._wanted = WantedRange(topic, latest, latest, options, columns, metadata, values, lanes)

    def check_read(self, places: Mapping[tuple[str, int], int]) -> None:
        """Raises DataLoss if the store has lost messages before these places meanwhile."""
        self._pass_to(fix_range(self._place, self._wanted), places)

    def _pass_to(self, found: TopicRange, places: Mapping[tuple[str, int], int]) -> None:
        if self.epoch != found.epoch:
            found.check_read(self.epoch, {key: to for key, to in places.items() if to})
        self.epoch = found.epoch

    def batches(self, places: Mapping[tuple[str, int], int]) -> Iterator[tuple[pa.RecordBatch, Places]]:
        """Gives what is there now behind these places, and with each batch where its queues go on.

        A message of a typed topic may have rows in two batches. It counts as read with the second.
        """
        starts = QueueStarts(EARLIEST, by_topic(dict(places)))
        found = fix_range(self._place, replace(self._wanted, start=starts))
        self._pass_to(found, places)
        names = _PLACE_OF_BYTES if found.typed is None else _PLACE_OF_ROWS
        more = [name for name in names if name not in found.schema.names]
        schema = columns_of(found.topic, found.typed, [*found.schema.names, *more])
        before: tuple[pa.RecordBatch, Places] | None = None
        try:
            for batch in found.batches(schema):
                if before is not None:
                    yield before
                whole = 0 if found.typed is not None else 1
                before = batch.select(found.schema.names), _reached(batch, found.topic, names, whole)
        except Exception:
            if before is not None:
                yield before
            raise
        self.ends = ends = {key: end for key, (begin, end) in found.bounds.items() if begin < end}
        if before is not None:
            yield before[0], before[1] | ends


def _reached(batch: pa.RecordBatch, topic: str, names: tuple[str, str], whole: int) -> Places:
    """Where the queues of a batch's rows go on: `whole` behind each one's last row's offset."""
    lanes, offsets = (batch.column(name).to_numpy(zero_copy_only=False) for name in names)
    return {(topic, lane): int(offsets[lanes == lane].max()) + whole for lane in np.unique(lanes).tolist()}

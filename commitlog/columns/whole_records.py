"""Records as they are in the log, one a row: what a server sends to a Reader.

The client decodes them as it decodes those of a mapped segment. All CRCs are checked here, where
damage has a file and an offset.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from commitlog.columns.arrays import Spans, take_spans
from commitlog.columns.arrow_columns import Decoder
from commitlog.columns.read_plan import ReadPlan
from commitlog.errors import CorruptRecord
from commitlog.reading.log_holes import LogHoles
from commitlog.record.lost_crc import LOST_CRC, is_in_good_order
from commitlog.record.table import RecordGatherer, RecordTable

RECORD_COLUMNS = pa.schema([pa.field("record", pa.binary())])


class LostCrcs(CorruptRecord):
    """Records that have lost their whole-record CRC: number in the decoder → what is wrong."""

    def __init__(self, rows: list[int], decoder: Decoder) -> None:
        self.lost = dict.fromkeys(rows, LOST_CRC)
        where = decoder.segment.start + int(decoder.places.at[rows[0]])
        super().__init__(LOST_CRC, where, str(decoder.segment.path))


class WholeRecords:
    """Makes batches of the records of a plan."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def batches(self, decoder: Decoder) -> Iterable[pa.RecordBatch]:
        """One batch of all records. Raises CorruptRecord, LostCrcs."""
        segment, places = decoder.segment, decoder.places
        gatherer = RecordGatherer(segment.map, segment.start, None, check_crc=True, require_crc=False)
        table = gatherer.tabulate(places.at, places.size)
        if len(table) < decoder.count:
            raise CorruptRecord(table.reason, segment.start + table.stop_position, str(segment.path))
        if not table.has_crc.all():
            self._check_lost(table, decoder)
        records = take_spans(segment.buffer, Spans(places.at, places.at + places.size), pa.binary())
        return (pa.RecordBatch.from_arrays([records], schema=RECORD_COLUMNS),)

    def _check_lost(self, table: RecordTable, decoder: Decoder) -> None:
        """Raises LostCrcs for records that seem to have had a CRC, in a log that has them."""
        bare = np.flatnonzero(~table.has_crc & (table.properties_sizes > 0)).tolist()
        begins, sizes = table.properties_positions, table.properties_sizes
        properties = (bytes(decoder.segment.map[begins[row] : begins[row] + sizes[row]]) for row in bare)
        lost = [row for row, data in zip(bare, properties, strict=True) if not is_in_good_order(data)]
        lane = self._plan.lane_directory(decoder.queue.lane)
        if lost and LogHoles(lane, self._plan.segment_bytes).expects_crc:
            raise LostCrcs(lost, decoder)

"""Reads slices of a log as Arrow batches, by consume queue entries and mapped segments.

A slice gives the same rows each time, or an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from commitlog.columns import arrow_columns
from commitlog.columns.arrow_columns import Decoder, Places, cut
from commitlog.columns.damaged_rows import Damage, check_rows
from commitlog.columns.mapped_segments import Segment, SegmentCache
from commitlog.columns.read_plan import ReadPlan, Slice
from commitlog.columns.typed_rows import MESSAGES_BYTES_MAX, TypedRows, WrongRows
from commitlog.columns.unpacked_size import TooMuchUnpacked
from commitlog.columns.whole_records import LostCrcs, WholeRecords
from commitlog.disk.consume_queue import ENTRY_BYTES, ConsumeQueue, is_light
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss, StoreNotFound, named_while_reading
from commitlog.reading.earlier_epochs import refuse_lost, shared_ends
from commitlog.reading.log_holes import Hole, LogHoles, walk_past
from commitlog.reading.queue_bounds import NamedQueue
from commitlog.reading.view import open_view
from commitlog.record.byte_ranges import Ints
from commitlog.record.record_layout import Buffer
from commitlog.schemas.topic_schemas import TopicSchemas
from commitlog.shm.layout import segment_start
from commitlog.text.quantities import counted

Build = Callable[[Decoder], Iterable[pa.RecordBatch]]
"""Makes batches of records.

It raises CorruptRecord or TooMuchUnpacked before the first batch, or not at all.
"""

ENTRIES_MAX = 200_000
"""How many consume queue entries are looked at in one step."""

_NONE = np.empty(0, np.int64)

log = logging.getLogger(__name__)


def read_slices(
    plan: ReadPlan, schema: pa.Schema, segments: SegmentCache, warn: Callable[[str], object] = log.warning
) -> Iterator[pa.RecordBatch]:
    """All rows of the plan, as batches of the schema. `segments` keeps the files that it maps.

    `warn` is told of rows that are left out, if the plan allows that. Raises the errors of
    `SliceReader.batches`, for columns those of TypedRows, and DataLoss if another store takes the
    place of the planned one. CorruptRecord and DamagedFile come after the good rows of other lanes.
    """
    build: Build = lambda decoder: (decoder.batch(schema),)  # noqa: E731
    if plan.options.values == "columns":
        build = TypedRows(TopicSchemas(StoreDirectory(plan.path)), schema, plan.options.wording.read_anew).batches
    elif plan.options.values == "json":
        from commitlog.columns.json_rows import JsonRows  # Arrow's parser is not needed otherwise

        build = JsonRows(schema, plan.options).batches
    elif plan.options.values == "records":
        build = WholeRecords(plan).batches
    store = _PlannedStore(plan)
    damaged: dict[tuple[str, int], CorruptRecord | DamagedFile] = {}
    for piece in plan.slices:
        key = (piece.topic, piece.lane)
        if key in damaged:
            continue  # its rows come behind the error
        try:
            with named_while_reading(plan.path):
                for batch in SliceReader(plan, piece, segments, warn).batches(build):
                    store.check()
                    yield batch
        except (CorruptRecord, DamagedFile) as error:
            store.check()  # the files of another store look damaged, or are missing
            damaged[key] = error
        except DataLoss:
            store.check()
            raise
    store.check()
    for first in damaged.values():
        raise first


class _PlannedStore:
    """The store of a plan. Another one may take its place while rows are read."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan, self._directory = plan, StoreDirectory(plan.path)
        self._stamp: tuple[int, int] | None = None

    def check(self) -> None:
        """Raises DataLoss if another store is at the path, or one with other messages.

        If none is there, the open files are still the right ones.
        """
        if self._plan.one_log:
            return
        stamp = self._directory.file_stamp()
        if stamp in (None, self._stamp):
            return
        with contextlib.suppress(StoreNotFound):
            facts = self._directory.load()
            if facts.id != self._plan.store_id:
                raise DataLoss(f"{self._plan.path} was deleted and made again while it was read; load it anew")
            if facts.epoch != self._plan.epoch:
                self._check_epoch()
            self._stamp = stamp

    def _check_epoch(self) -> None:
        plan, ends = self._plan, dict[tuple[str, int], int]()
        for piece in plan.slices:
            key = piece.topic, piece.lane
            ends[key] = max(ends.get(key, 0), piece.end)
        with contextlib.closing(open_view(plan.path)) as view:
            refuse_lost(str(view.path), shared_ends(view, plan.epoch, ends), ends, plan.options.wording.read_anew)


class SliceReader:
    """Reads one slice. `next` is the queue offset of the next row."""

    def __init__(
        self, plan: ReadPlan, piece: Slice, segments: SegmentCache, warn: Callable[[str], object] = log.warning
    ) -> None:
        self.plan, self.slice, self._segments, self._warn = plan, piece, segments, warn
        self.segment_bytes = plan.segment_bytes
        self.lane_directory = plan.lane_directory(piece.lane)
        is_named = plan.one_log and is_light(piece.topic)
        self.queue = NamedQueue(piece.topic, piece.lane, offset_is_stored=not is_named)
        self._piece_bytes = arrow_columns.BATCH_BYTES_MAX if plan.options.values != "columns" else MESSAGES_BYTES_MAX
        self.next = piece.start
        self.walk_from = piece.walk_from
        self.damage = Damage.load(self.lane_directory)
        self.corrupt: list[tuple[int, str]] = []
        """Queue offset → reason, for each row that was left out."""
        self.lost = 0
        """How many rows retention has removed before they were read."""
        self._first_lost = -1
        self._walks = False  # the walk may find rows whose entries led to damage
        self._missing = ""
        """The last segment file that was missing in a walk."""

    def batches(self, build: Build) -> Iterator[pa.RecordBatch]:
        """Reads all rows of the slice, in order.

        Raises DataLoss, CorruptRecord, DamagedFile, MissingCodec, StoreNotFound.
        """
        before = ""
        try:
            yield from self._indexed(build)
        except (CorruptRecord, DamagedFile) as error:
            if self.walk_from < 0:
                raise  # otherwise the walk finds all these rows in the log, without the index
            before = f". Their consume queue led to an error before: {error}"
        self._refuse_loss()
        if self.walk_from >= 0:
            try:
                yield from self._unindexed(build)
            except CorruptRecord as error:
                raise CorruptRecord(f"{error.reason}{before}", error.offset, error.file) from None
        if self.next < self.slice.end:
            raise CorruptRecord(
                f"{self._name()}: nothing leads to the rows from offset {self.next} on, up to {self.slice.end}; "
                f"`commitlog verify` tells what is wrong with the lane{before}",
                file=str(self.lane_directory.queue_path(self.slice.topic)),
            )
        self._warn_of_missing_rows()

    def segment(self, start: int) -> Segment:
        return self._segments.get(Path(self.lane_directory.segment_path(start)), start, self.segment_bytes)

    def _name(self) -> str:
        return f"topic {self.slice.topic}, lane {self.slice.lane}"

    # ---- where the rows are ---------------------------------------------------------------------

    def _indexed(self, build: Build) -> Iterator[pa.RecordBatch]:
        """The rows that have a consume queue entry, up to the first that has none."""
        with ConsumeQueue(self.lane_directory.queue_path(self.slice.topic)) as queue:
            while self.next < self.slice.end:
                count = min(self.slice.end - self.next, ENTRIES_MAX)
                entries = queue.entries(self.next, count)
                if not len(entries) and queue.first() > self.next:  # its oldest files are gone
                    if self.walk_from >= 0 and not self._walks:
                        return  # the log may still have these rows
                    self._lose(min(queue.first(), self.slice.end))
                    continue
                where = entries["physical_offset"].astype(np.int64)
                sizes = entries["size"].astype(np.int64)
                empty = np.flatnonzero(sizes <= 0)
                if len(empty):
                    where, sizes = where[: empty[0]], sizes[: empty[0]]
                if not len(where):
                    if not self.plan.one_log or not len(entries):
                        return
                    file, at = str(queue.directory), self.next * ENTRY_BYTES
                    self._leave_out(range(self.next, self.next + 1), "its consume queue entry is empty", file, at)
                    continue
                yield from self._by_segment(where, sizes, build)

    def _by_segment(self, where: Ints, sizes: Ints, build: Build) -> Iterator[pa.RecordBatch]:
        noted = self.damage.touches(where, sizes)
        starts = segment_start(where, self.segment_bytes)
        cuts = np.flatnonzero(np.diff(starts)) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(where)], strict=True):
            start, part = int(starts[begin]), slice(begin, end)
            try:
                segment = self.segment(start)
            except FileNotFoundError as error:
                upto = self.next + end - begin
                if start < self._first_kept():
                    self._lose(upto)
                else:
                    self._leave_out(range(self.next, upto), f"{error.filename}: missing", None, start)
                continue
            self._refuse_loss()
            places = Places(where[part] - start, sizes[part], self.next)
            yield from self._decoded(segment, places, np.flatnonzero(noted[part]), build)
            if self.walk_from >= 0:  # the walk can begin behind the rows that entries have led to
                self.walk_from = max(self.walk_from, int(where[end - 1] + sizes[end - 1]))

    def _unindexed(self, build: Build) -> Iterator[pa.RecordBatch]:
        """The rows that had no entry when they were planned.

        Retention removes a segment only after all its records have entries. So if a segment is
        gone, the entries are read once more. Raises DataLoss.
        """
        while self.next < self.slice.end:
            try:
                yield from self._walked(build)
                break
            except FileNotFoundError as error:
                self._missing = error.filename
                self.walk_from = int(Path(error.filename).name) + self.segment_bytes
            yield from self._indexed(build)
            self._refuse_loss()
        if self.next < self.slice.end and self._missing:
            raise self._without_entry()

    def _without_entry(self) -> DataLoss:
        return DataLoss(
            f"{self._name()}: {self._missing} is gone, which had rows of the offsets [{self.next}, {self.slice.end}); "
            f"nothing of ours deletes a segment whose rows are not in the consume queues"
        )

    def _walked(self, build: Build) -> Iterator[pa.RecordBatch]:
        """The rows that have no entry yet, found by walking the log.

        Raises FileNotFoundError, DataLoss.
        """
        piece, self._walks = self.slice, True
        holes = LogHoles(self.lane_directory, self.segment_bytes)
        hole: Hole | None = None
        for step in walk_past(self._open, piece.lane, self.segment_bytes, self.walk_from, piece.limit, holes):
            if isinstance(step, Hole):
                hole = hole or step
                continue
            table = step.table
            if piece.topic not in table.topics:
                continue
            wanted = (
                (table.topic_index == table.topics.index(piece.topic))
                & table.in_queue
                & (table.queue_offsets >= self.next)
            )
            rows = np.flatnonzero(wanted)
            if len(rows):
                first = min(int(table.queue_offsets[rows[0]]), piece.end)
                if first > self.next and hole is None and self._missing:
                    raise self._without_entry()
                if first > self.next:  # otherwise none of the rows were in a hole
                    self._leave_out_hole(hole, first)
                hole = None
                rows = rows[table.queue_offsets[rows] < piece.end]
            if len(rows):
                places = Places(table.positions[rows], table.sizes[rows], self.next)
                yield from self._decoded(self._walked_last, places, _NONE, build)
            if self.next >= piece.end:
                return
        if hole is not None:
            self._leave_out_hole(hole, piece.end)

    def _open(self, start: int) -> Buffer:
        try:
            self._walked_last = self.segment(start)  # kept, as its file may be gone when its rows are decoded
        except FileNotFoundError as error:
            if start < self._first_kept():
                raise
            raise DamagedFile(f"{error.filename}: missing") from error
        return self._walked_last.map

    def _first_kept(self) -> int:
        """The log's begin now: retention has deleted everything below it.

        Any other missing file is damage.
        """
        with contextlib.closing(open_view(self.plan.path)) as view:
            return view.limits(self.slice.lane).first

    def _leave_out_hole(self, hole: Hole | None, upto: int) -> None:
        """Leaves out the rows before `upto`, which were in a hole of the log."""
        if hole is None:
            self._leave_out(range(self.next, upto), "the log does not have it", str(self.lane_directory.commitlog), -1)
            return
        error = hole.error
        reason, file = (error.reason, error.file) if isinstance(error, CorruptRecord) else (str(error), None)
        self._leave_out(range(self.next, upto), reason, file, hole.start)

    # ---- giving them out ------------------------------------------------------------------------

    def _decoded(self, segment: Segment, places: Places, noted: Ints, build: Build) -> Iterator[pa.RecordBatch]:
        """The rows as batches. Rows in ranges that recovery noted (`noted`) are checked first."""
        wrong = check_rows(segment, self.queue, places, noted)
        for run in self._runs(segment, places, wrong, {}):
            for piece in cut(run, self._piece_bytes):
                yield from self._built(segment, piece, build)
        self.next = places.offset + len(places.at)

    def _built(self, segment: Segment, places: Places, build: Build) -> Iterator[pa.RecordBatch]:
        try:
            for batch in build(Decoder(segment, self.queue, places)):
                self.next = places.offset + len(places.at)  # `build` raises before its first batch, or not at all
                yield batch
            return
        except TooMuchUnpacked:
            middle = len(places.at) // 2
            parts = iter([places.cut(0, middle), places.cut(middle, len(places.at))])
        except CorruptRecord as error:
            damaged = check_rows(segment, self.queue, places, np.arange(len(places.at)))
            if isinstance(error, LostCrcs):
                damaged |= error.lost
            without_rows = error.wrong if isinstance(error, WrongRows) else {}
            if not (damaged or without_rows):
                raise CorruptRecord(f"{error.reason}. {self._way_out()}", error.offset, error.file) from None
            parts = self._runs(segment, places, damaged, without_rows)
        for part in parts:  # outside of the except clauses, which would keep the memory of the first try
            yield from self._built(segment, part, build)

    def _runs(
        self, segment: Segment, places: Places, damaged: dict[int, str], without_rows: dict[int, str]
    ) -> Iterator[Places]:
        """Gives the runs of good rows between the wrong ones.

        A wrong row raises an error or is left out. The error comes after the good rows before it
        were given out.
        """
        begin, wrong = 0, without_rows | damaged
        for row in sorted(wrong):
            if begin < row:
                yield places.cut(begin, row)
            offset, where = places.offset + row, segment.start + int(places.at[row])
            way_out = self._way_out(is_damage=row in damaged)
            self._leave_out(range(offset, offset + 1), wrong[row], str(segment.path), where, way_out)
            begin = row + 1
        if begin < len(places.at):
            yield places.cut(begin, len(places.at))

    def _way_out(self, *, is_damage: bool = True) -> str:
        wording = self.plan.options.wording
        rest = "`commitlog verify` lists all" if is_damage else f"{wording.as_bytes} reads their values"
        return f"{wording.option} {wording.ignore_corrupt} leaves such records out and counts them; {rest}"

    def _leave_out(self, offsets: range, reason: str, file: str | None, where: int, way_out: str | None = None) -> None:
        """Raises CorruptRecord, or counts the rows if corrupt ones are to be ignored.

        Without a `file` it raises DamagedFile: the reason names the missing or damaged file. Before
        the walk of the log it always raises, because the walk may still find the rows.
        """
        if not self.plan.options.ignore_corrupt or (self.walk_from >= 0 and not self._walks):
            count = f" and {len(offsets) - 1} more" if len(offsets) > 1 else ""
            text = f"{self._name()}, offset {offsets.start}{count}: {reason}. {way_out or self._way_out()}"
            raise DamagedFile(text) if file is None else CorruptRecord(text, where, file)
        self.corrupt += [(offset, reason) for offset in offsets]
        self.next = offsets.stop

    def _lose(self, upto: int) -> None:
        """Counts the rows before `upto`, which retention has removed."""
        if not self.lost:
            self._first_lost = self.next
        self.lost += upto - self.next
        self.next = upto

    def _refuse_loss(self) -> None:
        """Raises DataLoss for lost rows, now that their number is known.

        If the plan accepts a loss, it raises nothing.
        """
        if self.lost and self.plan.options.fail_on_data_loss:
            wording, is_end = self.plan.options.wording, self.next == self.slice.end
            kept = f"none up to {self.next} is kept" if is_end else f"the first one kept is {self.next}"
            raise DataLoss(
                f"{self._name()}: offset {self._first_lost} was to be read and {kept}; {self.lost} messages were deleted by "
                f"retention before they were read. {wording.option} {wording.accept_loss} goes on without them"
            )

    def _warn_of_missing_rows(self) -> None:
        """Says how many rows are missing, and why."""
        of = f"{self.plan.path}: {self._name()}"
        asked, wording = f"the offsets [{self.slice.start}, {self.slice.end})", self.plan.options.wording
        if self.lost:
            self._warn(
                f"{of}: {counted(self.lost, 'message')} of {asked} were deleted by retention before they were read; "
                f"{wording.accept_loss}, so reading goes on without them"
            )
        if self.corrupt:
            offset, reason = self.corrupt[0]
            self._warn(
                f"{of}: {counted(len(self.corrupt), 'corrupt record')} of {asked} were left out "
                f"({wording.ignore_corrupt}), the first at offset {offset}: {reason}"
            )

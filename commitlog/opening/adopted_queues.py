"""The consume queues of a lane whose pool is adopted: believed where they prove themselves, else
built anew from the log.

What a queue ends at is the next queue offset of its topic. So one that was removed, emptied, cut or
swapped with another's while nobody ran would have offsets given out twice. The dispatcher counts in
shared memory what all ends add up to; that, and a record for the first and last entry of each
queue, needs no look at the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import Quarantine, rebuild_mark
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import FAULT_BY_ERRNO, CorruptRecord, DamagedFile, RecoveryError, disk_error
from commitlog.opening.queue_files import QueueFiles
from commitlog.opening.queue_repair import QueueRepair
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.queue_bounds import NamedQueue, QueueBounds, check_entry, total_of_ends
from commitlog.shm.layout import Lane
from commitlog.shm.positions import ControlRegion, count_entries, counted_entries, forget_entries

Report = Callable[[str], None]

_SEGMENTS_KEPT = 8
_BLOCK_ENTRIES = 1 << 11


@dataclass(frozen=True, slots=True)
class AdoptedQueues:
    """All consume queues of one lane, up to `synced`: behind it are entries that the dispatcher
    places again.
    """

    lane: LaneDirectory
    segment_bytes: int
    file_bytes: int
    first: int
    synced: int
    counted: int
    """What the ends add up to; −1 where nobody counted, as in a pool of an older version."""
    channel: FileChannel

    def find_damage(self) -> str | None:
        """What is wrong with them, in a line; None where nothing is. Reads a few entries and
        records of each topic.
        """
        if rebuild_mark(self.lane).exists():
            return "they were being built when the store was killed"
        if self.counted < 0:
            return "nobody has counted their entries"
        total = 0
        segments = RecentSegments(self.lane, self.segment_bytes, self.channel, keep=_SEGMENTS_KEPT)
        for topic in self.channel.list(self.lane.consumequeue):
            try:
                total += self._find_end(topic, segments)
            except (DamagedFile, CorruptRecord, OSError, OverflowError, ValueError) as error:
                return f"topic {topic}: {error}"
        return None if total == self.counted else f"{total:,} of {self.counted:,} entries are there"

    def _find_end(self, topic: str, segments: RecentSegments) -> int:
        named = NamedQueue(topic, self.lane.number)
        with ConsumeQueue(self.lane.queue(topic), channel=self.channel) as queue:
            bounds = QueueBounds(queue, self.first, self.synced)
            first, end = bounds.find()
            for offset in {first, end - 1} if first < end else ():
                check_entry(queue, named, offset, segments)
            if bounds.goes_on(end):
                self._check_unsynced(queue, named, end, segments)
            return end

    def _check_unsynced(self, queue: ConsumeQueue, named: NamedQueue, end: int, segments: RecentSegments) -> None:
        """What comes behind `synced` are this topic's own entries too: the last one, or the last
        but one where a kill cut a write short, names its record."""
        last = end
        while len(entries := queue.entries(last, _BLOCK_ENTRIES)) and entries["size"].all():
            last += len(entries)
        last += int((entries["size"] == 0).argmax()) if len(entries) else 0
        if last == end:
            return
        try:
            check_entry(queue, named, last - 1, segments)
        except (CorruptRecord, DamagedFile):
            if last - 1 > end:
                check_entry(queue, named, last - 2, segments)
            elif int(queue.entries(end, 1)["physical_offset"][0]) < self.synced:
                raise

    def rebuild(self, report: Report) -> int:
        """Places the entries of [first, synced) and empties everything else; what the ends add up
        to then.
        """
        files = QueueFiles(self.lane, self.channel, self.file_bytes)
        repair = QueueRepair(files)
        quarantine = Quarantine(self.lane, self.segment_bytes, self.channel)
        try:
            repair.begin_rebuild(self.first)
            log = LogScan(MappedFileQueue(self.lane.commitlog, self.segment_bytes, self.channel), self.lane.number)
            for piece in log.pieces(self.first) if self.first < self.synced else ():
                if isinstance(piece, Gap):
                    if piece.start >= self.synced:
                        break
                    repair.gaps.append(piece)
                    reason = piece.reason or "the segment file is missing"
                    report(quarantine.note_corruption(piece.file, piece.start, min(piece.end, self.synced), reason))
                else:
                    repair.place(piece)
                if (piece.end if isinstance(piece, Gap) else piece.base_offset + piece.stop_position) >= self.synced:
                    break
            repair.cut(self.synced)
            repair.trim()
            repair.finish()
        finally:
            files.close()
        return total_of_ends(self.lane, self.first, self.synced, self.channel)


def check_queues(
    control: ControlRegion,
    lane: LaneDirectory,
    segment_bytes: int,
    file_bytes: int,
    channel: FileChannel,
    report: Report,
) -> None:
    """Builds the lane's consume queues anew where they do not prove themselves; then all positions
    and counts are right.

    Called while there is no dispatcher. A producer that holds the lane goes on meanwhile: it keeps
    its own queue offsets. Raises RecoveryError, DiskError.
    """
    words, base = control.words, control.lane_base(lane.number)
    synced = words[base + Lane.DISPATCH_SYNCED]
    counted = counted_entries(control.row(lane.number), synced)
    queues = AdoptedQueues(lane, segment_bytes, file_bytes, words[base + Lane.FIRST], synced, counted, channel)
    damage = queues.find_damage()
    if damage is None:
        return

    def say(line: str) -> None:
        report(f"lane {lane.number}: {line}")

    say(f"consume queues: {damage}; they are built anew from the log")
    words[base + Lane.DISPATCHED] = synced
    try:
        total = queues.rebuild(say)
    except OSError as error:
        doing = f"building the consume queues of {lane.path}"
        if error.errno in FAULT_BY_ERRNO and not isinstance(error, FileNotFoundError):
            raise disk_error(error.errno, doing) from error
        raise RecoveryError(f"{doing}: {error}; move it away, then start again") from error
    if total < counted:
        say(
            f"{counted - total:,} queue offsets are told by nothing any more: topics of which all messages were deleted, and "
            f"whose consume queues are gone, begin at 0 again"
        )
    forget_entries(control.row(lane.number))
    if total >= 0:
        count_entries(control.row(lane.number), synced, total)

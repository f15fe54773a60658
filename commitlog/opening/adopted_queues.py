"""Checks the consume queues of a lane whose pool is adopted, or builds them anew from the log.

The end of a queue is the next queue offset of its topic. So if somebody removed, emptied, cut or
swapped a queue while no process ran, offsets would be given out twice. Two checks prove the queues,
and neither needs a walk over the log. First, the sum of all ends must be the number that the
dispatcher has counted in shared memory. Second, the first and the last entry of each queue must
name their records. Queues that fail a check are built anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.quarantine import Quarantine, rebuild_mark
from commitlog.disk.store_directory import LaneDirectory
from commitlog.disk.topic_ends import TopicEnds, load_ends
from commitlog.errors import CorruptRecord, DamagedFile, PoolNotAdopted, named_faults
from commitlog.opening import Report
from commitlog.opening.noted_damage import NamedMessages, note_damage
from commitlog.opening.queue_files import QueueFiles
from commitlog.opening.queue_repair import QueueRepair
from commitlog.reading.log_begin import other_log
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.log_walk import RecentSegments
from commitlog.reading.queue_bounds import NamedQueue, QueueBounds, check_entry, total_of_ends
from commitlog.shm.control_region import ControlRegion, count_entries, counted_entries, first_kept, forget_entries
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import observe, publish

_SEGMENTS_KEPT = 8
_BLOCK_ENTRIES = 1 << 11


@dataclass(frozen=True, slots=True)
class AdoptedQueues:
    """All consume queues of one lane, up to log offset `synced`.

    The dispatcher places the entries behind it again.
    """

    lane_directory: LaneDirectory
    segment_bytes: int
    file_bytes: int
    first: int
    synced: int
    counted: int
    """The sum that the ends must have; −1 if nobody counted, as in an older version's pool."""
    channel: FileChannel
    store_id: str

    def find_damage(self) -> str | None:
        """Describes the damage of the queues in a line; None without damage.

        Reads a few entries and records of each topic.
        """
        if rebuild_mark(self.lane_directory).exists():
            return "they were being built when the store was killed"
        if self.counted < 0:
            return "nobody has counted their entries"
        total = 0
        segments = RecentSegments(self.lane_directory, self.segment_bytes, self.channel, keep=_SEGMENTS_KEPT)
        for topic in self.channel.list(self.lane_directory.consumequeue):
            try:
                total += self._find_end(topic, segments)
            except (DamagedFile, CorruptRecord, OSError, OverflowError, ValueError) as error:
                return f"topic {topic}: {error}"
        return None if total == self.counted else f"{total:,} of {self.counted:,} entries are there"

    def _find_end(self, topic: str, segments: RecentSegments) -> int:
        named = NamedQueue(topic, self.lane_directory.number)
        with ConsumeQueue(self.lane_directory.queue_path(topic), channel=self.channel) as queue:
            bounds = QueueBounds(queue, self.first, self.synced)
            first, end = bounds.find()
            for offset in {first, end - 1} if first < end else ():
                check_entry(queue, named, offset, segments)
            if bounds.goes_on(end):
                self._check_unsynced(queue, named, end, segments)
            return end

    def _check_unsynced(self, queue: ConsumeQueue, named: NamedQueue, end: int, segments: RecentSegments) -> None:
        """Checks that the entries behind `synced` are this topic's own too.

        The last entry must name its record. If a kill has cut the write of the last entry short,
        the last but one must name its record. Raises CorruptRecord, DamagedFile.
        """
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
        """Places the entries of [first, synced) and empties all other places.

        Returns the new sum of the ends; −1 if they can't be read.
        """
        files = QueueFiles(self.lane_directory, self.channel, self.file_bytes)
        repair = QueueRepair(files)
        try:
            repair.begin_rebuild(self.first, self.synced)
            segments = MappedFileQueue(self.lane_directory.commitlog, self.segment_bytes, self.channel)
            log = LogScan(segments, self.lane_directory.number)
            for piece in log.pieces(self.first) if self.first < self.synced else ():
                if isinstance(piece, Gap):
                    if piece.start >= self.synced:
                        break
                    gap = replace(piece, end=min(piece.end, self.synced))
                    repair.gaps.append(gap)
                else:
                    repair.place(piece, self.synced)
                if (piece.end if isinstance(piece, Gap) else piece.buffer_start + piece.stop_position) >= self.synced:
                    break
            ends = self._known_ends(report)
            for finding in repair.reach(ends.topics):
                report(finding)
            repair.cut(self.synced)
            repair.trim()
            messages = NamedMessages(
                self.lane_directory, self.first, self.synced, self.channel, self.synced, self.counted, ends
            )
            quarantine = Quarantine(self.lane_directory, self.segment_bytes, self.channel)
            for finding in note_damage(repair.gaps, messages, quarantine, anew=True):
                report(finding)
            repair.finish()
        finally:
            files.close()
        return total_of_ends(self.lane_directory, self.first, self.synced, self.channel)

    def _known_ends(self, report: Report) -> TopicEnds:
        """The ends of topics at the last stop: lower limits of their present ends."""
        try:
            known = load_ends(self.lane_directory, self.store_id, self.channel)
        except DamagedFile as error:
            report(str(error))
            return TopicEnds()
        return known if known.end <= self.synced else TopicEnds()


def check_queues(
    control: ControlRegion,
    lane_directory: LaneDirectory,
    segment_bytes: int,
    file_bytes: int,
    store_id: str,
    channel: FileChannel,
    report: Report,
) -> None:
    """Checks the lane's consume queues, and builds them anew if the check fails.

    When it returns, all positions and counts are right. It is called while there is no dispatcher.
    A producer that holds the lane goes on meanwhile: it keeps its own queue offsets. Raises
    RecoveryError, DiskError, and PoolNotAdopted if the log belongs to another lane or store.
    """
    row = control.row(lane_directory.number)
    synced = observe(row, Lane.DISPATCH_SYNCED)
    counted = counted_entries(row, synced)
    first = first_kept(row)
    queues = AdoptedQueues(lane_directory, segment_bytes, file_bytes, first, synced, counted, channel, store_id)
    damage = queues.find_damage()
    if damage is None:
        return

    def say(line: str) -> None:
        report(f"lane {lane_directory.number}: {line}")

    segments = MappedFileQueue(lane_directory.commitlog, segment_bytes, channel)
    if other := other_log(segments, lane_directory, synced):
        raise PoolNotAdopted(f"{lane_directory.commitlog}: {other}")
    say(f"consume queues: {damage}; they are built anew from the log")
    publish(row, Lane.DISPATCHED, synced)
    with named_faults(f"building the consume queues of {lane_directory.path}", "move it away, then start again"):
        total = queues.rebuild(say)
    if total < counted:
        say(
            f"{counted - total:,} queue offsets are told by nothing any more: topics of which all messages were deleted, and "
            f"whose consume queues are gone, begin at 0 again, or where they were trimmed"
        )
    forget_entries(row)
    if total >= 0:
        count_entries(row, synced, total)

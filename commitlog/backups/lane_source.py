"""A lane of the store that is copied: how far it may be copied, and its segments."""

from __future__ import annotations

from functools import partial

from commitlog.disk.locks import is_running, poll
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.trim_marks import TrimMarks
from commitlog.errors import BackupRefused, DamagedFile
from commitlog.reading.flushed_evidence import FlushedEvidence, flushed_by_age
from commitlog.reading.log_begin import begin_of_log, other_lanes_log, other_log
from commitlog.reading.log_scan import Gap, LogScan
from commitlog.reading.view import LaneLimits, StoreView
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.lines import for_shell

_START_SECONDS = 60
"""How long a start or a stop of the store may take before a backup gives up."""


def _limits_of(view: StoreView, lane: int, store_id: str) -> LaneLimits:
    """The limits of a lane of this store now.

    A store without a pool whose supervisor runs is being started or stopped. Then its positions may
    be old, so this waits for the end of it. Raises BackupRefused, StoreNotFound.
    """
    until = SYSTEM_CLOCK.monotonic_ns() + _START_SECONDS * 1_000_000_000
    if poll(partial(_settled, view), until, SYSTEM_CLOCK) is None:
        raise BackupRefused(f"{view.path}: its start is under way; run the same command again when it runs")
    if view.store_id != store_id:
        raise BackupRefused(f"{view.path}: another store has taken this place; give its backup a new directory")
    return view.limits(lane)


def _settled(view: StoreView) -> bool | None:
    view.refresh()
    return True if view.live or view.is_replica or not is_running(view.directory, None) else None


class LaneSource:
    """What is copied of a lane: its log in [first, end), and what was trimmed of it.

    Retention may raise `first` meanwhile. The marks are read before the end: a trim takes only what
    is flushed, so they are not above it. Raises BackupRefused, StoreNotFound, OSError.
    """

    def __init__(self, view: StoreView, number: int) -> None:
        self.view, self.number = view, number
        self.directory = view.lane_directory(number)
        self.first = self.end = 0
        self._whole = 0
        """A record's end: the end of the log may lie inside a record behind it."""
        self.entries = -1
        """What the queues' ends add up to at `end`, as the store has counted; −1: not known."""
        self._store_id = view.store_id
        self.trims = TrimMarks(self.directory, view.channel)
        self.damage = ""
        """Why the marks can't be read; empty where they can."""
        self.other = ""
        """What tells that the log is another one; empty where nothing does."""
        try:
            self.trims.refresh(self._store_id)
        except DamagedFile as error:
            self.damage = str(error)
        self._look()

    def _look(self) -> None:
        limits = _limits_of(self.view, self.number, self._store_id)
        self.first, self.end = limits.first, limits.flushed
        self.entries = limits.entries if limits.dispatched == limits.flushed else -1
        segments = MappedFileQueue(self.directory.commitlog, self.view.segment_bytes, self.view.channel)
        self.other = other_log(segments, self.directory, limits.dispatched)
        if not self.view.live and limits.stopped_properly:
            self._whole = limits.dispatched
        elif not self.view.live:
            self._find_end(limits, segments)

    def _find_end(self, limits: LaneLimits, segments: MappedFileQueue) -> None:
        """Finds the end that the next start will find.

        The store was killed, and its pool is gone. The recorded positions may be a second older
        than the log, and named readers may be further. Good records that follow are the log's.
        """
        if other := other_lanes_log(segments, self.directory):
            raise BackupRefused(other)
        log, recorded = LogScan(segments, self.number), limits.flushed
        known, noted = max(recorded, flushed_by_age(log)), self.view.facts.lanes.get(self.number, 0)
        self.first = begin_of_log(log, self.directory, limits.first if recorded else None, noted)
        evidence = FlushedEvidence(self.directory, log, self.view.channel, recorded > 0, known, noted)
        evidence.look()
        for piece in log.pieces(max(limits.dispatched, self.first)):
            if not isinstance(piece, Gap):
                self.end = max(self.end, piece.buffer_start + piece.stop_position)
                continue
            evidence.look_at(piece)
            self._whole = evidence.whole
            if evidence.is_damage(piece) or (piece.start < evidence.flushed and not piece.last):
                self.end = max(self.end, evidence.flushed) if piece.last else self.end
            else:
                self.end = piece.start
                if not piece.last and not recorded:
                    raise BackupRefused(
                        f"lane {self.number}: damaged at offset {piece.start}, and there are no positions that say how far "
                        f"it was flushed; `commitlog run {for_shell(self.view.path)}` repairs it, then make the backup"
                    )
                return

    def is_unfinished(self, gap: Gap) -> bool:
        """Whether the flusher was within the record with which the log's last gap begins."""
        return gap.last and gap.start >= self._whole and gap.is_unfinished(self.end)

    def is_retired(self, start: int) -> bool:
        """Whether retention has deleted a segment since; then `first` is raised.

        Where it has deleted all that was to be copied, `end` is raised too.
        """
        first = _limits_of(self.view, self.number, self._store_id).first
        if first <= start:
            return False
        self.first = first
        if first >= self.end:
            self._look()
        return True

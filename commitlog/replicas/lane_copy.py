"""One lane of a replica: takes its log in, makes it durable, and has it indexed behind that.

    first       recorded          indexed        durable          end
      ├────────────┼────────────────┼───────────────┼──────────────┤
      │            │ consume queues │ acknowledged, │ written, its │
      │            │ have entries   │ fdatasynced   │ CRCs hold    │

A record is checked before it is written, and only whole records are written. So the log on the disk
is always a prefix of the store's. Three threads use a lane: one takes in, one syncs beside it, one
indexes. On the disk it looks like a lane of a store that runs: it has an `abort` file, and
`positions` are recorded behind what they name. So recovery knows what to do after a kill.

The caller holds one lock for `begin`, `read_notes`, `index`, `record` and what is of `indexing`.
"""

from __future__ import annotations

import errno
import os
import threading

from commitlog.disk.new_segment import NewSegment
from commitlog.disk.quarantine import corruption_notes, read_corruption_note
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import CorruptRecord, ReplicaRefused, ReplicationRefused
from commitlog.opening import Report
from commitlog.opening.new_pool import queue_file_bytes
from commitlog.opening.recovery import recover_lane
from commitlog.reading.log_scan import Gap
from commitlog.record.crc import crc32
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from commitlog.replicas.copy_indexing import CopyIndexing, is_noted
from commitlog.replicas.wire import TAIL_BYTES, LaneTail
from commitlog.shm.layout import segment_start


class Joiner:
    """Puts two pieces of a log together, always in the same memory: new pages are dear.

    What `join` has returned is good until it is called again.
    """

    def __init__(self) -> None:
        self._room = memoryview(b"")

    def join(self, first: bytes, second: bytes | memoryview) -> memoryview:
        count = len(first) + len(second)
        if len(self._room) < count:
            self._room = memoryview(bytearray(2 * count))
        self._room[: len(first)] = first
        self._room[len(first) : count] = second
        return self._room[:count]


class LaneCopy:
    """One lane. Raises OSError where the disk refuses.

    Attributes are offsets of its log: `first` and `end` belong to the thread that takes in,
    `durable` to whoever holds `_sync_lock`. `indexing` belongs to the thread that indexes.
    """

    def __init__(self, directory: StoreDirectory, facts: StoreFacts, number: int) -> None:
        self.number, self._store, self._facts = number, directory, facts
        self.channel, self.size = directory.channel, facts.segment_bytes
        self.lane = directory.lane_directory(number)
        self.first = self.end = self.durable = 0
        self._pending = b""
        """What was received behind `end`: the begin of a record."""
        self._gaps: list[Gap] = []
        self._start, self._fd = -1, -1
        self._sync_lock = threading.Lock()
        """Is held to sync, and to go on to another segment."""
        self.indexing = CopyIndexing(directory, facts, number)

    # ---- begin and end --------------------------------------------------------------------------

    def recover(self, report: Report) -> None:
        """Goes on with what an earlier run has left. Raises RecoveryError, DiskError."""
        found = recover_lane(
            self.lane, self.size, self.channel, report,
            queue_file_bytes=queue_file_bytes(self._facts), store_id=self._facts.id,
        )  # fmt: skip
        self.first, self.end, self.durable = found.first, found.end, found.end
        self.indexing.go_on(found, report)
        self._mark_abort()
        self.read_notes()

    def begin(self, first: int) -> None:
        """Makes the lane, or makes one that has nothing yet begin at another offset.

        A log has at least one file, which tells where it begins.
        """
        for directory in (self.lane.commitlog, self.lane.consumequeue, self.lane.tmp):
            self.channel.create_directory(directory, below=self._store.path)
        self._mark_abort()
        self.read_notes()  # the store has sent them before the lane
        if first:
            self._make_segment(first)
        with self._sync_lock:
            self._close_segment()
            self.first = self.end = self.durable = self.indexing.indexed = first
        self.record()
        self.indexing.unlink_below(first)

    def _mark_abort(self) -> None:
        self.channel.replace_file(self.lane.abort_file, str(os.getpid()).encode())

    def close(self) -> None:
        """Closes what it has open; nothing is written."""
        self._close_segment()
        self.indexing.close()

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing of the log yet, and may begin anywhere."""
        return self.end == self.first

    def tail(self) -> LaneTail:
        """Returns the durable end of the lane, for a Hello."""
        start = segment_start(max(self.durable - 1, 0), self.size)
        begin = max(self.durable - TAIL_BYTES, start, self.first)
        with self.channel.opened(self.lane.segment_path(start)) as fd:
            crc = crc32(self.channel.pread(fd, self.durable - begin, begin - start))
        return LaneTail(self.number, begin, self.durable, crc)

    # ---- taking in ------------------------------------------------------------------------------

    def forget_pending(self) -> None:
        """Forgets a record that a lost connection has left without its end."""
        self._pending = b""

    def read_notes(self) -> None:
        """Reads which ranges of the log are damaged in the store, too, and are taken as they are.

        Raises DamagedFile.
        """
        gaps = []
        for _, path in corruption_notes(self.lane, self.channel):
            start, end = read_corruption_note(path, self.channel)
            gaps.append(Gap(start, end, str(path), "noted", dirty=True, last=False, claimed_end=start))
        self._gaps = gaps
        self.indexing.take_gaps(gaps)

    def write(self, offset: int, body: bytes | memoryview, joiner: Joiner) -> None:
        """Takes bytes in, and writes the records that are whole now.

        All lanes share a `joiner`, because frames come one by one.

        Raises ReplicationRefused for bytes that do not follow on, and ReplicaRefused for bytes that
        are no records. Then nothing of them is written.
        """
        where = self.end + len(self._pending)
        start = segment_start(self.end, self.size)
        if offset != where:
            raise ReplicationRefused(f"lane {self.number}: data for offset {offset:,}, and the copy ends at {where:,}")
        if offset + len(body) > start + self.size:
            raise ReplicationRefused(f"lane {self.number}: data at offset {offset:,} goes over its segment's end")
        data = joiner.join(self._pending, body) if self._pending else memoryview(body)
        whole = self._whole_records(data, start)
        if whole:
            self._open_segment(start)
            self.channel.pwrite(self._fd, data[:whole], self.end - start)
            self.end += whole
        self._pending = bytes(data[whole:])

    def _whole_records(self, data: memoryview, start: int) -> int:
        """How many bytes of the data, which begin at `end`, are whole records. See `write`."""
        at, rest = 0, start + self.size - self.end
        while at < len(data):
            gap = next((gap for gap in self._gaps if gap.start <= self.end + at < gap.end), None)
            if gap is not None:
                at = min(gap.end - self.end, len(data))
                continue
            table = scan(data, at, len(data), self.end, self.number, check_crc=True, segment_end=rest)
            at = table.stop_position
            if table.stop is Stop.FULL or is_noted(self._gaps, self.end + at):
                continue
            if table.stop is Stop.BLANK:
                return len(data) if len(data) == rest else at
            if table.stop is Stop.PARTIAL and len(data) < rest:
                return at
            if at < len(data):
                reason = table.reason or "zeros where a record should be"
                path = str(self.lane.segment_path(start))
                raise ReplicaRefused(
                    f"{CorruptRecord(reason, self.end + at, path)}, as the store sends it: `commitlog verify` on the store "
                    f"says whether it is damaged there; start it again to have its damage noted, then the copy goes on"
                )
        return at

    def sync(self) -> bool:
        """Makes durable what was written until now. Returns whether there was anything."""
        with self._sync_lock:
            end = self.end  # read before the sync: more may be written meanwhile
            if self.durable == end:
                return False
            self._sync_segment()
            self.durable = end
            return True

    def _sync_segment(self) -> None:
        """Syncs the open segment. It counts only if the file still has its name after it."""
        if self._fd < 0:
            return
        self.channel.fdatasync(self._fd)
        path = self.lane.segment_path(self._start)
        if not self.channel.is_at(self._fd, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _open_segment(self, start: int) -> None:
        if start == self._start:
            return
        with self._sync_lock:
            self._sync_segment()  # it is full: nothing more comes to it
            self._close_segment()
        path = self.lane.segment_path(start)
        if not path.exists():
            self._make_segment(start)
        self._fd, self._start = self.channel.open(path, write=True), start

    def _make_segment(self, start: int) -> None:
        with NewSegment(self.lane, start, self.size, self.channel) as segment:
            segment.publish()

    def _close_segment(self) -> None:
        if self._fd >= 0:
            self.channel.close(self._fd)
        self._start = self._fd = -1

    def retire(self, first: int) -> None:
        """Notes that the store's retention keeps the lane from `first` on. `record` removes it."""
        if first % self.size or not self.first <= first <= self.end:
            raise ReplicationRefused(f"lane {self.number}: begins at {first:,}, and the copy has {self.end:,} bytes")
        self.first = first

    def index(self) -> bool:
        """Places the entries of some records that are durable. Returns whether it did anything."""
        durable = self.durable  # first: the other thread may move both on meanwhile
        return self.indexing.index(self.first, durable)

    def record(self) -> None:
        """Records how far the lane is, and removes what the store's retention has deleted."""
        first = self.first  # first: the other thread may move both on meanwhile
        self.indexing.record(first, self.durable)

    def removed(self) -> list[int]:
        """The starts of its whole segments that have no file any more. Raises OSError."""
        first, end = self.first, self.durable - self.durable % self.size
        names = {*self.channel.list(self.lane.commitlog)}
        return [start for start in range(first, end, self.size) if self.lane.segment_path(start).name not in names]

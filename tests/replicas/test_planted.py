"""Planted bugs: every check passes with the code as it is, and fails with its mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.config import ReplicationConfig
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.replica_mark import ReplicaMark, save_mark
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import StoreSuperseded
from commitlog.record.record_layout import Buffer
from commitlog.replicas import promotion
from commitlog.replicas.lane_copy import Joiner, LaneCopy
from commitlog.replicas.wire import Hello
from commitlog.shm.layout import Lane
from commitlog.stages.replicating.in_sync import InSync
from commitlog.stages.replicating.lane_log import LaneLog, LaneReader
from commitlog.stages.replicating.replica_greeting import Greeting
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.hand_made import HandMadeStore

SEGMENT_BYTES = 1 << 16
ROW_WORDS = 512


class Rows:
    """A control region of rows alone."""

    def __init__(self) -> None:
        self._rows = [memoryview(bytearray(8 * ROW_WORDS)).cast("Q") for _ in range(2)]

    def row(self, lane: int) -> memoryview:
        return self._rows[lane]


class Noting(FileChannel):
    """Notes for each descriptor whether it has bytes that were not synced."""

    def __init__(self) -> None:
        self.dirty: set[int] = set()

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        super().pwrite(fd, data, offset)
        self.dirty.add(fd)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.dirty.discard(fd)

    def close(self, fd: int) -> None:
        assert fd not in self.dirty, "a file was closed with bytes that are not synced"
        super().close(fd)


def made_lane(path: Path) -> tuple[HandMadeStore, bytes]:
    """A store with one lane of two segments, and the bytes of its log."""
    store = HandMadeStore(path / "made", SEGMENT_BYTES)
    for number in range(100):
        store.lane(0).append("t", b"%04d" % number * 200)
    store.publish()
    files = sorted((path / "made/lanes/0/commitlog").iterdir())
    return store, b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def log_of(store: HandMadeStore, flushed: int, committed: int) -> LaneLog:
    row = Rows().row(0)
    row[Lane.FLUSHED], row[Lane.COMMITTED] = flushed, committed
    return LaneLog(store.directory.lane_directory(0), row, SEGMENT_BYTES, FileChannel())


def only_what_is_synced_is_acknowledged(path: Path) -> None:
    """`durable` is what an acknowledgement says."""
    _, data = made_lane(path)
    channel = Noting()
    directory = StoreDirectory(path / "copy", channel)
    directory.path.mkdir()
    lane = LaneCopy(directory, StoreFacts("0" * 32, SEGMENT_BYTES), 0)
    lane.begin(0)
    try:
        lane.write(0, data[:SEGMENT_BYTES], Joiner())
        lane.sync()
        assert lane.durable > 0
        assert not channel.dirty, "what is not synced is acknowledged"
    finally:
        channel.dirty.clear()
        lane.close()


def only_what_is_flushed_is_sent(path: Path) -> None:
    store, data = made_lane(path)
    log = log_of(store, 20_000, len(data))
    log.advance()
    assert 0 < log.limit <= 20_000, "what is only committed is sent"


def no_frame_goes_over_the_end_of_a_segment(path: Path) -> None:
    store, data = made_lane(path)
    log = log_of(store, len(data), len(data))
    log.advance()
    assert log.limit == len(data) > SEGMENT_BYTES
    reader, where, room = LaneReader(log), 0, memoryview(bytearray(len(data)))
    try:
        while where < log.limit:
            body = room[: reader.read_into(room, where)]
            assert where // SEGMENT_BYTES == (where + len(body) - 1) // SEGMENT_BYTES, "over a segment's end"
            assert body == data[where : where + len(body)]
            where += len(body)
    finally:
        reader.close()


def a_promoted_copy_stops_the_old_primary(path: Path) -> None:
    store, _ = made_lane(path)
    old = StoreDirectory(path / "old")
    old.path.mkdir()
    facts = store.directory.load()
    save_mark(store.directory, ReplicaMark("here:1", "copy", complete=True))
    promotion.promote(store.path)
    hello = Hello("copy", facts.id, store.directory.load().epoch)
    try:
        Greeting(old, facts, {}, ReplicationConfig()).check(hello, "here:1")
    except StoreSuperseded:
        return
    raise AssertionError("the old primary goes on")


def a_lost_replica_counts_no_more(path: Path) -> None:
    del path
    control, replica = Rows(), object()
    row = control.row(0)
    row[Lane.FLUSHED] = 100
    in_sync = InSync(control, 1, ReplicationConfig(), SYSTEM_CLOCK, lambda *_: None)  # type: ignore[arg-type]
    in_sync.come(replica, "copy")
    in_sync.acknowledge(replica, 0, 100)
    assert row[Lane.IN_SYNC] == 1
    in_sync.leave(replica)
    assert row[Lane.IN_SYNC] == 0, "a lost replica counts"


def _acknowledges_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(lane: LaneCopy) -> bool:
        lane.durable = lane.end
        return True

    patch.setattr(LaneCopy, "sync", sync)


def _sends_what_is_only_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commitlog.stages.replicating.lane_log.Lane.FLUSHED", Lane.COMMITTED)


def _goes_over_the_end(patch: pytest.MonkeyPatch) -> None:
    def read_into(reader: LaneReader, room: memoryview, where: int) -> int:
        folder = reader.log.directory.commitlog
        data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))[where : reader.log.limit]
        room[: len(data)] = data[: len(room)]
        return min(len(data), len(room))

    patch.setattr(LaneReader, "read_into", read_into)


def _does_not_raise_the_epoch(patch: pytest.MonkeyPatch) -> None:
    save = StoreDirectory.save
    patch.setattr(StoreDirectory, "save", lambda one, facts: save(one, StoreFacts(facts.id, facts.segment_bytes)))


def _counts_a_lost_replica(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSync, "leave", lambda *_: None)


Check = Callable[[Path], None]
BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], Check]] = [
    (_acknowledges_before_the_sync, only_what_is_synced_is_acknowledged),
    (_sends_what_is_only_committed, only_what_is_flushed_is_sent),
    (_goes_over_the_end, no_frame_goes_over_the_end_of_a_segment),
    (_does_not_raise_the_epoch, a_promoted_copy_stops_the_old_primary),
    (_counts_a_lost_replica, a_lost_replica_counts_no_more),
]


@pytest.mark.parametrize("check", [check for _, check in BUGS], ids=lambda check: check.__name__)
def test_the_code_as_it_is(check: Check, tmp_path: Path) -> None:
    """Every check passes."""
    check(tmp_path)


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=lambda one: one.__name__.strip("_"))
def test_a_mistake_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails because of the mistake: without it, it passes."""
    with monkeypatch.context() as patch:
        bug(patch)
        with pytest.raises(AssertionError):
            check(tmp_path)

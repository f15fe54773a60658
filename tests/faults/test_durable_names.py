"""A file is unlinked only when it is durable that nobody needs it.

And every name that somebody relies on is synced by somebody.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.layout import Lane
from tests.builders.made_lane import crash, make_lane
from tests.faults.bench import bench
from tests.faults.test_retention_races import KEPT, Log, Plain, log_at


class Watched(Plain):
    """A channel that notes what happens at a sync of `positions`, and the directories synced.

    All channels of a test share these notes.
    """

    on_positions: ClassVar[Callable[[], None]]
    directories: ClassVar[Counter[Path]]
    is_killed: ClassVar[bool]

    def fdatasync(self, fd: int) -> None:
        if self._paths[fd].endswith("/positions"):
            Watched.on_positions()
        super().fdatasync(fd)

    def sync_directory(self, path: str | Path) -> None:
        if Watched.is_killed:
            raise KeyboardInterrupt  # nearly as if the process were killed there
        Watched.directories[Path(path)] += 1
        super().sync_directory(path)


@pytest.fixture(autouse=True)
def nothing_watched() -> None:
    Watched.on_positions = staticmethod(lambda: None)
    Watched.directories, Watched.is_killed = Counter(), False


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with log_at(tmp_path / "store", Watched) as made:
        yield made


def segments(log: Log) -> int:
    return len(files(log, "commitlog"))


def files(log: Log, part: str) -> list[str]:
    return sorted(os.listdir(log.path / "lanes/0" / part))


def house_keeping(log: Log, *names: str) -> None:
    for name in names or ("flusher", "allocator") * 3:
        log.bench.clock.step(1)
        log.bench.stages[name].on_wait_end()


# ---- retention and `positions` -----------------------------------------------------------------


def test_nothing_goes_while_the_sync_of_positions_lasts(log: Log) -> None:
    """The bytes are only in the page cache: a power cut would leave the older file.

    That file says that the segments are there.
    """
    log.grow()
    house_keeping(log, "allocator")
    before, during = segments(log), []

    def allocator_goes_on() -> None:
        house_keeping(log, "allocator", "allocator")
        during.append(segments(log))

    Watched.on_positions = staticmethod(allocator_goes_on)
    house_keeping(log, "flusher")
    assert before > KEPT
    assert during == [before]
    house_keeping(log, "allocator")
    assert segments(log) <= KEPT


def test_nothing_goes_while_the_sync_of_positions_fails(log: Log) -> None:
    """Neither segments nor consume queue files go; all of them do when the disk works again."""

    def fails() -> None:
        raise OSError(errno.EIO, "broken")

    log.grow()
    before = [files(log, part) for part in ("commitlog", "consumequeue/orders/0")]
    Watched.on_positions = staticmethod(fails)
    house_keeping(log)
    assert log.bench.lane(Lane.FIRST) > 0
    assert [files(log, part) for part in ("commitlog", "consumequeue/orders/0")] == before
    Watched.on_positions = staticmethod(lambda: None)
    house_keeping(log)
    assert segments(log) <= KEPT
    assert min(int(f.name) for f in (log.path / "lanes/0/consumequeue/orders/0").iterdir()) > 0


def test_positions_count_while_queues_are_built_anew_beside_a_deletion(log: Log) -> None:
    """The dispatcher begins again at the log's first offset, which the allocator just raised."""
    log.grow()
    house_keeping(log, "allocator")
    first = log.bench.lane(Lane.FIRST)
    log.producer._lease.row[Lane.DISPATCH_SYNCED] = 0
    house_keeping(log, "flusher")
    recorded = PositionsFile(StoreDirectory(log.path).lane_directory(0), "", DISK).load()
    assert recorded is not None
    assert recorded.first_where == first > 0


def test_a_stop_unlinks_what_its_flusher_recorded(log: Log) -> None:
    """The flusher leaves before the allocator does."""
    log.grow()
    house_keeping(log, "allocator")
    first = log.bench.lane(Lane.FIRST)
    assert log.bench.stop().drained
    starts = sorted(int(file.name) for file in (log.path / "lanes/0/commitlog").iterdir())
    assert starts[0] == first > 0


def test_an_adopting_start_unlinks_what_it_has_recorded_itself(tmp_path: Path) -> None:
    """Somebody may have put an older `positions` file back since its predecessor wrote one."""
    path = tmp_path / "store"
    with log_at(path) as log:
        log.grow()
        house_keeping(log, "allocator")
        first = log.bench.lane(Lane.FIRST)
        house_keeping(log, "flusher")
        before = segments(log)
        assert log.bench.lane(Lane.FIRST_RECORDED) == first > 0
        log.bench.abandon()
        with bench(path, channel=Plain) as made:
            assert made.lane(Lane.FIRST) == first
            assert made.lane(Lane.FIRST_RECORDED) == 0
            made.stages["allocator"].on_wait_end()
            assert segments(log) == before
            made.stages["flusher"].on_wait_end()
            assert made.lane(Lane.FIRST_RECORDED) == first
            made.stages["allocator"].on_wait_end()
            assert segments(log) < before


# ---- names that somebody made who was killed before he synced them -----------------------------


def killed_at_a_sync_of_a_directory(act: Callable[[], object]) -> None:
    Watched.is_killed = True
    with pytest.raises(KeyboardInterrupt):
        act()
    Watched.is_killed = False
    Watched.directories.clear()


def test_a_dispatcher_syncs_the_names_that_its_predecessor_made(log: Log) -> None:
    """The names of the file, of the topic's directory and of the queue's.

    A queue that is found there in full size may have none of them on the disk.
    """
    made = log.bench
    log.producer.send("new", b"x")
    made.turn("allocator", "flusher", "committer", "flusher")
    made.clock.step(1)
    made.turn("committer", "flusher")
    killed_at_a_sync_of_a_directory(lambda: (made.stages["dispatcher"].work(), made.stages["dispatcher"].on_wait_end()))
    made.crash("dispatcher")
    queues = log.path / "lanes/0/consumequeue"
    assert (queues / "new").is_dir()
    dispatcher = made.start("dispatcher")
    dispatcher.work()
    dispatcher._sync()
    assert made.lane(Lane.DISPATCH_SYNCED) == made.lane(Lane.WROTE)
    for directory in (queues / "new/0", queues / "new", queues, queues.parent):
        assert Watched.directories[directory] == 1
    for _ in range(3):
        log.producer.send("new", b"x")
        made.settle()
        dispatcher._sync()
    assert Watched.directories[queues / "new/0"] == 1, "once is enough"


def test_positions_are_named_by_whoever_writes_them_first(log: Log) -> None:
    """A flusher was killed between making the file and syncing its name: the next one syncs it."""
    made = log.bench
    log.producer.send("t", b"x")
    made.turn("allocator", "flusher", "committer", "flusher")
    made.clock.step(1)
    made.turn("committer", "flusher")
    killed_at_a_sync_of_a_directory(made.stages["flusher"].record_positions)
    made.crash("flusher")
    assert (log.path / "lanes/0/positions").exists()
    made.start("flusher").record_positions()
    assert Watched.directories[log.path / "lanes/0"] == 1


def test_an_allocator_syncs_the_lane_that_a_killed_producer_made(log: Log) -> None:
    """It does so before it announces a segment in it."""
    made = log.bench
    made.turn("allocator")
    made.crash("allocator")
    Watched.directories.clear()
    made.start("allocator")
    made.turn("allocator")
    for _ in range(2):
        log.grow()
    for directory in (log.path, log.path / "lanes"):
        assert Watched.directories[directory] == 1


def test_recovery_syncs_the_names_of_a_lane(tmp_path: Path) -> None:
    """The names of its parts, of its quarantine, and its own: their maker may have been killed."""
    lane = make_lane(tmp_path / "lane")
    lane.directory.quarantine.mkdir()
    crash(lane, lane.end)
    synced: list[Path] = []

    class Noting(FileChannel):
        def sync_directory(self, path: str | Path) -> None:
            synced.append(Path(path))
            super().sync_directory(path)

    lane.recover(Noting())
    assert {tmp_path, lane.directory.path} <= set(synced)

"""What may leave the machine: flushed bytes, in whole records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.disk.file_channel import DISK
from commitlog.disk.quarantine import Quarantine
from commitlog.shm.layout import Lane
from commitlog.stages.replicating.lane_log import LaneLog, LaneReader
from commitlog.stages.replicating.peer_connection import Throttle
from tests.builders.idle_store import IdleStore, idle_store
from tests.builders.made_lane import SEGMENT, MadeLane
from tests.fake_clock import SetClock


class Case:
    """A lane of four segments, of which a test says how much is flushed."""

    def __init__(self, store: IdleStore) -> None:
        self.store = store
        self.lane = MadeLane(store.directory.lane_directory(0))
        for count in range(60):
            self.lane.append("t", b"x" * (count * 7 % 200))
        self.log = LaneLog(self.lane.directory, store.control.row(0), SEGMENT, DISK)

    def limit(self, flushed: int, **words: int) -> int:
        self.store.set(0, COMMITTED=self.lane.end, FLUSHED=flushed, **words)
        self.log.advance()
        return self.log.limit


@pytest.fixture
def case(tmp_path: Path, shm_root: Path) -> Iterator[Case]:
    with idle_store(tmp_path / "store", shm_root / "pool", segment_bytes=SEGMENT) as store:
        made = Case(store)
        yield made
        made.log.close()


def test_the_limit_is_the_end_of_the_last_record_that_is_flushed(case: Case) -> None:
    """Committed bytes do not count. Behind a BLANK it is the start of the next segment."""
    ends = {0, *(end for _, end in case.lane.places)}
    starts = [start for start, _ in case.lane.places]
    for flushed in range(0, case.lane.end + 1, 11):
        whole = max(end for end in ends if end <= flushed)
        blank_ends = flushed - flushed % SEGMENT
        expected = max(whole, blank_ends if blank_ends in starts else 0)
        assert case.limit(flushed) == expected, flushed
    assert case.limit(case.lane.end) == case.lane.end


def test_it_may_begin_anywhere(case: Case) -> None:
    """Where retention has cut, or where the dispatcher is."""
    start = case.lane.places[30][0]
    log = LaneLog(case.lane.directory, case.store.control.row(0), SEGMENT, DISK)
    case.store.set(0, FLUSHED=start + 3, DISPATCHED=start, FIRST=SEGMENT, RETIRED=SEGMENT)
    log.advance()
    assert (log.limit, log.first) == (start, SEGMENT)
    log.close()


def test_damage_stops_it_until_the_dispatcher_has_passed(case: Case) -> None:
    """What is damaged on this disk is sent as it is: a copy must be byte for byte."""
    (start, end), (_, after) = case.lane.places[3:5]
    case.lane.write(start, b"\xff" * 8)
    assert case.limit(case.lane.end) == start
    assert case.limit(case.lane.end, DISPATCHED=end) == case.lane.end
    assert after < case.lane.end


def test_a_read_ends_with_the_limit_the_segment_or_what_was_asked(case: Case) -> None:
    case.limit(case.lane.places[-1][0] + 1)
    reader = LaneReader(case.log)
    data, where, room = b"", 0, memoryview(bytearray(1_000))
    while count := reader.read_into(room, where):
        assert count <= 1_000
        assert where // SEGMENT == (where + count - 1) // SEGMENT
        data, where = data + room[:count], where + count
    reader.close()
    assert where == case.log.limit == case.lane.places[-1][0]
    files = sorted(case.lane.directory.commitlog.iterdir())
    assert data == b"".join(file.read_bytes() for file in files)[:where]


def test_a_segment_that_is_gone(case: Case) -> None:
    case.limit(case.lane.end)
    case.lane.directory.segment_path(0).unlink()
    with pytest.raises(FileNotFoundError):
        LaneReader(case.log).read_into(memoryview(bytearray(10)), 0)
    assert case.store.get(0, Lane.FIRST) == 0


@pytest.mark.parametrize("place", ["nothing", "a directory"])
def test_a_segment_that_is_lost_and_noted_is_sent_as_zeros(case: Case, place: str) -> None:
    """The copy has the note, and takes what it names as it is."""
    case.limit(case.lane.end, DISPATCHED=case.lane.end)
    segment = case.lane.directory.segment_path(0)
    segment.unlink()
    if place == "a directory":
        segment.mkdir()
    Quarantine(case.lane.directory, SEGMENT, DISK).note_corruption(str(segment), 0, SEGMENT, "missing", is_named=True)
    room = memoryview(bytearray(b"x" * 2 * SEGMENT))
    assert LaneReader(case.log).read_into(room, 0) == SEGMENT
    assert not any(room[:SEGMENT])


def test_the_throttle_counts_by_the_second() -> None:
    clock = SetClock()
    clock.boot -= clock.boot % 10**9
    throttle = Throttle(1_000, clock)
    assert throttle.take(600)
    assert throttle.take(600)
    assert not throttle.take(1)
    clock.pass_seconds(1)
    assert throttle.take(900)  # 200 of it are still those of the second before
    assert not throttle.take(1)
    clock.pass_seconds(1)
    assert throttle.take(1)
    assert all(Throttle(0, clock).take(1 << 30) for _ in range(3))

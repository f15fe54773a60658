"""Recovery of a lane: where its log ends, what is cut off, what is reported, and that it may be done again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commitlog.errors import RecoveryError
from commitlog.file_channel import DISK
from commitlog.recovery import LaneEnd, recover_lane
from commitlog.store_directory import LaneDirectory
from tests.commitlog.made_lane import SEGMENT, MadeLane, image, make_lane


@pytest.fixture
def lane(tmp_path: Path) -> MadeLane:
    return make_lane(tmp_path / "3")


def check_again(lane: MadeLane, end: LaneEnd) -> None:
    """A second recovery says the same end and changes no byte."""
    before = image(lane.directory.path)
    again = lane.recover()
    assert (again.first, again.end, again.allocated) == (end.first, end.end, end.allocated)
    assert again.last_store_timestamp == end.last_store_timestamp
    assert image(lane.directory.path) == before


def test_a_new_lane_is_all_zeros(tmp_path: Path) -> None:
    """Its directories are made, nothing is found."""
    directory = LaneDirectory(tmp_path / "lanes" / "0", 0)
    assert recover_lane(directory, SEGMENT, DISK, pytest.fail) == LaneEnd(0, 0, 0, 0, 0, ())
    assert directory.commitlog.is_dir()
    assert directory.consumequeue.is_dir()
    assert directory.tmp.is_dir()


def test_a_sound_lane_is_left_as_it_is(lane: MadeLane) -> None:
    """After a clean stop: every position is the end."""
    before = image(lane.directory.path)
    end = lane.recover()
    assert (end.first, end.end, end.dispatched) == (0, lane.end, lane.end)
    assert end.allocated == (lane.end // SEGMENT + 1) * SEGMENT
    assert end.last_store_timestamp == 1_000_000 + len(lane.records) - 1
    assert end.findings == ()
    after = image(lane.directory.path)
    assert {name: after[name] for name in before} == before
    check_again(lane, end)


def test_without_positions_the_whole_log_is_walked_and_nothing_lost(lane: MadeLane) -> None:
    """Missing, torn or empty: the same end, and consume queues that are right."""
    for content in (None, b"", b"x" * 8192):
        lane.directory.positions_file.unlink(missing_ok=True)
        if content is not None:
            lane.directory.positions_file.write_bytes(content)
        end = lane.recover()
        assert (end.end, end.dispatched) == (lane.end, lane.end)
        assert lane.kept() == list(range(len(lane.records)))
        for topic in ("orders", "payments"):
            assert lane.entries(topic) == lane.expected_entries(topic)
        check_again(lane, end)


def test_leftovers_of_the_allocator_go(lane: MadeLane) -> None:
    """A half-made segment is none."""
    (lane.directory.tmp).mkdir(exist_ok=True)
    (lane.directory.tmp / f"{SEGMENT * 9:020d}").write_bytes(b"\0" * 100)
    lane.recover()
    assert os.listdir(lane.directory.tmp) == []


def test_a_lane_that_somebody_holds_is_refused(lane: MadeLane) -> None:
    """The lock is named, nothing is touched."""
    lane.directory.lock_file.write_text("lock")
    with DISK.opened(lane.directory.lock_file, write=True) as fd:
        assert DISK.try_lock(fd)
        with pytest.raises(RecoveryError, match="lock is held"):
            lane.recover()

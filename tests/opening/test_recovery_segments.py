"""Recovery of a lane with odd segment files.

They are missing, of another size, foreign, made ahead or deleted by age.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from commitlog.disk.file_channel import DISK
from commitlog.errors import RecoveryError
from commitlog.opening.recovery import recover_lane
from tests.builders.made_lane import SEGMENT, MadeLane, check_again, crash, image, make_lane


@pytest.fixture
def lane(tmp_path: Path) -> MadeLane:
    return make_lane(tmp_path / "3")


def test_a_missing_middle_segment_is_reported_below_flushed_and_cut_above(lane: MadeLane) -> None:
    """Below: records on both sides are kept. Above: the log ends before the hole."""
    missing = lane.directory.segment_path(SEGMENT)
    content = missing.read_bytes()
    missing.unlink()
    outside = [n for n, (start, _) in enumerate(lane.places) if start // SEGMENT != 1]
    crash(lane, lane.end)
    lane.directory.positions_file.unlink()
    lane.set_positions(lane.end, 0)
    found = lane.recover()
    assert found.end == lane.end
    assert lane.kept() == outside
    assert any("missing" in line for line in found.findings)
    check_again(lane, found)

    crash(lane, 0)
    found = lane.recover()
    assert found.end == SEGMENT
    assert lane.kept() == [n for n in outside if lane.places[n][0] < SEGMENT]
    check_again(lane, found)
    assert content  # the file itself was this test's to remove


@pytest.mark.parametrize("length", [0, 1, 100, SEGMENT - 1, SEGMENT + 1, SEGMENT + 5000])
def test_a_segment_of_a_wrong_size_is_made_to_fit(lane: MadeLane, length: int) -> None:
    """Whatever of its records is there is kept; a surplus is copied first."""
    path = lane.directory.segment_path(SEGMENT)
    os.truncate(path, length)
    lane.directory.positions_file.unlink()
    lane.set_positions(lane.end, 0)
    whole = [n for n, (start, end) in enumerate(lane.places) if start // SEGMENT != 1 or end <= SEGMENT + length]
    found = lane.recover()
    assert found.end == lane.end
    assert lane.kept() == whole
    assert found.findings
    if length > SEGMENT:
        assert list(lane.directory.quarantine.glob("surplus-*"))
    check_again(lane, found)


def test_all_segments_of_another_size_are_refused(lane: MadeLane) -> None:
    """store.json and the files disagree: nothing is touched."""
    before = image(lane.directory.commitlog)
    with pytest.raises(RecoveryError, match="segment_bytes"):
        recover_lane(lane.directory, SEGMENT * 2, DISK, lambda line: None)
    assert image(lane.directory.commitlog) == before


def test_foreign_names_links_and_odd_things_are_passed_over(lane: MadeLane, tmp_path: Path) -> None:
    """Named in a finding each; nothing is followed, nothing is removed.

    What is in the place of a later segment is also set aside.
    """
    log = lane.directory.commitlog
    (log / "README").write_text("mine")
    (log / f"{SEGMENT + 1:020d}").write_text("odd")
    target = tmp_path / "elsewhere"
    target.write_bytes(bytes(SEGMENT))
    (log / f"{SEGMENT * 50:020d}").symlink_to(target)
    os.mkfifo(log / f"{SEGMENT * 51:020d}")
    found = lane.recover()
    assert found.end == lane.end
    assert len(found.findings) == 6
    assert target.read_bytes() == bytes(SEGMENT)
    assert (log / "README").exists()


def test_segments_made_ahead_stay(lane: MadeLane) -> None:
    """They are all zero: the allocator's work is not done again."""
    last = lane.end - lane.end % SEGMENT
    for start in (last + SEGMENT, last + 2 * SEGMENT):
        lane.directory.segment_path(start).write_bytes(bytes(SEGMENT))
    crash(lane, lane.places[-1][0])
    found = lane.recover()
    assert found.end == lane.end
    assert found.allocated == last + 3 * SEGMENT
    assert found.findings == ()


def test_a_file_made_ahead_does_not_stay_behind_a_hole(lane: MadeLane) -> None:
    """The log ends at the start of the hole, and files with data leave it.

    Its first file stays, so that the log does not begin anew.
    """
    lane.directory.positions_file.unlink()
    lane.directory.abort_file.touch()
    lane.forget_entries(0)
    lane.write(0, b"\xff" * 10)
    lane.directory.segment_path(2 * SEGMENT).write_bytes(bytes(SEGMENT))
    found = lane.recover()
    assert (found.first, found.end, found.allocated) == (0, 0, SEGMENT)
    assert os.listdir(lane.directory.commitlog) == [f"{0:020d}"]
    check_again(lane, found)


def test_a_log_of_which_nothing_is_left_does_not_begin_anew(lane: MadeLane) -> None:
    """Its first segments were deleted long ago, the rest is torn: offsets go on where they were.

    No consume queue tells that anything was flushed.
    """
    shutil.rmtree(lane.directory.consumequeue)
    lane.directory.positions_file.unlink()
    lane.directory.abort_file.touch()
    lane.directory.segment_path(0).unlink()
    lane.directory.segment_path(2 * SEGMENT).unlink()
    lane.directory.segment_path(SEGMENT).write_bytes(b"\xff" * SEGMENT)
    found = lane.recover()
    assert (found.first, found.end, found.allocated) == (SEGMENT, SEGMENT, 2 * SEGMENT)
    check_again(lane, found)


def test_a_log_that_ends_with_a_blank_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    """Whether its file is there or not."""
    lane = make_lane(tmp_path / "3", 20)
    remaining = SEGMENT - lane.end % SEGMENT
    lane.write(lane.end, remaining.to_bytes(4, "big") + bytes.fromhex("cbd43194") + b"stale bytes")
    crash(lane, lane.end)
    found = lane.recover()
    assert found.end == lane.end + remaining
    assert found.allocated == found.end
    assert found.last_store_timestamp == 1_000_019
    lane.directory.segment_path(found.end).write_bytes(bytes(SEGMENT))
    assert lane.recover().allocated == found.end + SEGMENT
    lane.set_positions(found.end, found.end)
    assert lane.recover().last_store_timestamp == 1_000_019


def test_after_retention_the_log_begins_later(lane: MadeLane) -> None:
    """Nothing is missed, and queue offsets go on."""
    lane.directory.segment_path(0).unlink()
    lane.set_positions(lane.end, lane.end, first=SEGMENT)
    found = lane.recover()
    assert (found.first, found.end, found.findings) == (SEGMENT, lane.end, ())
    for file in (lane.directory.consumequeue).rglob("0*"):
        file.unlink()
    found = lane.recover()
    assert found.findings
    for topic in ("orders", "payments"):
        entries = lane.entries(topic)
        expected = lane.expected_entries(topic)
        assert len(entries) == len(expected)
        assert [e for e in entries if e[1] != 0x7FFFFFFF] == [e for e in expected if e[0] >= SEGMENT]
    check_again(lane, found)


@pytest.mark.parametrize("back", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_names_that_a_power_cut_brought_back_leave_no_hole(back: tuple[int, ...], tmp_path: Path) -> None:
    """Three segments were deleted, as `positions` says.

    The directory was not synced yet, and some of them are there again.
    """
    lane = make_lane(tmp_path / "3", 100)
    lane.set_positions(lane.end, lane.end, first=3 * SEGMENT)
    for number in {0, 1, 2} - set(back):
        lane.directory.segment_path(number * SEGMENT).unlink()
    found = lane.recover()
    assert found.findings == ()
    is_whole = back == (0, 1, 2)
    assert found.first == (0 if is_whole else 3 * SEGMENT)
    assert lane.kept() == [n for n, (start, _) in enumerate(lane.places) if is_whole or start >= 3 * SEGMENT]
    check_again(lane, found)

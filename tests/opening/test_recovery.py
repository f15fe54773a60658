"""Recovery of a lane: where its log ends, what is cut off, and what is reported.

Recovery may be repeated.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import RecoveryError
from commitlog.opening.recovery import LaneEnd, recover_lane
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.made_lane import SEGMENT, MadeLane, boundary, check_again, crash, image, make_lane


@pytest.fixture
def lane(tmp_path: Path) -> MadeLane:
    return make_lane(tmp_path / "3")


def test_a_new_lane_is_all_zeros(tmp_path: Path) -> None:
    """Its directories are made, nothing is found."""
    directory = LaneDirectory(tmp_path / "lanes" / "0", 0)
    directory.path.mkdir(parents=True)
    assert recover_lane(directory, SEGMENT, DISK, pytest.fail) == LaneEnd(0, 0, 0, 0, 0, (), 0)
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


def test_a_recovery_that_takes_long_says_how_far_it_is(lane: MadeLane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a second; nothing where it is quick."""
    said: list[str] = []
    crash(lane, 0)
    now = SYSTEM_CLOCK.monotonic_ns()
    monkeypatch.setattr(SYSTEM_CLOCK, "monotonic_ns", lambda: now)
    lane.recover(report=said.append)
    assert said == []
    monkeypatch.setattr(SYSTEM_CLOCK, "monotonic_ns", itertools.count(now, 600_000_000).__next__)
    lane.recover(report=said.append)
    assert set(said) == {"lane 3: recovery is at 0 MB"}


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


def test_a_torn_record_above_flushed_is_cut_off_and_kept_in_quarantine(lane: MadeLane) -> None:
    """The half record goes to quarantine byte for byte.

    Its place becomes zeros.
    """
    number = len(lane.records) - 1
    start, end = lane.places[number]
    crash(lane, boundary(lane, 40))
    lane.write(start + 50, bytes(end - start - 50))
    torn = lane.read(start, start + 50)
    found = lane.recover()
    assert found.end == start
    assert found.last_store_timestamp == 1_000_000 + number - 1
    assert lane.kept() == list(range(number))
    assert lane.read(start, end) == bytes(end - start)
    (copy,) = lane.directory.quarantine.glob("torn-*.bin")
    assert copy.read_bytes().rstrip(b"\0") == torn.rstrip(b"\0")
    assert any("torn tail" in line and str(start) in line for line in found.findings)
    for topic in ("orders", "payments"):
        assert lane.entries(topic) == lane.expected_entries(topic, boundary(lane, 40))
    check_again(lane, found)


def test_records_behind_a_torn_one_are_counted_and_later_files_set_aside(lane: MadeLane) -> None:
    """A hole that the kernel left when the power went: what follows it can't be kept in order."""
    number = next(n for n, (start, _) in enumerate(lane.places) if start > SEGMENT) + 3
    start, end = lane.places[number]
    crash(lane, boundary(lane, number - 2))
    lane.write(start, bytes(end - start))
    last = lane.directory.segment_path(lane.end - lane.end % SEGMENT)
    content = last.read_bytes()
    found = lane.recover()
    assert found.end == start
    assert not last.exists()
    assert (lane.directory.quarantine / f"segment-{last.name}").read_bytes() == content
    (line,) = found.findings[:1]
    assert f"{len(lane.records) - number - 1} good records" in line
    assert found.allocated == start - start % SEGMENT + SEGMENT
    check_again(lane, found)


def test_damage_below_flushed_is_reported_and_its_neighbours_stay(lane: MadeLane) -> None:
    """Nothing is cut, nothing is moved; a note names the place."""
    crash(lane, lane.end, boundary(lane, 1))
    start, _ = lane.places[20]
    lane.write(start + 30, b"\xff" * 20)
    before = image(lane.directory.commitlog)
    found = lane.recover()
    assert (found.end, found.dispatched) == (lane.end, lane.end)
    assert image(lane.directory.commitlog) == before
    assert lane.kept() == [n for n in range(len(lane.records)) if n != 20]
    assert any("corruption" in line and f"offset {start}" in line for line in found.findings)
    assert (lane.directory.quarantine / f"corrupt-{start:020d}.json").exists()
    for topic in ("orders", "payments"):
        assert lane.entries(topic) == lane.expected_entries(topic)
    check_again(lane, found)


@pytest.mark.parametrize("append_crc", [True, False])
@pytest.mark.parametrize("times", [2, 3, 7])
def test_a_damaged_size_that_reaches_another_record_hides_none(tmp_path: Path, times: int, append_crc: bool) -> None:
    """Such as one flipped bit makes of 128, where all records are that large."""
    lane = MadeLane(LaneDirectory(tmp_path / "3", 3), append_crc=append_crc)
    for number in range(40):
        lane.append("orders", b"%06d" % number)
    lane.set_positions(lane.end, 0)
    harmed = (1, 20, 30, 32)
    for number in harmed:
        start, end = lane.places[number]
        lane.write(start, (times * (end - start)).to_bytes(4, "big"))
    assert lane.kept() == [n for n in range(40) if n not in harmed]
    found = lane.recover()
    assert found.end == lane.end
    for number in harmed:
        assert any(f"offset {lane.places[number][0]}" in line for line in found.findings)
    check_again(lane, found)


def test_a_lost_record_keeps_its_queue_offset(lane: MadeLane) -> None:
    """New consume queues have an entry for it that names the damaged range.

    So later offsets stay what they were.
    """
    start, end = lane.places[20]
    lane.write(start + 30, b"\xff" * 20)
    crash(lane, lane.end, 0)
    for file in (lane.directory.consumequeue).rglob("0*"):
        file.unlink()
    lane.recover()
    topic = lane.topics[20]
    expected = lane.expected_entries(topic)
    lost = next(n for n, entry in enumerate(expected) if entry[0] == start)
    expected[lost] = (start, end - start, 0)
    assert lane.entries(topic) == expected


def test_a_log_damaged_up_to_what_was_flushed_goes_on_behind_it(lane: MadeLane) -> None:
    """So no offset that was seen is given out again."""
    crash(lane, lane.end)
    start, end = lane.places[-1]
    lane.write(start, b"\xff" * (end - start))
    found = lane.recover()
    assert (found.end, found.dispatched) == (lane.end, lane.end)
    assert lane.read(start, end) == b"\xff" * (end - start)
    check_again(lane, found)


def test_a_record_across_the_flushed_position_is_torn_not_corrupt(lane: MadeLane) -> None:
    """Flushing works on bytes: the rest of the record may not have been written."""
    start, end = lane.places[-1]
    for flushed in (start + 1, start + 40, end - 1):
        crash(lane, flushed, start)
        lane.write(start, lane.records[-1])
        lane.write(flushed, bytes(end - flushed))
        found = lane.recover()
        assert found.end == start
        assert not any("corruption" in line for line in found.findings)


def test_bytes_of_zeros_at_a_records_end_are_no_properties(tmp_path: Path) -> None:
    """A record without whole-record CRC whose last page was lost is torn.

    The CRC of its body holds, but proves nothing of that page.
    """
    lane = make_lane(tmp_path / "3", append_crc=False)
    number = next(n for n in range(59, 0, -1) if lane.records[n].endswith(b"\x02"))
    start, end = lane.places[number]
    lane.write(end - 8, bytes(8))
    crash(lane, boundary(lane, number - 1))
    assert lane.recover().end == start


def test_too_old_to_be_unflushed(tmp_path: Path) -> None:
    """Damage more than eight segments before the end is no torn tail.

    At that place nothing was in buffers any more.
    """
    lane = make_lane(tmp_path / "3", 240)
    lane.write(lane.places[2][0], b"\xff" * 50)
    lane.directory.positions_file.unlink()
    found = lane.recover()
    assert found.end == lane.end
    assert lane.kept() == [n for n in range(240) if n != 2]

"""Recovery of a lane: where its log ends, what is cut off, what is reported, and that it may be done again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.errors import RecoveryError
from commitlog.file_channel import DISK, Buffer, FileChannel
from commitlog.recovery import LaneEnd, recover_lane
from commitlog.store_directory import LaneDirectory
from tests.commitlog.made_lane import QUEUE_FILE, SEGMENT, MadeLane, image, make_lane


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


def crash(lane: MadeLane, flushed: int, dispatched: int | None = None) -> None:
    """Positions as the flusher last wrote them before everything died."""
    lane.set_positions(flushed, flushed if dispatched is None else dispatched)


def boundary(lane: MadeLane, number: int) -> int:
    return lane.places[number][0]


def test_a_torn_record_above_flushed_is_cut_off_and_kept_in_quarantine(lane: MadeLane) -> None:
    """The half record goes to quarantine byte for byte; its place and its consume queue entry are zeros."""
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
        assert lane.entries(topic) == lane.expected_entries(topic, start)
    check_again(lane, found)


def test_records_behind_a_torn_one_are_counted_and_later_files_set_aside(lane: MadeLane) -> None:
    """A hole that the kernel left when the power went: what follows it can't be kept in order."""
    number = next(n for n, (start, _) in enumerate(lane.places) if start > SEGMENT) + 3
    start, end = lane.places[number]
    crash(lane, boundary(lane, number - 2))
    lane.write(start, bytes(end - start))
    last = lane.directory.segment(lane.end - lane.end % SEGMENT)
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


def test_a_lost_record_keeps_its_queue_offset(lane: MadeLane) -> None:
    """Consume queues built anew name the damaged range for it, so that later offsets stay what they were."""
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


def test_a_missing_middle_segment_is_reported_below_flushed_and_cut_above(lane: MadeLane) -> None:
    """Below: records on both sides are kept. Above: the log ends before the hole."""
    missing = lane.directory.segment(SEGMENT)
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
    path = lane.directory.segment(SEGMENT)
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
    """Named in a finding each; nothing is followed, nothing is removed."""
    log = lane.directory.commitlog
    (log / "README").write_text("mine")
    (log / f"{SEGMENT + 1:020d}").write_text("odd")
    target = tmp_path / "elsewhere"
    target.write_bytes(bytes(SEGMENT))
    (log / f"{SEGMENT * 50:020d}").symlink_to(target)
    os.mkfifo(log / f"{SEGMENT * 51:020d}")
    found = lane.recover()
    assert found.end == lane.end
    assert len(found.findings) == 4
    assert target.read_bytes() == bytes(SEGMENT)
    assert (log / "README").exists()


def test_segments_made_ahead_stay(lane: MadeLane) -> None:
    """They are all zero: the allocator's work is not done again."""
    last = lane.end - lane.end % SEGMENT
    for start in (last + SEGMENT, last + 2 * SEGMENT):
        lane.directory.segment(start).write_bytes(bytes(SEGMENT))
    crash(lane, lane.places[-1][0])
    found = lane.recover()
    assert found.end == lane.end
    assert found.allocated == last + 3 * SEGMENT
    assert found.findings == ()


def test_a_file_made_ahead_does_not_stay_behind_a_hole(lane: MadeLane) -> None:
    """The log ends at its start, what had data leaves it; its first file stays, so that the log does not begin anew."""
    lane.directory.positions_file.unlink()
    lane.write(0, b"\xff" * 10)
    lane.directory.segment(2 * SEGMENT).write_bytes(bytes(SEGMENT))
    found = lane.recover()
    assert (found.first, found.end, found.allocated) == (0, 0, SEGMENT)
    assert os.listdir(lane.directory.commitlog) == [f"{0:020d}"]
    check_again(lane, found)


def test_a_log_of_which_nothing_is_left_does_not_begin_anew(lane: MadeLane) -> None:
    """Its first segments were deleted long ago, the rest is torn: offsets go on where they were."""
    lane.directory.positions_file.unlink()
    lane.directory.segment(0).unlink()
    lane.write(SEGMENT, b"\xff" * 10)
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
    lane.directory.segment(found.end).write_bytes(bytes(SEGMENT))
    assert lane.recover().allocated == found.end + SEGMENT
    lane.set_positions(found.end, found.end)
    assert lane.recover().last_store_timestamp == 1_000_019


def test_after_retention_the_log_begins_later(lane: MadeLane) -> None:
    """Nothing is missed, and queue offsets go on."""
    lane.directory.segment(0).unlink()
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


def test_bytes_of_zeros_at_a_records_end_are_no_properties(tmp_path: Path) -> None:
    """A record without whole-record CRC whose last page was lost is torn, though the CRC of its body holds."""
    lane = make_lane(tmp_path / "3", append_crc=False)
    number = next(n for n in range(59, 0, -1) if lane.records[n].endswith(b"\x02"))
    start, end = lane.places[number]
    lane.write(end - 8, bytes(8))
    crash(lane, boundary(lane, number - 1))
    assert lane.recover().end == start


def test_too_old_to_be_unflushed(tmp_path: Path) -> None:
    """More than eight segments before the end nothing was in buffers any more: damage there is no torn tail."""
    lane = make_lane(tmp_path / "3", 240)
    lane.write(lane.places[2][0], b"\xff" * 50)
    lane.directory.positions_file.unlink()
    found = lane.recover()
    assert found.end == lane.end
    assert lane.kept() == [n for n in range(240) if n != 2]


# ---- consume queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm",
    [
        "missing",
        "no files",
        "emptied",
        "short",
        "half an entry",
        "long",
        "garbage",
        "hole",
        "swapped",
        "doubled",
        "link",
    ],
)
def test_damaged_consume_queues_are_built_anew(lane: MadeLane, harm: str, tmp_path: Path) -> None:
    """Whatever was done to one, after a clean stop too, all its entries are right again."""
    directory = lane.directory.queue("orders")
    file = directory / f"{0:020d}"
    data = file.read_bytes()
    if harm == "missing":
        for path in (file, *directory.glob("*")):
            path.unlink(missing_ok=True)
        directory.rmdir()
        directory.parent.rmdir()
    elif harm == "no files":
        for path in directory.glob("*"):
            path.unlink()
    elif harm == "emptied":
        file.write_bytes(bytes(len(data)))
    elif harm == "short":
        file.write_bytes(data[:100])
    elif harm == "half an entry":
        file.write_bytes(data[:107])
    elif harm == "long":
        file.write_bytes(data + b"x" * 1000)
    elif harm == "garbage":
        file.write_bytes(data[:400] + b"\xee" * 200 + data[600:])
    elif harm == "hole":
        file.write_bytes(data[:100] + bytes(100) + data[200:])
    elif harm == "swapped":
        file.write_bytes(data[20:40] + data[:20] + data[40:])
    elif harm == "doubled":
        (directory / f"{QUEUE_FILE * 7:020d}").write_bytes(data)
    elif harm == "link":
        file.unlink()
        (tmp_path / "else").write_bytes(data)
        file.symlink_to(tmp_path / "else")
    found = lane.recover()
    assert found.dispatched == lane.end
    assert lane.entries("orders") == lane.expected_entries("orders")
    assert lane.entries("payments") == lane.expected_entries("payments")
    assert found.findings
    check_again(lane, found)
    assert lane.recover().findings == ()


def test_entries_not_written_before_the_crash_are_left_to_the_dispatcher(tmp_path: Path) -> None:
    """`dispatched` stays where it was recorded; what the queues have below it is right."""
    lane = make_lane(tmp_path / "3", 40)
    dispatched = lane.end
    for number in range(20):
        lane.append("orders", bytes([number]) * number, dispatch=False)
    crash(lane, lane.end, dispatched)
    found = lane.recover()
    assert (found.end, found.dispatched, found.findings) == (lane.end, dispatched, ())
    assert lane.entries("orders") == lane.expected_entries("orders", dispatched)


def test_damage_that_a_dispatcher_would_meet_is_passed_for_it(tmp_path: Path) -> None:
    """Entries above it are placed here."""
    lane = make_lane(tmp_path / "3", 30)
    dispatched = lane.end
    for number in range(30):
        lane.append("orders", bytes([number]) * number, dispatch=False)
    lane.write(lane.places[40][0], b"\xff" * 60)
    crash(lane, lane.end, dispatched)
    found = lane.recover()
    assert (found.end, found.dispatched) == (lane.end, lane.end)
    assert len(lane.entries("orders")) == len(lane.expected_entries("orders"))


# ---- killed in the middle --------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the process's end."""


class DyingChannel(FileChannel):
    """Dies at the k-th change of the disk, before or in the middle of it."""

    def __init__(self, steps: int, half: bool) -> None:
        self.steps, self.half = steps, half

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Killed

    def write_once(self, fd: int, data: Buffer, offset: int) -> int:
        if self.steps == 0 and self.half:
            super().write_once(fd, memoryview(data)[: len(data) // 2], offset)
        self._step()
        return super().write_once(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._step()
        super().fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._step()
        super().truncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        self._step()
        super().allocate(fd, length)

    def sync_directory(self, path: str | Path) -> None:
        self._step()
        super().sync_directory(path)

    def rename(self, source: str | Path, target: str | Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: str | Path) -> None:
        self._step()
        super().unlink(path)


def _torn(lane: MadeLane) -> None:
    start = lane.places[30][0]
    lane.write(start + 40, bytes(60))
    lane.set_positions(lane.places[28][0], lane.places[25][0])


def _corrupt(lane: MadeLane) -> None:
    lane.write(lane.places[30][0] + 20, b"\xff" * 60)
    lane.set_positions(lane.end, lane.places[20][0])


def _no_positions(lane: MadeLane) -> None:
    lane.directory.positions_file.unlink()
    os.truncate(lane.directory.queue("orders") / f"{0:020d}", 130)
    lane.write(lane.places[55][0] + 2, bytes(200))


def _sizes(lane: MadeLane) -> None:
    os.truncate(lane.directory.segment(SEGMENT), 3000)
    os.truncate(lane.directory.segment(0), SEGMENT + 77)
    lane.directory.positions_file.unlink()


@pytest.mark.parametrize("harm", [_torn, _corrupt, _no_positions, _sizes], ids=lambda harm: harm.__name__)
def test_killed_anywhere_and_repeated_it_ends_the_same(harm: Callable[[MadeLane], None], tmp_path: Path) -> None:
    """At each write, sync, rename of it, and in the middle of each write."""
    calm = make_lane(tmp_path / "calm" / "3")
    harm(calm)
    found = calm.recover()
    expected = image(calm.directory.path)
    lane = make_lane(tmp_path / "killed" / "3")
    harm(lane)
    shutil.copytree(lane.directory.path, tmp_path / "harmed")
    for step in range(500):
        finished = False
        for half in (False, True):
            shutil.rmtree(lane.directory.path)
            shutil.copytree(tmp_path / "harmed", lane.directory.path)
            try:
                lane.recover(DyingChannel(step, half))
                finished = True
            except Killed:
                pass
            again = lane.recover()
            assert (again.first, again.end, again.allocated) == (found.first, found.end, found.allocated)
            assert _comparable(image(lane.directory.path), calm, lane) == _comparable(expected, calm, calm), step
        if finished:
            assert step > 5
            return
    pytest.fail("it never came to its end")


def _comparable(files: dict[str, bytes], calm: MadeLane, lane: MadeLane) -> dict[str, bytes]:
    """Paths in notes made alike."""
    here, there = str(lane.directory.path).encode(), str(calm.directory.path).encode()
    return {name: data.replace(here, there) for name, data in files.items()}

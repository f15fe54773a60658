"""Regions are private, whole or an error, and outlive their maker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import CONTROL_BYTES, LANE_ROW_WORDS, STAGE_ROW_WORDS, Header, Lane, Stage
from commitlog.shm.region import Region, RegionError, RegionFull, base_directory, private_directory
from commitlog.shm.write_buffers import WriteBuffers, available_buffers, slot_is_free
from tests.leaks import descriptors

STORE_ID = "0123456789abcdef" * 2


def test_modes_do_not_depend_on_the_umask(shm_root: Path) -> None:
    """0700 and 0600, whatever the umask says."""
    before = os.umask(0o777)
    try:
        private_directory(shm_root / "pool", create=True)
        Region.create(shm_root / "pool" / "x", 4096).close()
    finally:
        os.umask(before)
    assert (shm_root / "pool").stat().st_mode & 0o777 == 0o700
    assert (shm_root / "pool" / "x").stat().st_mode & 0o777 == 0o600
    os.unlink(shm_root / "pool" / "x")
    os.rmdir(shm_root / "pool")


def test_directories_that_others_can_enter_are_refused(shm_root: Path, tmp_path: Path) -> None:
    """A wide mode, a symbolic link and a file are no private directory."""
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide").chmod(0o755)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("wide", "link", "file"):
        with pytest.raises(RegionError):
            private_directory(tmp_path / name, create=False)


def test_a_region_that_does_not_fit_is_an_error_and_leaves_nothing(shm_root: Path) -> None:
    """A full /dev/shm is found out when the region is made, not when it is written to."""
    facts = os.statvfs(shm_root)
    with pytest.raises(RegionFull):
        Region.create(shm_root / "x", facts.f_blocks * facts.f_frsize * 2)
    assert not (shm_root / "x").exists()


def test_links_and_empty_files_are_not_attached(shm_root: Path, tmp_path: Path) -> None:
    """An empty region is one whose maker died; a link may lead anywhere."""
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(RegionError):
        Region.attach(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(RegionError, match="not a plain file"):
        Region.attach(tmp_path / "link")


@pytest.mark.parametrize("writable", [False, True])
def test_a_directory_in_the_place_of_a_region_takes_no_descriptor(shm_root: Path, writable: bool) -> None:
    """Who follows a store looks again and again."""
    place = shm_root / "region"
    place.mkdir()
    before = descriptors()
    with pytest.raises(RegionError, match="not a plain file"):
        Region.attach(place, writable=writable)
    assert descriptors() == before
    place.rmdir()


def test_a_region_knows_that_it_was_unlinked(shm_root: Path) -> None:
    """Its memory stays usable; a process that comes later can't find it."""
    region = Region.create(shm_root / "x", 4096)
    assert not region.is_unlinked()
    os.unlink(shm_root / "x")
    assert region.is_unlinked()
    region.words[0] = 7
    assert region.words[0] == 7
    region.close()


def test_a_control_region_belongs_to_one_store_directory(shm_root: Path, tmp_path: Path) -> None:
    """A region of another store is refused.

    It has another id, another directory (a copy of the store), or another generation than that of
    the last start.
    """
    control = ControlRegion.create(shm_root, STORE_ID, tmp_path)
    control.words[Header.GENERATION] = 5
    other = tmp_path / "copy"
    other.mkdir()
    assert control.belongs_to(STORE_ID, tmp_path, 5)
    assert control.belongs_to(STORE_ID, tmp_path, 4)  # a start died between raising it here and in store.json
    assert not control.belongs_to(STORE_ID, tmp_path, 6)
    assert not control.belongs_to(STORE_ID, other, 5)
    assert not control.belongs_to(STORE_ID[::-1], tmp_path, 5)
    control.close()
    os.unlink(shm_root / "control")


def test_a_damaged_control_region_is_refused(shm_root: Path) -> None:
    """Wrong size, wrong magic, another layout: an error, not a guess."""
    region = Region.create(shm_root / "control", CONTROL_BYTES)
    region.close()
    with pytest.raises(RegionError, match="not a control region"):
        ControlRegion.attach(shm_root)
    os.truncate(shm_root / "control", 4096)
    with pytest.raises(RegionError):
        ControlRegion.attach(shm_root)
    os.unlink(shm_root / "control")


def test_lane_rows_do_not_overlap(shm_root: Path, tmp_path: Path) -> None:
    """A word of one lane is that lane's in the table too, and nobody else's."""
    control = ControlRegion.create(shm_root, STORE_ID, tmp_path)
    for lane in range(128):
        control.row(lane)[Lane.WROTE] = lane + 1
    table = control.lane_table()
    assert table[:, Lane.WROTE].tolist() == list(range(1, 129))
    assert int(table.sum()) == sum(range(1, 129))
    del table
    control.close()
    os.unlink(shm_root / "control")


def test_a_close_that_was_refused_is_made_good_by_the_next(shm_root: Path, tmp_path: Path) -> None:
    """Somebody still has the lane table, which stays readable. Without it a second close unmaps."""
    control = ControlRegion.create(shm_root, STORE_ID, tmp_path)
    control.row(3)[Lane.WROTE] = 5
    table = control.lane_table()
    with pytest.raises(BufferError):
        control.close()
    assert table[3, Lane.WROTE] == 5
    assert str(shm_root) in Path("/proc/self/maps").read_text()
    del table
    control.close()
    assert str(shm_root) not in Path("/proc/self/maps").read_text()
    control.close()
    os.unlink(shm_root / "control")


def test_a_row_is_part_of_the_words(shm_root: Path, tmp_path: Path) -> None:
    """A row shows the words of its lane or stage only; `close` ends it, even if it is kept."""
    control = ControlRegion.create(shm_root, STORE_ID, tmp_path)
    row, stage_row = control.row(127), control.stage_row("dispatcher")
    row[Lane.WROTE], stage_row[Stage.PID] = 7, 8
    assert control.lane_table()[127, Lane.WROTE] == 7
    assert (len(row), len(stage_row)) == (LANE_ROW_WORDS, STAGE_ROW_WORDS)
    assert control.words.tolist().count(7) == 1
    assert control.stage_row("dispatcher")[Stage.PID] == 8
    for lane in (-1, 128):
        with pytest.raises(ValueError, match=f"lane {lane}"):
            control.row(lane)
    control.close()
    with pytest.raises(ValueError, match="released"):
        row[Lane.WROTE]
    os.unlink(shm_root / "control")


def test_buffers_are_borrowed_and_returned_by_the_positions_alone() -> None:
    """There are three slots of 100 bytes.

    The third segment ahead waits until the first is flushed to its end.
    """
    assert available_buffers(wrote=0, flushed=0, segment_size=100, slots=3) == 2
    assert available_buffers(wrote=250, flushed=99, segment_size=100, slots=3) == 0
    assert slot_is_free(2, flushed=0, segment_size=100, slots=3)
    assert not slot_is_free(3, flushed=99, segment_size=100, slots=3)
    assert slot_is_free(3, flushed=100, segment_size=100, slots=3)


def test_write_buffers_check_their_size(shm_root: Path) -> None:
    """A lane's file that is not N segments large is not this lane's."""
    buffers = WriteBuffers.create(shm_root, 0, 4096, 3)
    buffers.slot(4)[:3] = b"abc"
    assert bytes(buffers.slot(1)[:3]) == b"abc"
    buffers.close()
    with pytest.raises(RegionError):
        WriteBuffers.attach(shm_root, 0, 4096, 4, writable=False)
    os.unlink(shm_root / "lane-0")


def test_the_base_directory_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is written down in a store, which processes in other directories open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMITLOG_SHM_DIR", "here")
    assert base_directory() == tmp_path / "here"

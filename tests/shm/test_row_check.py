"""What holds of a lane's words at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory, new_store_id
from commitlog.inspecting.verify import verify_store
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.row_check import check_row, is_sound
from tests.waiting import wait_until

SOUND = {
    Lane.FIRST_RECORDED: 1 << 16,
    Lane.FIRST: 1 << 16,
    Lane.RETIRED: 1 << 16,
    Lane.DISPATCH_SYNCED: 70_000,
    Lane.DISPATCHED: 70_100,
    Lane.REPLICATED: 70_500,
    Lane.FLUSHED: 71_000,
    Lane.COMMITTED: 72_000,
    Lane.WROTE: 73_000,
    Lane.SEGMENT_SIZE: 1 << 16,
    Lane.SLOTS: 3,
    Lane.ALLOCATED: 3 << 16,
}


@pytest.mark.parametrize(
    ("word", "value", "wrong"),
    [
        (Lane.WROTE, 71_999, "committed is 72,000, and wrote 71,999"),
        (Lane.COMMITTED, 70_999, "flushed is 71,000, and committed 70,999"),
        (Lane.DISPATCHED, 71_001, "dispatched is 71,001, and flushed 71,000"),
        (Lane.DISPATCH_SYNCED, 70_101, "dispatch_synced is 70,101, and dispatched 70,100"),
        (Lane.REPLICATED, 71_001, "replicated is 71,001, and flushed 71,000"),
        (Lane.FIRST_RECORDED, 2 << 16, "first_recorded is 131,072, and first 65,536"),
        (Lane.REWRITTEN, 1, "rewritten is 1, and rewrite_wanted 0"),
        (Lane.SEGMENT_SIZE, 1 << 15, "its segment size is 32,768, the store's 65,536"),
        (Lane.SEGMENT_SIZE, 0, "nobody has leased it in this pool"),
        (Lane.SLOTS, 9, "it has 9 buffers"),
        (Lane.SLOTS, 2, "it has 2 buffers"),
        (Lane.FLUSH_REQUESTED, 73_001, "flush_requested is 73,001, and wrote 73,000"),
        (Lane.FIRST, 0, "first_recorded is 65,536, and first 0"),
        (Lane.RETIRED, 3, "first_recorded is 65,536, and first 3"),
        (Lane.ALLOCATED, 0, "allocated is 0, and flushed 71,000"),
        (Lane.ALLOCATED, 1, "allocated 1; segments have 65,536 bytes"),
        (Lane.ALLOCATED, 1 << 40, "allocated is 1,099,511,627,776"),
        (Lane.BUFFERS, (1 << 64) - 1, "buffers is 18,446,744,073,709,551,615"),
        (Lane.WROTE, 71_001 + (9 << 16), "589,825 bytes are written and not flushed, more than the lane has room for"),
    ],
)
def test_what_no_lane_can_have(tmp_path: Path, word: int, value: int, wrong: str) -> None:
    control = ControlRegion.create(tmp_path, new_store_id(), tmp_path)
    row = control.row(0)
    assert check_row(row, 1 << 16) == "", "before its first lease"
    for index, sound in SOUND.items():
        row[index] = sound
    assert check_row(row, 1 << 16) == ""
    assert is_sound(row, 1 << 16)
    row[word] = value
    assert wrong in check_row(row, 1 << 16)
    del row
    control.close()


def test_the_lower_one_of_two_words_says_where_a_lane_begins(tmp_path: Path) -> None:
    """Garbage in one of them is not believed, and does no harm. Who looks quickly looks again."""
    control = ControlRegion.create(tmp_path, new_store_id(), tmp_path)
    row = control.row(0)
    for index, sound in SOUND.items():
        row[index] = sound
    for value, wrong in (2 << 16, "first is 131,072, and flushed 71,000"), (65_537, "first is 65,537"):
        for first, second in (Lane.FIRST, Lane.RETIRED), (Lane.RETIRED, Lane.FIRST):
            row[first] = value
            assert check_row(row, 1 << 16) == ""
            row[second] = value
            assert wrong in check_row(row, 1 << 16)
            row[first] = row[second] = 1 << 16
    del row
    control.close()


def test_a_lane_without_buffers_may_be_far_behind_the_disk(tmp_path: Path) -> None:
    """Its producer waits for the next file, not for a sync; it has nothing behind the last file."""
    control = ControlRegion.create(tmp_path, new_store_id(), tmp_path)
    row = control.row(0)
    for index, sound in {**SOUND, Lane.SLOTS: 0, Lane.WROTE: 20 << 16, Lane.ALLOCATED: 20 << 16}.items():
        row[index] = sound
    assert check_row(row, 1 << 16) == ""
    assert is_sound(row, 1 << 16)
    row[Lane.WROTE] += 1
    assert "more than the lane has room for" in check_row(row, 1 << 16)
    assert not is_sound(row, 1 << 16)
    del row
    control.close()


def test_who_looks_at_a_running_store(tmp_path: Path) -> None:
    """The supervisor logs it, and `verify` names it; the word is put right for the stop."""
    path = tmp_path / "store"
    with commitlog.Store.open(path) as store:
        store.producer().send("t", b"x").wait("flushed")
        place = StoreDirectory(path).load().pool
        assert place is not None
        control = ControlRegion.attach(Path(place.directory), writable=True)
        control.row(0)[Lane.REPLICATED] = 1 << 40
        assert "lane 0: its positions in" in "\n".join(verify_store(path).findings)
        log = path / "logs/supervisor.log"
        wait_until(lambda: "are damaged: replicated is 1,099,511,627,776, and flushed" in log.read_text())
        control.row(0)[Lane.REPLICATED] = 0
        control.close()

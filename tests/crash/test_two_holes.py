"""Consume queues are built anew from a log with several holes: no queue offset is used twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from tests.nightly import with_nightly

_QUEUE_OFFSET_AT = 20
SETTINGS: dict[str, dict[str, Any]] = {"store": {"segment_bytes": 1 << 16}}
WITHOUT_CRC: dict[str, dict[str, Any]] = {"store": {"segment_bytes": 1 << 16, "record_crc": False}}


def write(lane_directory: LaneDirectory, where: int, data: bytes) -> None:
    """Sends messages that all fit into the first segment."""
    with lane_directory.segment_path(0).open("r+b") as file:
        file.seek(where)
        file.write(data)


def next_offset(path: Path, topic: str) -> int:
    """The offset that a producer gives out after the next start."""
    with commitlog.Store.open(path) as store, store.producer() as producer:
        return producer.send(topic, b"new").offset


@pytest.mark.parametrize("is_lost", with_nightly([True], [False]))
def test_records_lost_in_one_hole_are_not_looked_for_in_the_next(tmp_path: Path, is_lost: bool) -> None:
    """Behind a large hole in one topic there is a small hole in another one."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, SETTINGS) as store, store.producer() as producer:
        mine = [producer.send("mine", bytes(50)).physical_offset for _ in range(100)]
        other = [producer.send("other", bytes(50)).physical_offset for _ in range(5)]
        mine += [producer.send("mine", bytes(50)).physical_offset for _ in range(150)]
        producer.flush()
    lane_directory = StoreDirectory(path).lane_directory(0)
    write(lane_directory, mine[60], bytes(mine[99] - mine[60] + 20))
    write(lane_directory, other[2] + 90, b"?")
    lane_directory.abort_file.touch()
    if is_lost:
        shutil.rmtree(lane_directory.queue_path("mine").parent)
    assert next_offset(path, "mine") == 250


@pytest.fixture(scope="module")
def without_crc(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A stopped store with 300 records, and where each begins; a test works on a copy."""
    path = tmp_path_factory.mktemp("without crc") / "store"
    with commitlog.Store.open(path, WITHOUT_CRC) as store, store.producer() as producer:
        return path, [producer.send("t", bytes(100)).physical_offset for _ in range(300)]


_CASES = [(number, bit, killed) for number in (120, 299) for bit in (0, 5, 61, 63) for killed in (True, False)]
_DAILY = [(299, 5, True)]
"""The next place, none, one within reach of the last record, and where the queue still knows."""


@pytest.mark.parametrize(
    ("number", "bit", "was_killed"), with_nightly(_DAILY, [case for case in _CASES if case not in _DAILY])
)
def test_a_damaged_queue_offset_that_no_crc_covers(
    without_crc: tuple[Path, list[int]], tmp_path: Path, bit: int, number: int, was_killed: bool
) -> None:
    """It names another place, or none; the records around it keep theirs."""
    path, places = tmp_path / "store", without_crc[1]
    shutil.copytree(without_crc[0], path)
    lane_directory = StoreDirectory(path).lane_directory(0)
    write(lane_directory, places[number] + _QUEUE_OFFSET_AT, (number ^ 1 << bit).to_bytes(8, "big"))
    if was_killed:
        lane_directory.abort_file.touch()
        shutil.rmtree(lane_directory.queue_path("t").parent)
    assert next_offset(path, "t") == (299 if number == 299 else 300)  # only the last record has its own offset

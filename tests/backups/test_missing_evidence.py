"""Backups of stores whose files do not say all: where a log ends, whose it is, next offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.errors import BackupRefused
from tests.builders.hand_made import HandMadeStore


def kill(store: HandMadeStore) -> None:
    """Leaves the files as after a power cut: not one lane was stopped properly."""
    for lane in store.lanes:
        store.directory.lane_directory(lane).abort_file.touch()


def test_lanes_that_were_swapped_are_refused_by_name(store: HandMadeStore, tmp_path: Path) -> None:
    kill(store)
    first, second = (store.directory.lane_directory(lane).path for lane in (0, 1))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    for positions in store.path.glob("lanes/*/positions"):
        positions.unlink()
    with pytest.raises(BackupRefused, match="lanes/0 has the log of lane 1: give the directory the name that it had"):
        commitlog.backup(store.path, tmp_path / "backup")


def test_damage_where_nothing_says_how_far_a_lane_was_flushed(store: HandMadeStore, tmp_path: Path) -> None:
    """The start that repairs it comes first."""
    kill(store)
    lane = store.directory.lane_directory(0)
    lane.positions_file.unlink()
    (lane.path / "consumequeue").rename(tmp_path / "consumequeue")  # its entries would say it, too
    at = store.lanes[0].records[20].physical_offset
    data = bytearray(lane.segment_path(0).read_bytes())
    data[at + 92] ^= 1  # in its body
    lane.segment_path(0).write_bytes(data)
    with pytest.raises(BackupRefused, match=rf"lane 0: damaged at offset {at}, and there are no positions"):
        commitlog.backup(store.path, tmp_path / "backup")
    with commitlog.Store.open(store.path, {"retention": {"reserved_hours": 1_000_000}}):
        pass
    assert commitlog.backup(store.path, tmp_path / "backup").lanes == 2


def test_a_topic_whose_messages_and_queue_are_gone_is_named(store: HandMadeStore, tmp_path: Path) -> None:
    for lane in store.lanes.values():
        for number in range(200):
            lane.append("other", b"%d" % number * 20)
    store.publish()
    last = max(record.physical_offset for record in store.lanes[0].records if record.topic == "orders")
    store.lanes[0].forget_before(last // store.segment_bytes + 1)
    (queue,) = store.directory.lane_directory(0).queue_path("orders").iterdir()
    queue.write_bytes(bytes(7))
    report = commitlog.backup(store.path, tmp_path / "backup")
    (finding,) = report.findings
    assert finding.startswith("lane 0: consume queue: ")
    assert finding.endswith("; the offsets of its topic begin at 0 in the backup")

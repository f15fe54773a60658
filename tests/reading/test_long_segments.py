"""A segment file that is too long hides none of its records, before a start and after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import commitlog
from commitlog.inspecting.verify import verify_store
from tests.builders.hand_made import HandMadeStore
from tests.command_line import run

SEGMENT = 1 << 12
KEEPS = {"retention": {"reserved_hours": 1_000_000}}
"""The messages of stores made by hand are old."""


def values(path: Path, topic: str) -> list[bytes]:
    """What every way of reading gives: one list, as all are equal."""
    with commitlog.Reader(path, topic=topic) as reader:
        found = [message.value for message in reader]
    assert commitlog.read_arrow(path, topic).read_all()["value"].to_pylist() == found
    return found


def test_all_records_are_read(tmp_path: Path) -> None:
    """By readers, columns, `cat`, as RocketMQ's store root, and in a backup. `verify` names it."""
    store, wanted = HandMadeStore(tmp_path / "store", SEGMENT), {}
    for number in range(3):
        lane, topic = store.lane(number), f"t{number}"
        wanted[topic] = [lane.append(topic, b"%d" % row * 70).body for row in range(60)]
    store.publish()
    for number, which in enumerate((0, 2, -1)):
        segment = sorted(store.directory.lane_directory(number).commitlog.iterdir())[which]
        segment.write_bytes(segment.read_bytes() + b"more")
    assert [lane.good for lane in verify_store(store.path).lanes] == [False] * 3
    assert commitlog.backup(store.path, tmp_path / "backup").good
    shutil.copytree(store.path, tmp_path / "started")
    with commitlog.Store.open(tmp_path / "started", KEEPS):
        pass
    for path in (store.path, tmp_path / "started", tmp_path / "backup"):
        assert {topic: values(path, topic) for topic in wanted} == wanted
    assert verify_store(tmp_path / "started").good
    assert len(run("cat", store.path, "--topic", "t1").stdout.splitlines()) == 60
    with commitlog.Reader(store.path / "lanes/2", topic="t2") as reader:
        assert [message.value for message in reader] == wanted["t2"]

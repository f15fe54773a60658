"""A segment and a topic's consume queue are damaged at once: a start does not make that silent."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import segment_name
from commitlog.errors import CorruptRecord, DamagedFile, ReadingWarning
from tests.builders.hand_made import HandMadeLane, HandMadeStore
from tests.nightly import with_nightly

SEGMENT = 1 << 12
COUNT = 200
KEEPS = {"retention": {"reserved_hours": 1_000_000}}
"""The messages of stores made by hand are old."""

Harm = Callable[[Path, Path, Path], None]
"""What is done to a queue's file. The others are a segment and the file of another queue."""

HARMS: dict[str, Harm] = {
    "kept": lambda queue, segment, other: None,
    "lost": lambda queue, segment, other: queue.unlink(),
    "zeros": lambda queue, segment, other: _write(queue, bytes(_size(queue))),
    "random": lambda queue, segment, other: _write(queue, random.Random(1).randbytes(_size(queue))),
    "of a segment": lambda queue, segment, other: _write(queue, segment.read_bytes()),
    "of another queue": lambda queue, segment, other: _write(queue, other.read_bytes()),
}
DAMAGED = {"first": (0, [0]), "first two": (0, [0, 1]), "middle": (0, [2]), "first that is left": (3, [3])}
"""How many segments retention has deleted; which ones are nothing but zeros."""


def _write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def _size(file: Path) -> int:
    return file.stat().st_size


def make_lane(store: HandMadeStore, number: int, harm: str, deleted: int, damaged: list[int]) -> list[bytes]:
    """A lane of two topics; returns the values that are left of the second one."""
    lane = store.lane(number)
    for row in range(COUNT):
        lane.append(f"a{number}", b"%d" % row * 30)
        lane.append(f"c{number}", b"%d" % row)
    lane.dispatch()
    lane.publish()
    lane.forget_before(deleted)
    directory = store.directory.lane_directory(number)
    queue, other = (directory.queue_path(f"{topic}{number}") / f"{0:020d}" for topic in "ca")
    HARMS[harm](queue, directory.segment_path(damaged[0] * SEGMENT), other)
    for segment in damaged:
        directory.segment_path(segment * SEGMENT).write_bytes(bytes(SEGMENT))
    return [record.body for record in lane.records if is_left(lane, record.physical_offset, deleted, damaged)][1::2]


def is_left(lane: HandMadeLane, place: int, deleted: int, damaged: list[int]) -> bool:
    return place // SEGMENT >= deleted and place // SEGMENT not in damaged


@pytest.mark.parametrize("which", with_nightly(list(DAMAGED)[:1], list(DAMAGED)[1:]))
def test_a_topic_whose_first_messages_are_damaged(which: str, tmp_path: Path) -> None:
    """A strict reader raises, whatever is in the place of the queue. Others get what is left."""
    store = HandMadeStore(tmp_path / "store", SEGMENT)
    left = {harm: make_lane(store, number, harm, *DAMAGED[which]) for number, harm in enumerate(HARMS)}
    with commitlog.Store.open(store.path, KEEPS):
        pass
    for number, harm in enumerate(HARMS):
        with (
            pytest.raises((CorruptRecord, DamagedFile)),
            commitlog.Reader(store.path, topic=f"c{number}") as reader,
        ):
            list(reader)
        with (
            pytest.warns(ReadingWarning),
            commitlog.Reader(store.path, topic=f"c{number}", ignore_corrupt=True) as reader,
        ):
            assert {message.value for message in reader} >= set(left[harm]), harm


def replace_by_link(queue: Path) -> None:
    """The link leads to a directory beside it."""
    queue.rename(queue.with_name(f"{queue.name}.moved"))
    queue.symlink_to(f"{queue.name}.moved")


def move_away(queue: Path) -> None:
    """The link leads out of the store."""
    target = queue.parents[len(queue.parts) - 1 - queue.parts.index("store")].with_name(f"of {queue.name}")
    queue.rename(target)
    queue.symlink_to(target)


LINKS = {
    "topic beside it": (replace_by_link, True),
    "queue beside it": (replace_by_link, False),
    "topic elsewhere": (move_away, True),
    "queue elsewhere": (move_away, False),
}


def test_a_queue_behind_a_link_is_believed(tmp_path: Path) -> None:
    """All records of the topic are lost with a segment, and only its queue tells of them."""
    store = HandMadeStore(tmp_path / "store", SEGMENT)
    for number, (harm, is_topic) in enumerate(LINKS.values()):
        lane = store.lane(number)
        for row in range(5):
            lane.append(f"c{number}", b"%d" % row)
        for row in range(COUNT):
            lane.append("a", b"%d" % row * 30)
        lane.dispatch()
        lane.publish()
        directory = store.directory.lane_directory(number)
        queue = directory.queue_path(f"c{number}")
        harm(queue.parent if is_topic else queue)
        directory.segment_path(0).unlink()
    with commitlog.Store.open(store.path, KEEPS):
        pass
    for number, kind in enumerate(LINKS):
        with commitlog.Reader(store.path, topic=f"c{number}") as reader, pytest.raises((CorruptRecord, DamagedFile)):
            pytest.fail(f"{kind}: {list(reader)}")


@pytest.mark.parametrize("count", with_nightly([40], [20]))
def test_entries_whose_places_other_records_have(count: int, tmp_path: Path) -> None:
    """Another log, with damage of its own, is in the place of the log: they count as lost.

    A record ends by chance where the lane's own log ended. One of 40 entries lies in two sectors.
    """
    store, other = HandMadeStore(tmp_path / "store", SEGMENT), HandMadeStore(tmp_path / "other", SEGMENT)
    lane, longer = store.lane(0), other.lane(0)
    for row in range(count):
        lane.append("c", b"%d" % row)
        longer.append("c" if row < 5 else "a", b"%d" % row)
    for row in range(COUNT):
        longer.append("a", b"%d" % row * 30)
    lane.dispatch()
    lane.publish()
    log = store.directory.lane_directory(0).commitlog
    shutil.rmtree(log)
    shutil.copytree(other.directory.lane_directory(0).commitlog, log)
    (log / segment_name(2 * SEGMENT)).write_bytes(bytes(SEGMENT))
    with commitlog.Store.open(store.path, KEEPS) as running, running.producer() as producer:
        assert producer.send("c", b"new").offset == count
    with pytest.raises((CorruptRecord, DamagedFile)), commitlog.Reader(store.path, topic="c", start=5) as reader:
        list(reader)


@pytest.mark.parametrize("at", with_nightly([207], [7]))
def test_a_log_that_is_lost_with_entries_of_a_queue(at: int, tmp_path: Path) -> None:
    """What is left of the queue tells how many messages there were: no offset is used twice."""
    store = HandMadeStore(tmp_path / "store", SEGMENT)
    lane = store.lane(0)
    for row in range(30):
        lane.append("c", b"%d" % row)
    lane.dispatch()
    lane.publish(is_drained=False)
    directory = store.directory.lane_directory(0)
    shutil.rmtree(directory.commitlog)
    directory.abort_file.touch()
    with (directory.queue_path("c") / f"{0:020d}").open("r+b") as queue:
        queue.seek(at)
        queue.write(random.Random(1).randbytes(20))
    with commitlog.Store.open(store.path, KEEPS) as running, running.producer() as producer:
        assert producer.send("c", b"new").offset == 30
    with pytest.raises((CorruptRecord, DamagedFile)), commitlog.Reader(store.path, topic="c", start=25) as strict:
        list(strict)

"""Values many at a time are those of the messages one by one, in the same order, up to damage."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from commitlog import CommitLogError, Reader
from commitlog.errors import CorruptRecord, OptionError
from commitlog.reading.merged_lanes import merged
from tests.builders.hand_made import HandMadeStore


def in_pieces(lane: list[tuple[int, bytes]], chosen: random.Random) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    while lane:
        count = chosen.randrange(4)
        yield np.array([time for time, _ in lane[:count]], np.int64), [value for _, value in lane[:count]]
        lane = lane[count:]


@pytest.mark.parametrize("seed", range(60))
def test_merged_as_heapq_merges(seed: int) -> None:
    """Also equal times across lanes and pieces, and times that go down."""
    chosen = random.Random(seed)
    lanes = [
        [(chosen.randrange(6) if seed % 3 else number // 2, b"%d %d" % (lane, number)) for number in range(20)]
        for lane in range(4)
    ]
    if seed % 2:
        lanes = [sorted(lane, key=itemgetter(0)) for lane in lanes]
    wanted = [value for _, value in heapq.merge(*lanes, key=itemgetter(0))]
    found = merged(in_pieces(lane, chosen) for lane in lanes)
    assert [bytes(value) for values in found for value in values] == wanted


def filled(path: Path) -> HandMadeStore:
    """Three lanes with the same times and two topics, over several segments."""
    store = HandMadeStore(path)
    for lane in (0, 1, 4):
        for number in range(600):
            value = b"%d %d " % (lane, number) + b"x" * (number % 300)
            store.lane(lane).append("ab"[number % 2], value)
    store.publish()
    return store


def by_message(reader: Reader) -> tuple[list[bytes], str]:
    values = []
    try:
        with reader:
            for message in reader:
                values.append(message.value)
    except CommitLogError as error:
        return values, f"{type(error).__name__} {error}"
    return values, ""


def by_list(reader: Reader) -> tuple[list[bytes], str]:
    values: list[bytes] = []
    try:
        with reader:
            for some in reader.value_lists():
                values += map(bytes, some)
    except CommitLogError as error:
        return values, f"{type(error).__name__} {error}"
    return values, ""


@pytest.mark.parametrize("topic", [None, "a"])
@pytest.mark.parametrize("start", ["earliest", "last 7", "latest", 100])
def test_the_same_as_message_by_message(tmp_path: Path, topic: str | None, start: str | int) -> None:
    store = filled(tmp_path / "store")
    found = by_list(Reader(store.path, topic, start=start))
    assert found == by_message(Reader(store.path, topic, start=start))
    assert found[1] == ""
    assert len(found[0]) == 3 * (2 - bool(topic)) * {"earliest": 300, "last 7": 7, "latest": 0, 100: 200}[start]


@pytest.mark.parametrize("topic", [None, "a", "b"])
def test_damage_is_the_same_error_after_the_same_messages(tmp_path: Path, topic: str | None) -> None:
    """A byte of a value is changed: good ones before it and in other lanes come first."""
    store = filled(tmp_path / "store")
    lane = store.path / "lanes/1/commitlog"
    file = sorted(lane.iterdir())[1]
    data = bytearray(file.read_bytes())
    data[data.index(b"xxx")] = ord("y")
    file.write_bytes(data)
    found = by_list(Reader(store.path, topic))
    assert found == by_message(Reader(store.path, topic))
    is_met = found[1].startswith(CorruptRecord.__name__)
    assert is_met or topic is not None


def test_other_readers_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    with Reader(store.path, follow=True) as reader, pytest.raises(OptionError):
        next(reader.value_lists())

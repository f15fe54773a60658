"""Readers by the native core and by Python's find the same in whole stores, whatever is in them.

Lanes, holes, damage, trims, retention in mid-read, RocketMQ's roots: messages, order, errors and
warnings are the same. What a core does with single records is compared in tests/native.
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import commitlog
from commitlog.errors import CommitLogError
from commitlog.native import core
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.topic_trim import carry_out, parse_before, plan_trim
from commitlog.reading.view import StoreView
from commitlog.record.record_layout import SysFlag
from tests.builders.hand_made import V4, V6, HandMadeStore
from tests.builders.random_damage import damage
from tests.builders.reading_process import Found, ReadingProcess, reading_process
from tests.builders.vector_store import NAMES, load
from tests.nightly import with_nightly

if core is None:
    pytest.skip("there is no native core", allow_module_level=True)

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=10_000, phases=[Phase.generate, Phase.shrink])
CASES = st.integers(0, 1 << 40).map(random.Random)
TOPICS = ("orders", "other", "a", "ü")
DAMAGES = ("flip", "cut", "zero", "splice", "insert", "remove", "lengthen", "garbage")
CALLS = ("next", "next", "batch", "poll")


class BothCores:
    """A reader by each core, which are asked the same. Their answers must be equal."""

    def __init__(self, native: ReadingProcess, python: ReadingProcess) -> None:
        self._processes = native, python

    def ask(self, *command: Any) -> Found:
        for process in self._processes:
            process.begin(*command)
        ours, theirs = [process.answer() for process in self._processes]
        assert ours == theirs
        return ours

    def poll(self) -> list[Any]:
        """What has come to lanes that others write to. Lanes may be looked at in any order."""
        for process in self._processes:
            process.begin("poll", 1000)
        answers = [process.answer() for process in self._processes]
        ours, theirs = [sorted(messages, key=lambda it: it[:3]) for messages, _, _ in answers]
        assert ours == theirs
        assert [failure for _, failure, _ in answers] == ["", ""]
        return ours


@pytest.fixture
def cores() -> Iterator[BothCores]:
    with reading_process("on") as native, reading_process("off") as python:
        yield BothCores(native, python)


# ---- stores --------------------------------------------------------------------------------------


def append_some(store: HandMadeStore, chance: random.Random, count: int) -> None:
    for _ in range(count):
        lane = store.lane(chance.randrange(3) if chance.random() < 0.5 else 0)
        body = chance.randbytes(chance.choice((0, 1, 30, 300, 1500)))
        sys_flag = chance.choice((0, 0, 0, 0, SysFlag.COMPRESSED, 4, 8, 12)) if chance.random() < 0.3 else 0
        if sys_flag == SysFlag.COMPRESSED and chance.random() < 0.8:
            body = zlib.compress(body)
        odd = chance.random() < 0.2
        lane.append(
            chance.choice(TOPICS[:2] if chance.random() < 0.8 else TOPICS),
            body,
            key=chance.choice((None, "k")),
            tags=chance.choice((None, "tag")),
            properties={"a": "b"} if chance.random() < 0.2 else None,
            born=V6 if odd and chance.random() < 0.3 else V4,
            stored=V6 if odd and chance.random() < 0.3 else V4,
            sys_flag=int(sys_flag),
            crc=not odd or chance.random() < 0.7,
        )


def publish_some(store: HandMadeStore, chance: random.Random) -> None:
    """Some lanes are not dispatched, or not flushed, to their ends."""
    for lane in store.lanes.values():
        if chance.random() < 0.7:
            lane.dispatch()
        elif lane.dispatched < len(lane.records):
            lane.dispatch(chance.randrange(len(lane.records) - lane.dispatched))
        ends = [record.physical_offset for record in lane.records[len(lane.records) // 2 :]]
        flushed = chance.choice(ends) if chance.random() < 0.2 and ends else None
        lane.publish(flushed=flushed, is_drained=flushed is None and chance.random() < 0.7)


def damage_some(lane: Path, chance: random.Random) -> None:
    which = chance.choice(("commitlog", "commitlog", "consumequeue"))
    if any(path.is_file() for path in (lane / which).rglob("0*")):
        content = chance.randbytes(chance.randrange(1, 64))
        damage(lane, [(chance.choice(DAMAGES), chance.random(), chance.random(), content)], which)


def delete_some(store: HandMadeStore, chance: random.Random) -> None:
    """What retention does: the first segments of a lane go."""
    lane = chance.choice(list(store.lanes.values()))
    segments = lane.end // store.segment_bytes
    directory = store.directory.lane_directory(lane.number)
    if segments and directory.segment_path(0).exists():
        lane.forget_before(chance.randrange(segments) + 1)


def trim_some(store: HandMadeStore, chance: random.Random) -> None:
    topic = chance.choice(TOPICS[:2])
    with closing(StoreView(store.path)) as view, warnings.catch_warnings(action="ignore"):
        index = TopicIndex(view)
        with suppress(CommitLogError):  # it is damaged, or has no such offset
            index.refresh()
            carry_out(view, plan_trim(index, topic, parse_before(topic, str(chance.randrange(20)))))
        index.lanes.clear()  # they have mapped segments


def make_store(path: Path, chance: random.Random) -> list[Callable[[], object]]:
    """Makes a store. Returns what may happen to it while it is read."""
    store = HandMadeStore(path, segment_bytes=chance.choice((1 << 12, 1 << 13, 1 << 16)))
    append_some(store, chance, chance.choice((1, 10, 60)))
    publish_some(store, chance)
    lanes = [store.directory.lane_directory(number).path for number in store.lanes]

    def grow() -> None:
        append_some(store, chance, chance.randrange(1, 20))
        with suppress(CommitLogError):  # a consume queue is damaged
            publish_some(store, chance)

    return [
        grow,
        lambda: delete_some(store, chance),
        lambda: trim_some(store, chance),
        lambda: damage_some(chance.choice(lanes), chance),
    ]


def make_root(path: Path, chance: random.Random) -> list[Callable[[], object]]:
    """A store root that a real RocketMQ wrote."""
    for name, content in load(chance.choice(NAMES)).files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return [lambda: damage_some(path, chance)]


def options_of(chance: random.Random, *, is_root: bool) -> dict[str, Any]:
    starts: list[Any] = ["earliest", "earliest", "latest", "last 5", chance.randrange(9), "2023-11-14T22:13:40Z"]
    starts.append({"orders": {0: chance.randrange(30), 1: chance.choice((-1, -2, 3))}})
    options: dict[str, Any] = {"ignore_corrupt": chance.random() < 0.4}
    if not is_root:
        options |= {"topic": chance.choice((None, "orders", ["orders", "ü"])), "start": chance.choice(starts)}
        options |= {"follow": chance.random() < 0.4, "isolation": chance.choice(("flushed", "committed", "accepted"))}
        options |= {"lanes": chance.choice((None, None, {0}, {0, 2}))}
    return options


# ---- comparisons ---------------------------------------------------------------------------------


def compare(cores: BothCores, memory: Path, chance: random.Random) -> None:
    with TemporaryDirectory(dir=memory) as directory:  # not on the disk, which would sync it
        compare_at(Path(directory) / "store", cores, chance)


def compare_at(path: Path, cores: BothCores, chance: random.Random) -> None:
    is_root = chance.random() < 0.1
    actions = (make_root if is_root else make_store)(path, chance)
    for _ in range(chance.choice((0, 0, 1, 3))):
        chance.choice(actions)()
    options = options_of(chance, is_root=is_root)
    cores.ask("open", path, options)
    try:
        if not options.get("follow") and not is_root and not options["ignore_corrupt"] and chance.random() < 0.2:
            cores.ask("values")
            return
        calls = ("poll", "batch") if options.get("follow") else CALLS
        for _ in range(chance.choice((1, 2, 6))):
            cores.ask(chance.choice(calls), chance.choice((1, 7, 200)))
            if chance.random() < 0.5:
                chance.choice(actions)()
        cores.ask(chance.choice(calls), 500)
    finally:
        cores.ask("close")


@pytest.mark.nightly
@FEW
@given(CASES)
def test_both_cores_find_the_same(cores: BothCores, shm_root: Path, chance: random.Random) -> None:
    compare(cores, shm_root, chance)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@MANY
@given(CASES)
def test_both_cores_find_the_same_at_length(cores: BothCores, shm_root: Path, chance: random.Random) -> None:
    compare(cores, shm_root, chance)


@pytest.mark.parametrize("isolation", with_nightly(["committed"], ["accepted", "flushed"]))
def test_both_cores_find_the_same_in_a_live_store(cores: BothCores, tmp_path: Path, isolation: str) -> None:
    """They follow it, and get everything once and in its order."""
    chance = random.Random(7)
    config = {"store": {"segment_bytes": 1 << 16, "max_lanes": 3}}
    with commitlog.Store.open(tmp_path / "store", config) as store, ExitStack() as stack:
        producers = [stack.enter_context(store.producer()) for _ in range(2)]
        cores.ask("open", store.path, {"topic": ["orders", "a"], "follow": True, "isolation": isolation})
        sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS[:3]}
        found: dict[str, list[bytes]] = {"orders": [], "a": []}
        for number in range(60):
            topic = chance.choice(TOPICS[:3])
            value = b"%d " % number + bytes(chance.choice((0, 100, 5_000, 15_000)))
            for _ in range(chance.choice((1, 1, 3))):
                chance.choice(producers).send(topic, value)
                sent[topic].append(value)
            if chance.random() < 0.5:
                for producer in producers:
                    producer.flush("flushed", timeout=60)
                for message in cores.poll():
                    found[message[0]].append(message[4])
        for producer in producers:
            producer.flush("flushed", timeout=60)
        for message in cores.poll():
            found[message[0]].append(message[4])
        cores.ask("close")
    assert {topic: sorted(values) for topic, values in found.items()} == {topic: sorted(sent[topic]) for topic in found}

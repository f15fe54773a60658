"""A process that has the pool mapped writes garbage into the words of a lane.

The lane is set aside by name. All others go on, and the next start recovers it from its files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReadingWarning
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import DECLARED, STAGES, Lane, Stage
from commitlog.watching.health import health
from commitlog.watching.snapshot import StoreWatch
from tests.builders.killed import kill_store
from tests.crash.scene import halted_process, kill, pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

SEGMENT_BYTES = 1 << 16
MOST = (1 << 64) - 1
Scribble = tuple[int, int]
"""A word of a lane, and what is written into it."""

KNOWN: list[Scribble] = [
    (Lane.SEGMENT_SIZE, 0),
    (Lane.SEGMENT_SIZE, 1 << 63),
    (Lane.BUFFERS, MOST),
    (Lane.WROTE, 1),
    (Lane.WROTE, 1 << 60),
    (Lane.COMMITTED, 0),
    (Lane.COMMITTED, MOST),
    (Lane.FLUSHED, 1 << 62),
    (Lane.DISPATCHED, MOST),
    (Lane.FLUSH_REQUESTED, MOST),
    (Lane.ALLOCATED, 7),
    (Lane.ALLOCATED, MOST),
    (Lane.COMMITS, MOST),
    (Lane.SLOTS, 1),
    (Lane.DISPATCHED_TIMESTAMP, MOST),
]
"""Each of these has ended stages of the whole store, its stop, or its next start."""
NOT_SEEN = (Lane.DATA_END, Lane.DIRECT)
"""Words that a lane with one segment does not use."""


def config_for(lanes: int) -> dict[str, dict[str, object]]:
    return {
        "store": {"segment_bytes": SEGMENT_BYTES, "max_lanes": lanes + 1},
        "supervisor": {"restarts_max": 2},
        "allocator": {"lane_idle_ms": 600_000},
    }


@contextmanager
def control_of(path: Path) -> Iterator[ControlRegion]:
    """The control region of a store, to write into."""
    with closing(StoreView(path)) as view:
        assert view.pool is not None
        control = ControlRegion.attach(view.pool, writable=True)
    try:
        yield control
    finally:
        control.close()


class Victims:
    """A store with a lane for each scribble, and one more that nobody harms.

    `producers` has the lanes' producers by their numbers; the last one is the good one.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.config = path, config_for(count)
        self.good, self.sent = count, [0] * (count + 1)
        self.open()
        for lane in self._lanes:
            self.send(lane).wait("flushed")
        with control_of(path) as control:
            wait_until(lambda: all(row[Lane.DISPATCHED] == row[Lane.WROTE] for row in map(control.row, self._lanes)))

    def open(self) -> None:
        """Starts the store, and makes the producers of all lanes."""
        self.store = commitlog.Store.open(self.path, self.config)
        self.producers = [commitlog.Producer(self.path) for _ in self._lanes]

    @property
    def _lanes(self) -> range:
        return range(self.good + 1)

    def send(self, lane: int) -> commitlog.Receipt:
        receipt = self.producers[lane].send("t", b"%d-%d" % (lane, self.sent[lane]))
        self.sent[lane] += 1
        return receipt

    def harm(self, scribbles: Sequence[Scribble]) -> None:
        with control_of(self.path) as control:
            for lane, (word, value) in enumerate(scribbles):
                control.row(lane)[word] = value

    def check_good(self) -> None:
        """The lane that nobody has harmed goes on, and no stage has died."""
        for _ in range(20):
            self.send(self.good).wait("flushed", timeout=30)
        with control_of(self.path) as control:
            assert [control.stage_row(stage)[Stage.RESTARTS] for stage in STAGES] == [0] * len(STAGES)

    def set_aside(self) -> set[int]:
        """The lanes that `health` names."""
        with StoreWatch(self.path) as watch:
            found = health(watch.snapshot())
        return {lane for reason in found.reasons if reason.code == "lane-words-damaged" for lane in reason.lanes}

    def close_producers(self) -> None:
        for producer in self.producers:
            with contextlib.suppress(errors.CommitLogError):
                producer.close()

    def close(self) -> None:
        self.close_producers()
        self.store.close()

    def check_all(self) -> None:
        """After a start, each message that was flushed is read, or an error names its lane."""
        for lane in self._lanes:
            expected = [b"%d-%d" % (lane, number) for number in range(self.sent[lane])]
            with warnings.catch_warnings(), commitlog.Reader(self.path, lanes={lane}, ignore_corrupt=True) as reader:
                warnings.simplefilter("ignore", ReadingWarning)
                assert [message.value for message in reader] == expected, lane


def run(path: Path, scribbles: Sequence[Scribble], *, killed: bool, named: int = 0) -> None:
    """Harms a lane with each scribble, ends the store, and starts it again.

    `health` names the first `named` lanes meanwhile.
    """
    with closing(Victims(path, len(scribbles))) as victims:
        victims.harm(scribbles)
        victims.check_good()
        wait_until(lambda: victims.set_aside() >= set(range(named)), "all of them are set aside")
        victims.close_producers()
        if killed:
            kill_store(victims.store)
        else:
            victims.store.close()
        victims.open()
        victims.check_all()
        victims.check_good()
    victims.check_all()


@pytest.mark.parametrize("killed", with_nightly([True], [False]))
def test_garbage_costs_its_own_lane_only(killed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others go on, and a stop or a kill is followed by a start that recovers each by name."""
    caplog.set_level(logging.WARNING)
    run(tmp_path / "store", KNOWN, killed=killed, named=len(KNOWN))
    for lane, (word, _) in enumerate(KNOWN):
        if word != Lane.FLUSH_REQUESTED:  # each start sets that one to 0
            assert f"lane {lane}: its words in " in caplog.text


_WORDS = [
    word.index + more
    for name, word in DECLARED["Lane"].items()
    for more in range(word.width)
    if getattr(Lane, name) not in NOT_SEEN
]
_VALUES = [0, 1, 2, 3, 1 << 31, 1 << 62, 1 << 63, MOST, 0x5DEECE66D1234567]


@pytest.mark.nightly
@pytest.mark.parametrize("value", _VALUES)
@pytest.mark.parametrize("killed", [False, True])
def test_garbage_in_each_word(killed: bool, value: int, tmp_path: Path) -> None:
    """Each word of a lane gets each value."""
    run(tmp_path / "store", [(word, value) for word in _WORDS], killed=killed)


@pytest.mark.parametrize("is_recorded", with_nightly([True], [False]))
def test_a_place_of_the_index_that_no_record_ends_at(
    is_recorded: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is between the positions that it lies between, and may have come into the lane's file."""
    path, config = tmp_path / "store", config_for(1)
    file = PositionsFile(StoreDirectory(path).lane_directory(0), "", DISK)

    def recorded() -> int:
        return found.dispatched_where if (found := file.load()) else -1

    store = commitlog.Store.open(path, config | {"flusher": {"positions_interval_ms": 20 if is_recorded else 60_000}})
    with commitlog.Producer(path) as producer:
        end = producer.send("t", b"0").end
        producer.flush("flushed", 60)
        with control_of(path) as control:
            row = control.row(0)
            wait_until(lambda: row[Lane.DISPATCHED] == end, "it is indexed")
            wait_until(lambda: not is_recorded or recorded() == end, "the file says so, too")
            with halted_process(pid_of(path, "dispatcher")):
                row[Lane.DISPATCH_SYNCED] = 3
                wait_until(lambda: not is_recorded or recorded() < end, "the file says something else")
                kill_store(store)
    commitlog.Store.open(path, config).close()
    assert "lane 0: its words in " in caplog.text
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"0"]


@pytest.mark.nightly
def test_a_stop_relies_on_no_place_of_the_index_that_no_record_ends_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The dispatcher hangs, is killed, and does not mend it. The next start recovers the lane."""
    path, config = tmp_path / "store", config_for(1)
    config["supervisor"]["stop_timeout_ms"] = 500
    store = commitlog.Store.open(path, config)
    with commitlog.Producer(path) as producer:
        end = producer.send("t", b"0").end
        producer.flush("flushed", 60)
    with control_of(path) as control:
        wait_until(lambda: control.row(0)[Lane.DISPATCHED] == end, "it is indexed")
        os.kill(pid_of(path, "dispatcher"), signal.SIGSTOP)
        control.row(0)[Lane.DISPATCH_SYNCED] = 3
    assert not store.close().drained
    commitlog.Store.open(path, config).close()
    assert "lane 0: its words in " in caplog.text
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"0"]


@pytest.mark.parametrize(
    ("when", "word"),
    with_nightly(
        [("an allocator runs", Lane.FIRST)],
        [
            ("it is dead", Lane.RETIRED),
            ("all are dead", Lane.FIRST),
            ("an allocator runs", Lane.RETIRED),
            ("it is dead", Lane.FIRST),
            ("all are dead", Lane.RETIRED),
        ],
    ),
)
def test_segments_that_nobody_retired_are_not_deleted(tmp_path: Path, when: str, word: int) -> None:
    """Garbage in a word of retention's can be any segment's begin.

    The other word, or `positions`, know how far retention has come.
    """
    path, config = tmp_path / "store", config_for(1) | {"flusher": {"positions_interval_ms": 20}}
    values = [b"%d" % number + bytes(1000) for number in range(300)]
    log = StoreDirectory(path).lane_directory(0).commitlog
    store = commitlog.Store.open(path, config)
    with store.producer() as producer:
        for value in values:
            producer.send("t", value)
        producer.flush("flushed", 60)
    before = sorted(log.iterdir())
    allocator = pid_of(path, "allocator")
    if when == "it is dead":
        os.kill(allocator, signal.SIGSTOP)
    if when == "all are dead":
        kill_store(store)
    with control_of(path) as control:
        control.row(0)[word] = 2 * SEGMENT_BYTES
        if when == "it is dead":
            kill(allocator)
        if when == "all are dead":
            store = commitlog.Store.open(path, config)
        wait_until(lambda: control.row(0)[word] == 0 or not before[0].exists(), "somebody acts on it")
    store.close()
    assert set(before[:4]) <= set(log.iterdir())
    commitlog.Store.open(path, config).close()
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == values


def test_what_only_buffers_have_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Accepted messages that no file has are found in the buffers, over the ends of segments."""
    path, value = tmp_path / "store", bytes(1000)
    store = commitlog.Store.open(path, config_for(1))
    with commitlog.Producer(path) as producer:
        producer.send("t", value).wait("flushed")
        with halted_process(pid_of(path, "committer")):
            for _ in range(150):
                producer.send("t", value)
            kill_store(store)
        with control_of(path) as control:
            control.row(0)[Lane.COMMITTED] = MOST
    commitlog.Store.open(path, config_for(1)).close()
    assert "bytes that were only in its write buffers are kept" in caplog.text
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [value] * 151


@pytest.mark.parametrize("lost", with_nightly([200], [SEGMENT_BYTES, None]))
def test_what_the_disk_has_lost_is_taken_from_the_buffers(
    lost: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flushed messages of which the file has zeros are no loss while the memory has them."""
    path, values = tmp_path / "store", [b"%d" % number * 1000 for number in range(80)]
    store = commitlog.Store.open(path, config_for(1))
    positions = PositionsFile(StoreDirectory(path).lane_directory(0), "", DISK)
    with commitlog.Producer(path) as producer:
        for value in values:
            receipt = producer.send("t", value)
        receipt.wait("flushed")
        wait_until(lambda: (known := positions.load()) is not None and known.flushed_where == receipt.end)
        kill_store(store)
        with control_of(path) as control:
            control.row(0)[Lane.COMMITTED] = MOST
    log = path / "lanes/0/commitlog"
    if lost is None:
        shutil.rmtree(log)
    for file in log.glob("*"):
        kept = max(receipt.end - lost - int(file.name), 0) if lost else 0
        file.write_bytes(file.read_bytes()[:kept].ljust(SEGMENT_BYTES, b"\0"))
    with commitlog.Store.open(path, config_for(1)):
        assert "corruption" not in caplog.text
        with commitlog.Reader(path) as reader:
            assert [message.value for message in reader] == values


def test_a_lane_that_is_held_waits_for_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its producer raises the error by name, a start goes on without it, and the next has it."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, config_for(2))
    producer = commitlog.Producer(path)
    producer.send("t", b"0").wait("flushed")
    with control_of(path) as control:
        control.row(0)[Lane.COMMITTED] = MOST
    with pytest.raises(errors.LaneWordsDamaged, match="its words in shared memory are damaged"):
        producer.send("t", b"1").wait("flushed", timeout=60)
    kill_store(store)
    store = commitlog.Store.open(path, config_for(2))
    assert "it is set aside, because producer" in caplog.text
    with commitlog.Producer(path) as other:
        other.send("t", b"x").wait("flushed")
        assert other.lane == 1
    with contextlib.suppress(errors.CommitLogError):
        producer.close()
    assert not store.close().drained
    assert commitlog.Store.open(path, config_for(2)).close().drained
    with commitlog.Reader(path, lanes={0}) as reader:
        assert [message.value for message in reader] == [b"0", b"1"]


@pytest.mark.nightly
def test_garbage_in_the_words_of_stages(tmp_path: Path) -> None:
    """Garbage in any word of their rows: messages are flushed meanwhile, and after a start."""
    path = tmp_path / "store"
    for killed in (True, False):
        store = commitlog.Store.open(path, {"store": {"segment_bytes": SEGMENT_BYTES, "max_lanes": 1}})
        with commitlog.Producer(path) as producer, control_of(path) as control:
            for word in DECLARED["Stage"].values():
                for stage in STAGES:
                    for index in range(word.index, word.index + word.width):
                        control.stage_row(stage)[index] = MOST
                with StoreWatch(path) as watch:
                    health(watch.snapshot())
                for _ in range(3):
                    producer.send("t", b"x").wait("flushed", timeout=60)
        if killed:
            kill_store(store)
        else:
            store.close()
    with (
        commitlog.Store.open(path, {"store": {"segment_bytes": SEGMENT_BYTES, "max_lanes": 1}}),
        commitlog.Reader(path) as reader,
    ):
        assert len(list(reader)) == 2 * 3 * len(DECLARED["Stage"])


@pytest.mark.parametrize(
    "words", with_nightly([(Lane.COMMITTED,)], [((Lane.FIRST, Lane.BUFFERS),), ((Lane.SEGMENT_SIZE,),)])
)
def test_a_lane_is_missed_though_its_words_are_damaged(words: tuple[int, ...], tmp_path: Path) -> None:
    """Its directory is gone, and only the pool tells of it: `store.json` does not have it yet."""
    path = tmp_path / "store"
    directory = StoreDirectory(path)
    store = commitlog.Store.open(path, config_for(1))
    with commitlog.Producer(path) as producer:
        producer.send("t", b"0").wait("flushed")
        kill_store(store)
    directory.save(replace(directory.load(), lanes={}))
    (path / "lanes/0").rename(tmp_path / "aside")
    with control_of(path) as control:
        row = control.row(0)
        harm = {Lane.FIRST: row[Lane.FLUSHED], Lane.BUFFERS: 0}
        for word in words:
            row[word] = harm.get(word, MOST)
    with pytest.raises(errors.PoolNotAdopted, match=r"lane 0 is in .* and has no directory"):
        commitlog.Store.open(path, config_for(1))
    (tmp_path / "aside").rename(path / "lanes/0")
    commitlog.Store.open(path, config_for(1)).close()
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"0"]

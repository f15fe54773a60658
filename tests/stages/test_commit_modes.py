"""When committer and flusher work, and on how much.

Least pages, thorough interval, slices, group commit and a stop's drain, with rounds started by
hand.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import WaitTimeout
from commitlog.receipt import Level
from commitlog.shm.layout import Lane, Stage
from commitlog.stages.base_stage import DRAIN_ROUNDS
from tests.faults.bench import Bench, bench
from tests.faults.channel import FaultyChannel, Rule
from tests.waiting import PATIENCE_SECONDS

PAGE = 4096
MINUTE: Any = {"least_pages": 4, "thorough_interval_ms": 60_000}


def reached(made: Bench, level: Level) -> bool:
    """One round, whether everything sent has reached the level, and what it had to."""
    made.turn("allocator", "flusher", "committer", "flusher")
    return made.lane(Lane.COMMITTED if level == "committed" else Lane.FLUSHED) == made.lane(Lane.WROTE)


@pytest.mark.parametrize(("stage", "level"), [("committer", "committed"), ("flusher", "flushed")])
def test_least_pages_or_the_thorough_interval(stage: str, level: Level, tmp_path: Path) -> None:
    """RocketMQ's rule: fewer pages wait for the interval, and enough of them do not.

    Pages do not wait either if somebody waits for `flushed`.
    """
    with bench(tmp_path / "store", **{stage: MINUTE}) as made:
        producer = made.producer()
        producer.send("t", bytes(100))
        made.turn()
        made.settle()  # the first goes at once
        producer.send("t", bytes(100))
        assert not reached(made, level)
        made.clock.step(61)
        assert reached(made, level)
        producer.send("t", bytes(2 * PAGE))
        assert not reached(made, level)
        producer.send("t", bytes(2 * PAGE))
        assert reached(made, level)
        late = producer.send("t", bytes(100))
        assert not reached(made, level)
        with pytest.raises(WaitTimeout):
            late.wait("flushed", timeout=0)  # it has asked
        assert reached(made, level)
        assert late.done("flushed")


def test_a_large_commit_is_made_in_slices(tmp_path: Path) -> None:
    """One lane has ten pages to commit, one has little: after one round the small one is done."""
    with bench(tmp_path / "store", committer={"slice_bytes": PAGE}) as made:
        large, small = made.producer(), made.producer()
        for lane in (large.lane, small.lane):
            made.turn("allocator", "allocator", "allocator", "flusher")
            assert made.lane(Lane.OPENED, lane) > 0
        for _ in range(10):
            large.send("t", bytes(PAGE))
        small.send("t", bytes(100))
        made.turn("committer")
        assert made.lane(Lane.COMMITTED, large.lane) == PAGE
        assert made.lane(Lane.COMMITTED, small.lane) == made.lane(Lane.WROTE, small.lane)
        made.settle()
        assert len(made.durable_bodies(large.lane)) == 10


def test_one_sync_answers_everybody_at_or_below_it(tmp_path: Path) -> None:
    """A hundred receipts that wait are answered by one fdatasync."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipts = [producer.send("t", bytes(100)) for _ in range(100)]
        for receipt in receipts:
            with pytest.raises(WaitTimeout):
                receipt.wait("flushed", timeout=0)
        made.turn("allocator", "flusher", "committer")
        syncs = made.lane(Lane.SYNCS)
        made.turn("flusher")
        assert made.lane(Lane.SYNCS) == syncs + 1
        assert all(receipt.done("flushed") for receipt in receipts)


class Meeting(FaultyChannel):
    """A sync of a segment lasts until another one has begun as well.

    Raises BrokenBarrierError if no other comes.
    """

    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def fdatasync(self, fd: int) -> None:
        if self.stage == "flusher" and self._paths[fd].parent.name == "commitlog":
            self.both.wait()
        super().fdatasync(fd)


def test_syncs_of_several_lanes_overlap(tmp_path: Path) -> None:
    with bench(tmp_path / "store", channel=Meeting) as made:
        for producer in (made.producer(), made.producer()):
            producer.send("t", bytes(100))
        for _ in range(6):
            made.turn("allocator")
        made.turn("flusher", "committer", "flusher")
        for lane in (0, 1):
            assert made.lane(Lane.FLUSHED, lane) == made.lane(Lane.WROTE, lane) > 0


@pytest.mark.parametrize("is_refused", [False, True], ids=["a disk that takes it", "a disk that refuses"])
def test_a_stop_drains_while_it_gets_on(is_refused: bool, tmp_path: Path) -> None:
    """Twenty slices take twenty rounds.

    Ten rounds that move nothing are the end, and the log says what is left.
    """
    with bench(tmp_path / "store", committer={"slice_bytes": PAGE}) as made:
        producer = made.producer()
        made.turn("allocator", "allocator", "allocator", "flusher")
        for _ in range(20):
            producer.send("t", bytes(PAGE - 200))
        committer, rounds, work = made.stages["committer"], 0, made.stages["committer"].work

        def count() -> int:
            nonlocal rounds
            rounds += 1
            moved: int = work()
            return moved

        committer.work = count
        committer._poll = lambda milliseconds: made.clock.step(milliseconds / 1000)
        if is_refused:
            made.faults.set(Rule("pwrite", error=errno.EIO))
        committer.request_stop()
        committer._drain()
        left = made.lane(Lane.WROTE) - made.lane(Lane.COMMITTED)
        assert committer.stage_row[Stage.LEFT] == left
        assert left == (made.lane(Lane.WROTE) if is_refused else 0)
        assert rounds == DRAIN_ROUNDS == 10 if is_refused else rounds > DRAIN_ROUNDS
        made.faults.clear()
        made.settle()
        assert len(made.durable_bodies()) == 20

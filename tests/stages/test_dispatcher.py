"""The dispatcher's rounds: how far one goes."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.disk.open_queues import OpenQueues
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.layout import Lane, Stage
from tests.builders.killed import kill_store
from tests.children import in_child
from tests.faults.bench import Bench, bench
from tests.faults.channel import Rule
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}}


def test_a_round_goes_on_across_segments_and_says_how_far(tmp_path: Path) -> None:
    """It does so however small the segments are.

    A dispatcher that rested after each segment would never catch up with its producers.
    """
    with bench(tmp_path / "store") as made:
        lanes = [made.producer(), made.producer()]
        for _ in range(30):
            made.turn("allocator", "flusher", "committer", "flusher")
            for producer in lanes:
                for _ in range(20):
                    producer.send("t", bytes(1000))
        for _ in range(5):
            made.turn("allocator", "flusher", "committer", "flusher")
        flushed = [made.lane(Lane.FLUSHED, producer.lane) for producer in lanes]
        assert min(flushed) > 5 * made.lane(Lane.SEGMENT_SIZE)
        assert made.stages["dispatcher"].work() == sum(flushed)
        assert [made.lane(Lane.DISPATCHED, producer.lane) for producer in lanes] == flushed
        assert made.stages["dispatcher"].work() == 0


def _sent_to_many_topics(made: Bench, producer: commitlog.Producer, topics: int, begin: int, end: int) -> None:
    for number in range(begin, end):
        producer.send(f"t{number % topics}", b"%d" % number)
    made.turn("allocator", "flusher", "committer", "flusher")


@pytest.mark.parametrize("fails", [False, True])
def test_more_topics_than_queues_that_may_be_open(fails: bool, tmp_path: Path) -> None:
    """The least used queues are closed, all is dispatched, and each entry is at its place.

    If a sync fails meanwhile, `dispatch_synced` says no more than is durable.
    """
    topics = 40
    with bench(tmp_path / "store") as made:
        dispatcher, producers = made.stages["dispatcher"], [made.producer(), made.producer()]
        dispatcher._open_most = 6
        for turn in range(4):
            for producer in producers:
                _sent_to_many_topics(made, producer, topics, turn * 100, turn * 100 + 100)
            if fails:
                made.faults.set(Rule("fdatasync", "/consumequeue/", errno.EIO, times=2, skip=3))
            dispatcher.work()
            assert sum(len(state.queues) for state in dispatcher._state.values()) <= 6
        made.settle()
        dispatcher._sync()
        for producer in producers:
            assert made.lane(Lane.DISPATCH_SYNCED, producer.lane) == made.lane(Lane.FLUSHED, producer.lane)
        assert made.stop().drained
    for lane in range(2):
        directory = StoreDirectory(tmp_path / "store").lane_directory(lane)
        for topic in range(topics):
            queue = ConsumeQueue(directory.queue_path(f"t{topic}"))
            assert queue.end() == 10
            offsets = queue.entries(0, 10)["physical_offset"].tolist()
            assert offsets == sorted(set(offsets))
            queue.close()


def test_a_round_of_many_topics_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at each queue that it syncs: else it was killed as hung, and began again, for ever."""
    signs: list[int] = []
    sync = ConsumeQueue.sync

    def synced(queue: ConsumeQueue) -> None:
        signs.append(dispatcher.stage_row[Stage.HEARTBEAT])
        sync(queue)

    with bench(tmp_path / "store") as made:
        dispatcher = made.stages["dispatcher"]
        dispatcher._open_most = 5
        _sent_to_many_topics(made, made.producer(), 20, 0, 20)
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "sync", synced)
            assert dispatcher.work() == made.lane(Lane.DISPATCHED)
            assert len(signs) == 15
            dispatcher._sync()
    assert sorted(set(signs[:20])) == signs[:20]


@pytest.mark.nightly
def test_a_low_limit_of_descriptors_stops_no_dispatch(tmp_path: Path) -> None:
    """A store whose processes may have a hundred files each, and three hundred topics.

    It can be started again with them: after a kill with its pool, and without.
    """

    def run() -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
            for number in range(900):
                producer.send(f"t{number % 300}", b"%d" % number)
            producer.flush(timeout=60)
            wait_until(lambda: producer.statistics().dispatched_records == 900, "all to be dispatched")
        for keeps_pool in (True, False):
            kill_store(commitlog.Store.open(tmp_path / "store", SMALL))
            if not keeps_pool:
                place = StoreDirectory(tmp_path / "store").load().pool
                assert place is not None
                shutil.rmtree(place.directory)
        assert commitlog.Store.open(tmp_path / "store", SMALL).close().drained
        return "done"

    assert in_child(run) == "done"
    with commitlog.Reader(tmp_path / "store", topic="t299") as reader:
        assert [message.value for message in reader] == [b"299", b"599", b"899"]


def test_a_closed_queue_that_was_removed_is_built_anew(tmp_path: Path) -> None:
    """It is noticed when its topic comes again."""
    with bench(tmp_path / "store") as made:
        dispatcher, producer = made.stages["dispatcher"], made.producer()
        dispatcher._open_most = 1
        _sent_to_many_topics(made, producer, 2, 0, 10)
        dispatcher.work()
        removed = made.supervisor.directory.lane_directory(0).queue_path("t0")
        shutil.rmtree(removed)
        _sent_to_many_topics(made, producer, 2, 10, 20)
        made.settle()
        queue = ConsumeQueue(removed)
        assert queue.entries(0, 10)["size"].all()
        queue.close()


def test_a_dispatcher_without_descriptors_goes_on_when_it_has_some(tmp_path: Path) -> None:
    """It can't open the next segment, and has to go back to the one that it has closed for it."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        for number in range(100):
            made.turn("allocator", "flusher", "committer", "flusher")
            producer.send("t", b"%d" % number + bytes(1000))
        made.turn("allocator", "flusher", "committer", "flusher")
        dispatcher = made.stages["dispatcher"]
        made.faults.set(
            Rule("open", "/commitlog/00000000000000065536", errno.EMFILE, stage="dispatcher"),
            Rule("fdatasync", "/consumequeue/", errno.EIO, stage="dispatcher", name="sync"),
        )
        dispatcher.work()
        dispatcher._sync()
        assert made.faults.hits("sync")
        assert made.lane(Lane.DISPATCHED) == 0
        dispatcher.work()
        assert made.lane(Lane.DISPATCHER_FAULT) == errno.EMFILE
        made.faults.clear()
        made.settle()
        assert made.lane(Lane.DISPATCHED) == made.lane(Lane.WROTE)


def test_the_queues_that_are_open_leave_descriptors_for_others(tmp_path: Path) -> None:
    """A recovery has at most half of the descriptors open, whatever the number of topics."""

    def run() -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        queues = OpenQueues(DISK, 20_000)
        for number in range(300):
            queues.get(tmp_path / f"consumequeue/t{number}/0").place([0], [number], [100], [0])
            assert len(os.listdir("/proc/self/fd")) < 120
        queues.sync()
        queues.close()
        return "done"

    assert in_child(run) == "done"

"""Orders of events that are rare between processes, made on a bench.

Each of them lost or doubled something once, or nearly.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commitlog
from commitlog.errors import AllocateTimeout, NoFreeLane
from commitlog.inspecting.verify import verify_store
from commitlog.shm.layout import Header, Lane
from commitlog.system.clock import Clock
from tests.crash.accounts import read_store
from tests.faults.bench import SEGMENT_BYTES, Bench, bench
from tests.faults.channel import CachingChannel, FaultyChannel, Rule

DIRECT: dict[str, Any] = {"store": {"write_path": "direct"}}


def direct_producer(made: Bench) -> Any:
    """A producer that writes the segment file itself, on the bench's disk."""
    producer = made.producer()
    producer._lease.channel = made._channel(made.path, "producer")
    made.turn("allocator", "flusher")
    return producer


def test_direct_bytes_that_a_failed_sync_lost_before_they_were_committed(tmp_path: Path) -> None:
    """They are published, not yet committed when the sync fails.

    No later sync writes those pages by itself.
    """
    with bench(tmp_path / "store", channel=CachingChannel, **DIRECT) as made:
        producer = direct_producer(made)
        sent = [b"%04d" % number * 1000 for number in range(10)]
        for body in sent[:3]:
            producer.send("t", body)
        made.turn("committer")
        for body in sent[3:8]:
            producer.send("t", body)
        made.faults.set(Rule("fdatasync", error=errno.EIO, times=1))
        made.turn("flusher")
        assert made.faults.hits() == 1
        for body in sent[8:]:
            producer.send("t", body)
        made.settle()
        assert made.durable_bodies() == sent


def test_direct_bytes_that_a_failed_sync_lost_before_they_were_published(tmp_path: Path) -> None:
    """The record is written, the sync fails, and all committed bytes are written again.

    Only then the record is published.
    """
    with bench(tmp_path / "store", channel=CachingChannel, **DIRECT) as made:
        producer = direct_producer(made)
        first, second = b"1" * 9000, b"2" * 9000
        producer.send("t", first)
        made.turn("committer")

        def fail() -> None:
            made.faults.set(Rule("fdatasync", error=errno.EIO, times=1))
            made.turn("flusher")
            made.turn("committer")
            assert made.lane(Lane.REWRITTEN) == made.lane(Lane.REWRITE_WANTED) > 0

        place = producer._place
        write = place.append

        def write_and_fail(record: bytes) -> None:
            write(record)
            fail()

        place.append = write_and_fail
        producer.send("t", second)
        place.append = write
        made.settle()
        assert made.durable_bodies() == [first, second]


def test_direct_bytes_of_a_killed_lessee_are_no_part_of_the_log(tmp_path: Path) -> None:
    """They were never published: the next lessee's shorter record leaves none of them behind it."""
    with bench(tmp_path / "store", **DIRECT) as made:
        producer = direct_producer(made)
        producer.send("t", b"first")
        producer._place.append(b"x" * 9000)
        made.turn("committer")
        producer.close()
        again = direct_producer(made)
        again.send("t", b"second")
        made.settle()
        assert made.stop().drained
    assert read_store(tmp_path / "store").messages == 2


def test_a_flusher_that_can_open_nothing_waits(tmp_path: Path) -> None:
    """No descriptors are left at its start: the fault has a name, nobody dies, and it heals."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        producer.send("t", b"first")
        made.turn("allocator", "flusher", "committer")
        made.crash("flusher")
        made.faults.set(Rule("open", stage="flusher", error=errno.EIO))
        made.start("flusher")
        for _ in range(3):
            made.turn()
        assert made.lane(Lane.FLUSHER_FAULT) == errno.EIO
        assert made.lane(Lane.FLUSHED) == 0
        made.faults.clear()
        made.settle()
        assert made.lane(Lane.FLUSHER_FAULT) == 0
        assert made.durable_bodies() == [b"first"]


def test_a_lessee_does_not_trust_queues_that_were_not_synced(tmp_path: Path) -> None:
    """A failed sync kills a dispatcher, and entries are lost.

    The offsets of the next lessee go on all the same.
    """
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        for _ in range(20):
            producer.send("t", b"x")
        made.turn("allocator", "flusher", "committer", "flusher", "dispatcher")
        producer.close()
        assert made.lane(Lane.DISPATCHED) == made.lane(Lane.WROTE)
        synced = made.lane(Lane.DISPATCH_SYNCED)
        dispatched = made.lane(Lane.DISPATCHED)
        made.faults.set(Rule("fdatasync", where="/consumequeue/", error=errno.EIO, times=1))
        made.stages["dispatcher"]._sync()
        made.control.row(0)[Lane.DISPATCHED] = dispatched  # killed before it could take it back
        made.crash("dispatcher")
        assert synced == made.lane(Lane.DISPATCH_SYNCED) == 0
        assert made.producer().send("t", b"next").offset == 20


def test_a_stop_that_can_not_write_its_last_positions_keeps_the_pool(tmp_path: Path) -> None:
    """Everything is flushed, and the disk refuses.

    The report says so, and the next start goes on.
    """
    with bench(tmp_path / "store") as made:
        made.producer().send("t", b"first")
        made.settle()
        made.supervisor.channel = FaultyChannel(made.path)
        made.faults.set(Rule("pwrite", where="/positions/", error=errno.ENOSPC))
        report = made.stop()
        assert not report.drained
        assert "lane 0" in report.kept[0]
        assert "No space left" in report.kept[0]
        made.faults.clear()
        again = Bench(made.path)
        again.producer().send("t", b"second")
        again.settle()
        assert again.stop().drained
    assert read_store(tmp_path / "store").messages == 2


def test_what_buffers_hold_behind_a_damaged_direct_segment_is_kept(tmp_path: Path) -> None:
    """Segment 3 was written directly and lost a record to a failed sync.

    Segment 4 is only in its buffer when all are killed. The next start says what is lost, and loses
    nothing else.
    """
    path = tmp_path / "store"
    with bench(path, producer={"when_no_buffer": "write_direct"}) as made:
        producer = made.producer()
        places = []
        for _ in range(4 * SEGMENT_BYTES // 3200):  # to the middle of segment 3
            places.append(producer.send("t", b"x" * 3000).physical_offset)
            made.turn("allocator", "flusher")
        assert made.lane(Lane.DIRECT_SEGMENTS) == 1
        for _ in range(2):
            made.turn("committer", "flusher")
        assert made.lane(Lane.FLUSHED) == 2 * SEGMENT_BYTES
        while places[-1] < 4 * SEGMENT_BYTES + 10_000:
            places.append(producer.send("t", b"x" * 3000).physical_offset)
        assert made.lane(Lane.DIRECT_SEGMENTS) == 1
        made.abandon()
        lost = next(place for place in places if place > 3 * SEGMENT_BYTES)
        with (path / "lanes/0/commitlog" / f"{3 * SEGMENT_BYTES:020d}").open("r+b") as file:
            file.seek(lost % SEGMENT_BYTES)
            file.write(bytes(2000))
        again = Bench(path)
        assert any("accepted are lost" in warning for warning in again.warnings)
        assert again.producer().send("t", b"next").offset == len(places)
        again.settle()
        assert again.stop().drained
    (lane,) = verify_store(path).lanes
    assert lane.records == len(places)  # one is lost, one came after
    assert [finding.offset for finding in lane.findings] == [lost]


def test_damaged_lanes_are_named_where_no_other_is_free(tmp_path: Path) -> None:
    """The way out is a new start, not more lanes."""
    with bench(tmp_path / "store", store={"max_lanes": 1}) as made:
        made.producer().close()
        made.control.row(0)[Lane.COMMITTER_FAULT] = errno.EILSEQ
        with pytest.raises(NoFreeLane, match=r"lanes \[0\] are damaged by a failed sync, a new start"):
            made.producer()


class BusyAllocator(Clock):
    """A clock for an allocator that is busy: two seconds pass at every look.

    At each of the first `others` looks the allocator has made a segment for somebody else.
    """

    def __init__(self, others: int) -> None:
        self.others, self.now = others, Clock().monotonic_ns()
        self.made: Bench | None = None

    def monotonic_ns(self) -> int:
        self.now += 2_000_000_000
        if self.made and self.others:
            self.others -= 1
            self.made.stages["allocator"].count_action(0)
            if not self.others:
                self.made.turn("allocator", "flusher")
        return self.now


def test_the_time_for_a_segment_begins_when_it_is_worked_on(tmp_path: Path) -> None:
    """For 40 s the allocator serves others, then this producer.

    Five seconds count only while the allocator does not move.
    """
    with bench(tmp_path / "store", store={"write_path": "direct"}, producer={"segment_wait_ms": 5000}) as made:
        clock = BusyAllocator(20)
        made.words[Header.SUPERVISOR_HEARTBEAT] = clock.now
        producer = commitlog.Producer(made.path, clock=clock)
        made.producers.append(producer)
        clock.made = made
        assert producer.send("t", b"x").offset == 0
        with pytest.raises(AllocateTimeout):  # no room behind the first, and nobody makes another segment
            producer.send_batch("t", [bytes(10_800)] * 6)
        made.settle()


def test_a_lane_given_back_while_the_supervisor_looks_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor has seen that the lane has buffers.

    When it looks for their file the allocator has removed it: nothing is wrong.
    """
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        producer.send("t", b"x")
        made.settle()
        find = np.flatnonzero

        def find_and_give_back(flags: Any) -> Any:
            lanes = find(flags)
            monkeypatch.undo()
            producer.close()
            for _ in range(2):
                made.stages["allocator"].on_wait_end()
                made.clock.step(10)
            assert not made.lane(Lane.BUFFERS) & 1
            return lanes

        monkeypatch.setattr(np, "flatnonzero", find_and_give_back)
        made.supervisor.store_watch.check()
        assert np.flatnonzero is find


def test_committed_bytes_that_the_file_has_lost_are_not_committed_after_a_start(tmp_path: Path) -> None:
    """Somebody puts an older copy of a segment back while nobody runs; the buffer has the rest.

    Until the committer has written it again, a reader and the lane's next producer would find
    zeros in its place.
    """
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        producer.send("t", b"before")
        made.settle()
        segment = made.supervisor.directory.lane_directory(0).segment_path(0)
        older = segment.read_bytes()
        producer.send("t", b"after")
        made.turn("committer")
        assert made.lane(Lane.COMMITTED) == made.lane(Lane.WROTE) > made.lane(Lane.FLUSHED)
        made.abandon()
        segment.write_bytes(older)
        with bench(tmp_path / "store") as again:
            with commitlog.Reader(tmp_path / "store", isolation="committed") as reader:
                assert [message.value for message in reader] == [b"before"]
            again.settle()
            with commitlog.Reader(tmp_path / "store", isolation="committed") as reader:
                assert [message.value for message in reader] == [b"before", b"after"]
            assert again.producer().send("t", b"later").offset == 2

"""What must hold, as functions: each passes with the real stages and fails with its mistake.

A check takes a `Build`, which makes benches of the stages as they are, or with one mistake planted.
"""

from __future__ import annotations

import contextlib
import errno
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import commitlog
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.errors import DiskError, NoBufferAvailable, PoolNotAdopted, StageFailed
from commitlog.record.record_layout import BLANK_BYTES
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from commitlog.shm.layout import Lane
from tests.crash.accounts import read_store
from tests.faults.bench import SEGMENT_BYTES, Bench
from tests.faults.channel import Rule


class Build(Protocol):
    """Makes a bench at a path; settings are sections of the configuration."""

    def __call__(self, path: Path, **settings: Any) -> AbstractContextManager[Bench]: ...


def send(producer: commitlog.Producer, count: int, size: int = 1000) -> list[bytes]:
    """Sends numbered bodies of that size; returns them."""
    bodies = [b"%08d" % number + bytes([number % 251 + 1]) * (size - 8) for number in range(count)]
    for body in bodies:
        producer.send("t", body)
    return bodies


def flushed_is_durable(build: Build, path: Path) -> None:
    """At every step what is acknowledged as flushed is what a power cut would leave."""
    with build(path) as bench:
        producer = bench.producer()
        sent = []
        for _ in range(3):
            sent += send(producer, 40)
            for stage in ("allocator", "flusher", "committer", "flusher", "committer", "flusher", "dispatcher"):
                bench.turn(stage)
                bench.durable_bodies()
        bench.settle()
        assert bench.durable_bodies() == sent


def a_failed_sync_is_repaired(build: Build, path: Path) -> None:
    """The pages of a failed sync are lost, and the next sync succeeds.

    `flushed` waits until they were written again.
    """
    with build(path) as bench:
        producer = bench.producer()
        sent = send(producer, 30)
        bench.settle()
        bench.faults.set(Rule("fdatasync", error=errno.EIO, times=2))
        sent += send(producer, 60)  # across a segment's end
        for _ in range(30):
            bench.turn()
            bench.durable_bodies()
            bench.clock.step(0.2)
        bench.settle()
        assert bench.faults.hits() > 2
        assert bench.durable_bodies() == sent


def a_new_flusher_trusts_nothing(build: Build, path: Path) -> None:
    """A sync fails, and its flusher is killed before it could report that.

    The first sync of the next flusher succeeds.
    """
    with build(path) as bench:
        producer = bench.producer()
        sent = send(producer, 30)
        bench.turn("allocator", "flusher", "committer")
        bench.faults.set(Rule("fdatasync", error=errno.EIO, times=1))
        wanted = bench.lane(Lane.REWRITE_WANTED)
        bench.turn("flusher")
        assert bench.faults.hits() == 1
        bench.control.row(0)[Lane.REWRITE_WANTED] = wanted  # killed before this store
        bench.crash("flusher")
        bench.faults.clear()
        bench.start("flusher")
        bench.settle()
        assert bench.durable_bodies() == sent


def buffers_return_when_flushed(build: Build, path: Path) -> None:
    """With three slots full of unsynced committed bytes there is no buffer for a fourth segment.

    What a failed sync loses then is still in them.
    """
    with build(path, producer={"buffer_wait_ms": 30}) as bench:
        producer = bench.producer()
        sent = send(producer, 1)
        for _ in range(3):
            bench.turn("allocator", "allocator", "allocator", "flusher", "committer")
        bench.faults.set(Rule("fdatasync", error=errno.EIO))
        with contextlib.suppress(NoBufferAvailable, DiskError):
            for _ in range(6):
                sent += send(producer, 40)
                bench.turn("allocator", "committer")
            raise AssertionError("six segments were accepted into three buffers, none of them flushed")
        bench.faults.clear()
        bench.settle()
        bodies = bench.durable_bodies()
        assert bodies[: len(sent)] == sent


def short_writes_are_continued(build: Build, path: Path) -> None:
    """A pwrite that writes 700 bytes of its data is followed by the rest."""
    with build(path) as bench:
        bench.faults.set(Rule("pwrite", short=700))
        sent = send(bench.producer(), 20)
        bench.settle()
        assert bench.faults.hits() > 20
        assert bench.durable_bodies() == sent


def committed_is_in_the_file(build: Build, path: Path) -> None:
    """While pwrite fails nothing is committed; later everything is."""
    with build(path) as bench:
        bench.faults.set(Rule("pwrite", error=errno.ENOSPC))
        sent = send(bench.producer(), 20)
        for _ in range(3):
            bench.turn()
            bench.clock.step(1)
        assert bench.faults.hits() >= 3
        assert bench.lane(Lane.COMMITTED) == 0, "committed what could not be written"
        assert bench.lane(Lane.COMMITTER_FAULT) == errno.ENOSPC, "nobody was told"
        bench.faults.clear()
        bench.settle()
        assert bench.lane(Lane.COMMITTER_FAULT) == 0
        assert bench.durable_bodies() == sent


def one_of_each_stage(build: Build, path: Path) -> None:
    """The lock refuses a second committer or flusher, whatever else is true."""
    with build(path) as bench:
        for name in ("committer", "flusher", "dispatcher", "allocator"):
            first = bench.stages[name]
            try:
                second = bench.start(name)
            except StageFailed:
                continue
            second.let_go()
            bench.stages[name] = first
            raise AssertionError(f"two of {name} work on one store")


def one_writer_of_each_lane(build: Build, path: Path) -> None:
    """Two producers have two lanes."""
    with build(path) as bench:
        lanes = [bench.producer().lane, bench.producer().lane]
        assert lanes == [0, 1], f"two writers have the lanes {lanes}"


def names_are_durable_before_use(build: Build, path: Path) -> None:
    """A new segment's name is synced, after its rename, before the committer is told of it."""
    with build(path) as bench:
        bench.producer()
        bench.faults.set(Rule("sync_directory", where="/commitlog/", error=errno.EIO))
        bench.turn("allocator")
        assert bench.faults.hits() >= 1, "the directory was never synced"
        assert bench.lane(Lane.ALLOCATED) == 0


def segments_are_open_first(build: Build, path: Path) -> None:
    """The flusher holds a descriptor of a segment before anything is written to it.

    Otherwise it could miss an error.
    """
    with build(path) as bench:
        sent = send(bench.producer(), 10)
        bench.turn("allocator")
        bench.turn("committer")
        assert bench.lane(Lane.COMMITTED) == 0, "committed before the flusher had the segment open"
        bench.settle()
        assert bench.durable_bodies() == sent


def a_stop_drains(build: Build, path: Path) -> None:
    """Everything accepted before the stop is in the files, and nothing but zeros after it."""
    with build(path) as bench:
        sent = send(bench.producer(), 150)
        bench.turn("allocator", "allocator", "allocator", "flusher")
        report = bench.stop()
        assert report.drained, report.kept
    assert read_store(path).messages == len(sent)


def published_bytes_are_there(build: Build, path: Path) -> None:
    """When `wrote` moves, a committer that looks at once finds whole records below it."""
    with build(path) as bench:
        producer = bench.producer()
        bench.turn("allocator", "flusher")
        for _ in range(5):
            send(producer, 1)
            bench.turn("committer", "flusher")
            bench.durable_bodies()


def a_blank_ends_what_is_committed(build: Build, path: Path) -> None:
    """After a BLANK the file is zero, also where the slot holds an older segment's bytes."""
    with build(path) as bench:
        producer = bench.producer()
        for number in range(16):
            send(producer, 6, 9_000 + 1_700 * (number % 5))
            bench.settle()
        assert bench.lane(Lane.FLUSHED) > 6 * SEGMENT_BYTES
        directory = bench.supervisor.directory.lane_directory(0)
        for start in range(0, bench.lane(Lane.FLUSHED) - SEGMENT_BYTES, SEGMENT_BYTES):
            data = directory.segment_path(start).read_bytes()
            table = scan(data, 0, len(data), start, 0, check_crc=True)
            assert table.stop is Stop.BLANK
            assert not any(data[table.stop_position + BLANK_BYTES :]), f"segment {start} does not end in zeros"


def _assert_dispatched(bench: Bench, count: int) -> None:
    queue = ConsumeQueue(bench.supervisor.directory.lane_directory(0).queue_path("t"), file_bytes=20_000, channel=DISK)
    sizes = queue.entries(0, count)["size"]
    queue.close()
    assert len(sizes) == count
    assert sizes.all(), f"entry {int(sizes.argmin())} of {count} is empty"


def every_record_is_placed(build: Build, path: Path) -> None:
    """A consume queue without space stops dispatch and nothing else; later no entry is missing."""
    with build(path) as bench:
        producer = bench.producer()
        bench.faults.set(Rule("pwrite", where="/consumequeue/", error=errno.ENOSPC))
        sent = send(producer, 30)
        for _ in range(5):
            bench.turn()
        assert bench.lane(Lane.FLUSHED) == bench.lane(Lane.WROTE)
        assert bench.lane(Lane.DISPATCHED) == 0, "dispatched what could not be placed"
        assert bench.lane(Lane.DISPATCHER_FAULT) == errno.ENOSPC, "nobody was told"
        bench.faults.clear()
        sent += send(producer, 10)
        bench.settle()
        _assert_dispatched(bench, len(sent))


def lost_entries_are_placed_again(build: Build, path: Path) -> None:
    """The failed sync of a consume queue loses entries.

    They are placed again before `dispatch_synced` moves.
    """
    with build(path) as bench:
        sent = send(bench.producer(), 30)
        bench.settle()
        bench.faults.set(Rule("fdatasync", where="/consumequeue/", error=errno.EIO, times=1))
        bench.clock.step(2)
        bench.stages["dispatcher"].on_wait_end()
        assert bench.faults.hits() == 1
        bench.settle()
        bench.clock.step(2)
        bench.stages["dispatcher"].on_wait_end()
        assert bench.lane(Lane.DISPATCH_SYNCED) == bench.lane(Lane.FLUSHED)
        _assert_dispatched(bench, len(sent))


def positions_say_what_is_durable(build: Build, path: Path) -> None:
    """`positions` never runs ahead of `flushed` or of what was synced of the consume queues."""
    with build(path) as bench:
        producer = bench.producer()
        send(producer, 30)
        bench.settle()
        send(producer, 30)
        bench.turn("allocator", "flusher", "committer")
        bench.clock.step(2)
        bench.stages["flusher"].on_wait_end()
        positions = PositionsFile(bench.supervisor.directory.lane_directory(0), "", DISK).load()
        assert positions is not None
        assert bench.lane(Lane.COMMITTED) > bench.lane(Lane.FLUSHED)
        assert positions.flushed_where <= bench.lane(Lane.FLUSHED), "says flushed of what is only committed"
        assert positions.dispatched_where <= bench.lane(Lane.DISPATCH_SYNCED), "says dispatched of what was not synced"


def news_before_a_sleep_is_seen(build: Build, path: Path) -> None:
    """Messages that come between the round and the sleep word keep a stage from sleeping.

    The producer did not ring for them.
    """
    with build(path) as bench:
        producer = bench.producer()
        for name in ("committer", "flusher"):
            stage = bench.stages[name]
            slept: list[int] = []
            stage._poll = slept.append
            seen = stage.news()
            send(producer, 3)
            bench.turn("allocator", "flusher", "committer")
            stage.wait_for_running(60_000, seen)
            del stage._poll
            assert max(slept, default=0) < 1000, f"the {name} slept through the news"


def a_pool_that_differs_is_not_adopted(build: Build, path: Path) -> None:
    """Something else wrote to a segment above `flushed`: the buffer is not written over it."""
    with build(path) as bench:
        send(bench.producer(), 20)
        bench.turn("allocator", "flusher", "committer")
        bench.abandon()
        segment = bench.supervisor.directory.lane_directory(0).segment_path(0)
        segment.write_bytes(b"somebody else's".ljust(SEGMENT_BYTES, b"\0"))
        try:
            again = Bench(path)
        except PoolNotAdopted:
            return
        again.abandon()
        raise AssertionError("a pool was adopted that differs from the file")


def a_stop_leaves_nothing_unpublished(build: Build, path: Path) -> None:
    """What a killed direct writer had not published is in no file after the stop.

    The next start would take it in.
    """
    with build(path, store={"write_path": "direct"}) as bench:
        producer = bench.producer()
        bench.turn("allocator", "flusher")
        send(producer, 3)
        end = bench.lane(Lane.WROTE)
        segment = bench.supervisor.directory.lane_directory(0).segment_path(0)
        with segment.open("r+b") as file:
            record = file.read(end)[-1000:]
            file.write(record * 9)
        bench.settle()
        assert bench.stop().drained
    assert read_store(path).messages == 3, "what was never accepted is there"
    assert not any(segment.read_bytes()[end:]), "unpublished bytes are left"


def a_retired_segment_stays_until_positions_say_so(build: Build, path: Path) -> None:
    """A start after the loss of the pool misses no file that `positions` names."""
    with build(path, retention={"max_bytes": 3 * SEGMENT_BYTES}) as bench:
        producer = bench.producer()
        for _ in range(5):
            send(producer, 60)
            bench.settle()
        for stage in ("dispatcher", "flusher"):
            bench.stages[stage].on_wait_end()
        recorded = PositionsFile(bench.supervisor.directory.lane_directory(0), "", DISK).load()
        bench.stages["allocator"].on_wait_end()
        assert bench.lane(Lane.FIRST) > 0
        first = recorded.first_where if recorded else 0
        path = bench.supervisor.directory.lane_directory(0).segment_path(first)
        assert path.exists(), "a file is gone that positions know of"


CHECKS = [
    a_stop_leaves_nothing_unpublished,
    a_retired_segment_stays_until_positions_say_so,
    a_pool_that_differs_is_not_adopted,
    flushed_is_durable,
    a_failed_sync_is_repaired,
    a_new_flusher_trusts_nothing,
    buffers_return_when_flushed,
    short_writes_are_continued,
    committed_is_in_the_file,
    one_of_each_stage,
    one_writer_of_each_lane,
    names_are_durable_before_use,
    segments_are_open_first,
    a_stop_drains,
    published_bytes_are_there,
    a_blank_ends_what_is_committed,
    every_record_is_placed,
    lost_entries_are_placed_again,
    positions_say_what_is_durable,
    news_before_a_sleep_is_seen,
]

"""Retention deletes between any two looks at the files: a reader that merely raced it looks again.

The stages live in the test's process, so a deletion happens exactly before the nth call that
touches a lane's files. Nobody ever gets a bare OSError, a warning that blames the consume queues,
or less than what is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import DataLoss
from commitlog.inspecting.dump import dump_records
from commitlog.inspecting.verify import verify_store
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Lane
from tests.faults.bench import SEGMENT_BYTES, Bench, bench
from tests.nightly import with_nightly

KEPT = 4
BATCH = 500


class Log:
    """A store of one lane whose old segments are deleted when told.

    `sent` has every body; `where` has the place in the log where each begins.
    """

    def __init__(self, made: Bench) -> None:
        self.bench, self.path = made, made.path
        self.producer = made.producer()
        self.lags = False
        """Whether what it has grown by is not in the consume queues until the deletion comes."""
        self.acts = False
        """While it deletes: a stage does one thing at a time."""
        self.sent: list[bytes] = []
        self.where: list[int] = []

    def grow(self) -> None:
        """Five more segments, flushed, and indexed unless the log lags; nothing is deleted."""
        until = self.bench.lane(Lane.WROTE) + 5 * SEGMENT_BYTES
        while self.bench.lane(Lane.WROTE) < until:
            bodies = [b"%08d" % (len(self.sent) + number) for number in range(BATCH)]
            self.bench.turn("allocator", "flusher", "committer", "flusher")
            begin = self.producer.send_batch("orders", bodies).physical_offset
            size = (self.bench.lane(Lane.WROTE) - begin) // BATCH
            self.where += range(begin, begin + size * BATCH, size)
            self.sent += bodies
        while self.bench.stages["flusher"].left():
            self.bench.turn("allocator", "flusher", "committer", "flusher")
            self.bench.clock.step(1)
        if not self.lags:
            self.index()

    def index(self) -> None:
        """Lets the dispatcher come to the end of the log."""
        self.bench.settle()
        self.bench.clock.step(1)
        self.bench.stages["dispatcher"].on_wait_end()

    def delete(self) -> None:
        """Lets the stages work until no more than KEPT segments are left."""
        self.acts = True
        if self.lags:
            self.index()
        while not self._is_small():
            self.bench.clock.step(1)
            for name in ("flusher", "allocator", "flusher", "allocator"):
                self.bench.stages[name].on_wait_end()
        self.acts = False

    def _is_small(self) -> bool:
        return len(list((self.path / "lanes/0/commitlog").iterdir())) <= KEPT

    def kept(self) -> int:
        """The queue offset of the first message that is not deleted."""
        first = self.bench.lane(Lane.FIRST)
        return next(number for number, where in enumerate(self.where) if where >= first)


class Plain(FileChannel):
    """The system's files; a bench has to know which descriptors a killed stage had."""

    def __init__(self, *_who: object) -> None:
        self._paths: dict[int, str] = {}

    def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        fd = super().open(path, write=write, create=create, exclusive=exclusive)
        self._paths[fd] = str(path)
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)


@contextmanager
def log_at(path: Path, channel: type[Plain] = Plain) -> Iterator[Log]:
    """A log of which KEPT segments are kept."""
    with bench(
        path,
        channel=channel,
        retention={"max_bytes": KEPT * SEGMENT_BYTES, "interval_ms": 10},
        flusher={"positions_interval_ms": 10},
        allocator={"segments_ahead": 1},
    ) as made:
        log = Log(made)
        yield log
        del log.producer  # pytest keeps the log longer, and a producer keeps its pool mapped


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with log_at(tmp_path / "store") as made:
        yield made


@contextmanager
def before_call(number: int, log: Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Deletes just before the nth list or open of anything in a lane; the list then says so."""
    lanes = str(log.path / "lanes")
    real_open, real_list = FileChannel.open, FileChannel.list
    left, struck = [number], [0]

    def strike(path: str | Path) -> None:
        if struck[0] or log.acts or not str(path).startswith(lanes):
            return
        if left[0]:
            left[0] -= 1
            return
        struck[0] = 1
        log.delete()

    def racing_open(self: FileChannel, path: str | Path, **how: bool) -> int:
        strike(path)
        return real_open(self, path, **how)

    def racing_list(self: FileChannel, path: str | Path) -> list[str]:
        strike(path)
        return real_list(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(FileChannel, "open", racing_open)
        patch.setattr(FileChannel, "list", racing_list)
        yield struck


def at_every_call(log: Log, look: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """Takes a look once for each of its calls, with a deletion before another call each time.

    Returns the number of calls.
    """
    number = 0
    while True:
        log.grow()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with before_call(number, log, monkeypatch) as struck:
                look()
        if not struck[0]:
            return number
        log.delete()
        number += 1


@pytest.mark.parametrize(("topic", "lags"), with_nightly([("orders", True)], [(None, False), ("orders", False)]))
def test_a_reader_gets_what_is_kept_or_dataloss(
    log: Log, topic: str | None, lags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DataLoss comes only where it had begun to read what is gone.

    All that it gave out was in order and without a gap.
    """
    log.lags = lags

    def look() -> None:
        found: list[commitlog.Message] = []
        lost = False
        with commitlog.Reader(log.path, topic=topic) as reader:
            try:
                found.extend(reader)
            except DataLoss:
                lost = True
        offsets = [message.offset for message in found]
        assert [message.value for message in found] == [log.sent[offset] for offset in offsets]
        if not lost:
            assert offsets == list(range(offsets[0], len(log.sent)))
            assert offsets[0] <= log.kept()

    assert at_every_call(log, look, monkeypatch) > 5


@pytest.mark.nightly
def test_a_reader_that_starts_at_a_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the time meets files that are being deleted."""

    def look() -> None:
        with commitlog.Reader(log.path, topic="orders", start="1970-01-02T00:00:00+00:00") as reader:
            try:
                first = next(reader)
            except DataLoss:
                return
        assert first.value == log.sent[first.offset]
        assert first.offset <= log.kept()

    assert at_every_call(log, look, monkeypatch) > 5


@pytest.mark.nightly
@pytest.mark.parametrize("lags", with_nightly([True], [False]))
def test_an_index_that_follows(log: Log, lags: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never distrusts a consume queue because retention was quicker.

    Afterwards it knows what a new index knows.
    """
    log.lags = lags
    view = StoreView(log.path)
    try:
        following = TopicIndex(view)

        def look() -> None:
            following.refresh()
            log.delete()
            following.refresh()
            fresh = TopicIndex(view)
            fresh.refresh()
            for index in (following, fresh):
                known = index.ranges("orders")[0]
                assert (known.first, known.end) == (log.kept(), len(log.sent))

        assert at_every_call(log, look, monkeypatch) > 5
    finally:
        view.close()


def test_a_new_producer_goes_on_at_the_next_offset(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the lane's end from the log, and each topic's end from its consume queue."""

    def look() -> None:
        log.producer.close()
        log.producer = log.bench.producer()
        receipt = log.producer.send("orders", b"%08d" % len(log.sent))
        assert receipt.offset == len(log.sent)
        log.sent.append(b"%08d" % len(log.sent))
        log.where.append(receipt.physical_offset)

    assert at_every_call(log, look, monkeypatch) > 2


def test_the_dispatcher_goes_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look of a new dispatcher at a queue meets a deletion; it heals within a round."""

    def look() -> None:
        log.bench.crash("dispatcher")
        dispatcher = log.bench.start("dispatcher")
        log.producer.send("orders", b"%08d" % len(log.sent))
        log.where.append(log.bench.lane(Lane.WROTE))
        log.sent.append(b"%08d" % len(log.sent))
        log.bench.turn("allocator", "flusher", "committer", "flusher")
        log.bench.clock.step(1)
        log.bench.turn("allocator", "flusher", "committer", "flusher")
        dispatcher.work()
        dispatcher.work()
        assert log.bench.lane(Lane.DISPATCHED) == log.bench.lane(Lane.WROTE)
        assert log.bench.lane(Lane.DISPATCHER_FAULT) == 0

    assert at_every_call(log, look, monkeypatch) > 1


@pytest.mark.nightly
def test_verify_and_dump(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reported as wrong, and what is kept is shown."""

    def verified() -> None:
        report = verify_store(log.path)
        assert report.good, report

    def dumped() -> None:
        offsets = [record["queueOffset"] for record in dump_records(log.path)]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == len(log.sent) - 1
        assert set(range(log.kept(), len(log.sent))) <= set(offsets)

    assert at_every_call(log, verified, monkeypatch) > 5
    assert at_every_call(log, dumped, monkeypatch) > 5

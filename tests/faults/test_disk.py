"""A disk that refuses, in real processes.

Each fault has a name within a second, loses nothing, and heals by itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import DISK
from commitlog.inspecting.verify import verify_store
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Lane
from commitlog.status import PutMessageStatus
from tests.crash.accounts import Place, check, read_store
from tests.faults.channel import NAMES, FaultsDirectory, Rule
from tests.faults.disk import durable_bodies
from tests.faults.supervisor import OWN_DISK, patched_stages
from tests.nightly import with_nightly
from tests.waiting import wait_until

SEGMENT_BYTES = 1 << 16
CONFIG: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": SEGMENT_BYTES, "max_lanes": 3},
    "dispatcher": {"queue_file_entries": 1000, "interval_ms": 100},
    "flusher": {"positions_interval_ms": 100},
    "allocator": {"interval_ms": 200},
    "supervisor": {"restarts_max": 1000, "restarts_window_ms": 1000, "start_wait_ms": 60_000},
}


@dataclass
class Sender:
    """A producer on a store with a faulty disk, and what it was told.

    `noted` are the accepted messages, `sent` their bodies.
    """

    store: commitlog.Store
    producer: commitlog.Producer
    faults: FaultsDirectory
    noted: list[Place] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)

    def send(self, size: int = 1000) -> commitlog.Receipt:
        body = b"%08d" % len(self.sent) + os.urandom(size)
        receipt = self.producer.send("t", body)
        self.sent.append(body)
        self.noted.append((receipt.partition, "t", receipt.offset, receipt.physical_offset, zlib.crc32(body)))
        return receipt

    def is_told(self, name: str, receipt: commitlog.Receipt) -> None:
        """A caller that waits gets the name of the fault instead of a timeout.

        Nothing counts as flushed that is not durable.
        """

        def told() -> str:
            with pytest.raises(errors.DiskError) as raised:
                receipt.wait("flushed", timeout=60)
            return type(raised.value).__name__

        # the flusher says first what the disk has said, and then the committer what is lost
        wait_until(lambda: told() == name, f"{name} is told")
        with pytest.raises(getattr(errors, name)):
            self.producer.flush(timeout=60)
        assert not receipt.done("flushed")
        self.looks_durable()

    def fill(self) -> tuple[commitlog.Receipt, errors.CommitLogError]:
        """Sends until it is refused, before the wait for a buffer is over: last receipt, error."""
        receipt = self.send()
        while True:
            try:
                receipt = self.send(2000)
            except errors.CommitLogError as error:
                assert self.store.statistics().lanes[0].buffer_timeouts == 0
                return receipt, error

    def heals(self, receipt: commitlog.Receipt) -> None:
        self.faults.clear()
        with contextlib.suppress(errors.DiskError, errors.WaitTimeout):  # the fault stays posted until the next try
            receipt.wait("flushed", timeout=1)
        wait_until(lambda: receipt.done("flushed"), "the lane to heal")
        self.looks_durable()

    def looks_durable(self) -> None:
        with contextlib.closing(StoreView(self.store.path)) as view:
            bodies = durable_bodies(
                view.directory, self.faults, self.producer.lane, view.limits(self.producer.lane).flushed
            )
        assert bodies == self.sent[: len(bodies)]


@contextlib.contextmanager
def faulty_store(path: Path, write_path: str = "pool", **more: dict[str, Any]) -> Iterator[Sender]:
    faults = FaultsDirectory(path)
    config = {name: {**CONFIG.get(name, {}), **more.get(name, {})} for name in {*CONFIG, *more}}
    config["store"] = {**config["store"], "write_path": write_path}
    with patched_stages():
        store = commitlog.Store.open(path, config)
        sender = Sender(store, store.producer(), faults)
        try:
            yield sender
        finally:
            faults.clear()
            sender.store.close()


def refusals(write_path: str) -> Iterator[tuple[str, Rule]]:
    """The calls that may be refused, and the error that each has to give."""
    for code, name in NAMES.items():
        if write_path == "pool":
            yield name, Rule("pwrite", error=code, stage="committer")
        yield name, Rule("fdatasync", error=code, keeps=write_path == "direct")


@pytest.mark.parametrize("write_path", with_nightly(["pool"], ["direct"]))
def test_a_disk_that_refuses_to_write_or_to_sync(write_path: str, tmp_path: Path) -> None:
    """EIO, ENOSPC, EDQUOT, one after the other, on one store that is never restarted."""
    with faulty_store(tmp_path / "store", write_path) as sender:
        sender.heals(sender.send())
        for name, rule in refusals(write_path):
            sender.faults.set(rule)
            receipt = sender.send(3000)
            sender.is_told(name, receipt)
            sender.heals(receipt)
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


def test_a_sender_that_fills_all_buffers_hears_why(tmp_path: Path) -> None:
    """It gets the disk's error, long before the wait for a buffer is over."""
    with faulty_store(tmp_path / "store", producer={"buffer_wait_ms": 60_000}) as sender:
        sender.heals(sender.send())
        for rule, name in (
            (Rule("fdatasync", error=errno.EIO), "DiskInputOutput"),
            (Rule("pwrite", error=errno.ENOSPC, stage="committer"), "DiskFull"),
            (Rule("allocate", where="/tmp/", error=errno.ENOSPC), "DiskFull"),
            (Rule("allocate", where="/tmp/", error=errno.EIO), "DiskInputOutput"),
        ):
            sender.faults.set(rule)
            last, error = sender.fill()
            assert type(error).__name__ == name
            assert error.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            sender.heals(last)
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.nightly
def test_the_successor_of_a_flusher_killed_by_its_failed_sync_says_so(tmp_path: Path) -> None:
    """A flusher died of its failed sync before it could tell, and the disk still fails.

    Its successor tells within the same second.
    """
    with faulty_store(tmp_path / "store") as sender:
        sender.heals(sender.send())
        for _ in range(3):
            sender.faults.set(
                Rule("fdatasync", error=errno.EIO, dies="after", times=1, name="kills"),
                Rule("fdatasync", error=errno.EIO),
            )
            receipt = sender.send(3000)
            sender.is_told("DiskInputOutput", receipt)
            assert sender.faults.hits("kills") > 1
            sender.heals(receipt)
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.nightly
def test_short_writes_and_lost_flushers_cost_nothing_but_time(tmp_path: Path) -> None:
    """pwrite writes a little; syncs fail once and lose the pages; failed syncs kill flushers."""
    with faulty_store(tmp_path / "store") as sender:
        for rule in (
            Rule("pwrite", short=300),
            Rule("fdatasync", error=errno.EIO, times=1),
            Rule("fdatasync", error=errno.EIO, dies="after", times=1),
            Rule("fdatasync", error=errno.EIO, dies="after", times=3),
            Rule("pwrite", error=errno.EIO, dies="after", times=1, stage="committer"),
        ):
            sender.faults.set(rule)
            receipts = [sender.send(3000) for _ in range(10)]
            wait_until(lambda rule=rule: sender.faults.hits() > rule.times, f"{rule} to strike")  # type: ignore[misc]
            sender.looks_durable()
            wait_until(lambda last=receipts[-1]: last.done("flushed"), "the rest")  # type: ignore[misc]
            sender.looks_durable()
            assert receipts[-1].wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.nightly
def test_consume_queues_and_positions_that_fail_stop_nobody_else(tmp_path: Path) -> None:
    """Messages are flushed as ever; the index and the positions follow when they can."""
    with faulty_store(tmp_path / "store") as sender:
        sender.heals(sender.send())
        row = sender.producer._lease.row

        def caught_up() -> bool:
            return row[Lane.DISPATCH_SYNCED] == row[Lane.FLUSHED]

        for rule in (
            Rule("pwrite", where="/consumequeue/", error=errno.ENOSPC),
            Rule("pwrite", where="/consumequeue/", error=errno.EIO),
            Rule("fdatasync", where="/consumequeue/", error=errno.EIO),
            Rule("fdatasync", where="/consumequeue/", error=errno.EIO, dies="after", times=1),
            Rule("pwrite", where="/positions/", error=errno.ENOSPC),
            Rule("fdatasync", where="/positions/", error=errno.EIO),
        ):
            sender.faults.set(rule)
            assert sender.send().wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
            wait_until(sender.faults.hits, f"{rule} to strike")
            assert sender.send().wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
            sender.faults.clear()
            wait_until(caught_up, f"the dispatcher to recover from {rule}")
        with commitlog.Reader(sender.store.path, start=0) as reader:
            assert [message.value for message in reader] == sender.sent
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_direct_writer_hears_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own pwrite fails: nothing was appended, and the next send takes the same offset.

    What a failed sync really lost can't be written again from anywhere. The lane stops with an
    error, and other lanes go on.
    """
    with faulty_store(tmp_path / "store", "direct") as sender:
        sender.heals(sender.send())
        for code, name in NAMES.items():

            def refuse(fd: int, data: Any, offset: int, code: int = code) -> int:
                raise OSError(code, os.strerror(code))

            with monkeypatch.context() as patch:
                patch.setattr(DISK, "write_once", refuse)
                with pytest.raises(getattr(errors, name), match="not accepted"):
                    sender.send()
        assert sender.send().offset == 1
        other = sender.store.producer()
        sender.heals(sender.send())
        sender.faults.set(Rule("fdatasync", where="/0/commitlog/", error=errno.EIO, times=1))
        sender.is_told("LaneDamaged", sender.send(9000))
        assert other.send("t", b"").wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
        sender.faults.clear()
        assert not sender.store.close().drained


@pytest.mark.leaves_pools
def test_a_damaged_lane_is_passed_over_and_healed_by_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the failed sync lost is reported as lost.

    All messages around it are kept, and the lane is written to again.
    """
    path = tmp_path / "store"
    with faulty_store(path, "direct") as sender:
        kept = sender.send()
        sender.heals(kept)
        sender.faults.set(Rule("fdatasync", error=errno.EIO, times=1))
        unsafe = sender.send(9000)
        sender.is_told("LaneDamaged", unsafe)
        lost = sender.noted[-1]
        sender.send()
        with sender.store.producer() as other:
            assert other.lane == 1
            assert other.send("other", b"").wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
        sender.producer.close()
        (reason,) = sender.store.close().kept
        assert reason.startswith("lane 0: ")
        assert "no longer holds them" in reason
        sender.store = commitlog.Store.open(path, {**CONFIG, "store": {**CONFIG["store"], "write_path": "direct"}})
        assert "lane 0: messages that were accepted are lost" in caplog.text
        with sender.store.producer() as again:
            assert again.lane == 0
            assert again.send("t", b"and on").wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
        assert kept.done()
        assert not unsafe.done()
        with pytest.raises(errors.MessagesLost, match=r"lane 0: .* lost messages that it had accepted"):
            unsafe.wait(timeout=60)
        with commitlog.Reader(path, topic="t", start="earliest") as reader:
            assert next(reader).value == sender.sent[0]
            with pytest.raises(errors.CorruptRecord, match="nothing but zeros"):
                next(reader)
        with (
            pytest.warns(errors.ReadingWarning, match="nothing but zeros"),  # nobody knows what else was in these bytes
            commitlog.Reader(path, topic="t", start=lost[2] + 1, ignore_corrupt=True) as reader,
        ):
            assert [message.value for message in reader] == [sender.sent[2], b"and on"]
        with commitlog.Reader(path, topic="t", start=lost[2] + 2) as reader:
            assert [message.value for message in reader] == [b"and on"]
        assert sender.store.close().drained
    report = verify_store(path)
    assert [finding.offset for finding in report.lanes[0].findings] == [lost[3]]


@pytest.mark.nightly
def test_a_stop_says_what_is_left_of_a_lane_that_it_can_not_lock(tmp_path: Path) -> None:
    """A disk that fails altogether refuses the lane's lock, too.

    Nothing that is not flushed is called flushed.
    """
    path = tmp_path / "store"
    with faulty_store(path) as sender:
        sender.heals(sender.send())
        sender.faults.set(Rule("pwrite", error=errno.EIO, stage="committer"))
        receipt = sender.send(3000)
        sender.is_told("DiskInputOutput", receipt)
        sender.producer.close()
        lock = path / "lanes/0/lock"
        lock.unlink()
        lock.mkdir()
        (reason,) = sender.store.close().kept
        assert re.match(
            r"lane 0: \d{4} bytes are in the pool, not flushed yet, and its files can't be closed: ", reason
        )
        lock.rmdir()
        sender.faults.clear()
        sender.store = commitlog.Store.open(path)
    check(sender.noted, read_store(path), deaths=0)


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    with_nightly(
        [({"error": errno.ENOSPC}, errors.DiskFull, r"/store/store\.json: starting the store: ENOSPC")],
        [
            ({"error": errno.EROFS}, errors.StoreRefused, r"/store/store\.json: Read-only file system; check"),
            ({"dies": "after"}, errors.StageFailed, "ended before it was ready"),
        ],
    ),
    ids=["full", "read-only", "killed"],
)
def test_a_first_start_that_the_disk_refuses(
    rule: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    """The error says which store, and what to do.

    The half-made store is in nobody's way: the next start completes it.
    """
    FaultsDirectory(tmp_path / "store").set(Rule("pwrite", "store.json", stage="supervisor", **rule))
    with patched_stages(OWN_DISK), pytest.raises(error, match=words):
        commitlog.Store.open(tmp_path / "store", CONFIG)
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        assert producer.send("t", b"x").wait("flushed", 60) is PutMessageStatus.PUT_OK

"""Waiting for more than *accepted* gives PUT_OK or an error.

It is the same for `wait`, `flush`, `await` and `send`. Callbacks are tested too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.ingest.producer_loop import Item, Sender
from commitlog.shm.layout import Lane
from commitlog.status import AppendMessageStatus, PutMessageStatus
from tests.faults.bench import Bench, bench
from tests.faults.channel import Rule
from tests.waiting import wait_until

HASTY: dict[str, Any] = {"producer": {"sync_flush_timeout_ms": 1}}
SYNC: dict[str, Any] = {"store": {"flush_disk_type": "SYNC_FLUSH"}, **HASTY}


async def awaited(receipt: commitlog.Receipt) -> PutMessageStatus:
    return await receipt


def ways(producer: commitlog.Producer, receipt: commitlog.Receipt) -> dict[str, Callable[[], object]]:
    """Every way to wait without a limit."""
    return {"wait": receipt.wait, "flush": producer.flush, "await": lambda: asyncio.run(awaited(receipt))}


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("commitlog-lane")]


def test_a_wait_that_runs_out_is_an_error(tmp_path: Path) -> None:
    """With RocketMQ's name for it; the message stays in the log, and a later wait is answered."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt = producer.send("t", b"x")
        for wait in (receipt.wait, producer.flush):
            with pytest.raises(errors.WaitTimeout, match="stay in the log") as raised:
                wait(timeout=0.01)
            assert raised.value.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
            assert raised.value.append_status is AppendMessageStatus.PUT_OK
        with pytest.raises(errors.WaitTimeout, match="not committed"):
            receipt.wait("committed", 0)
        made.settle()
        assert receipt.wait(timeout=0) is PutMessageStatus.PUT_OK
        producer.flush(timeout=0)


@pytest.mark.parametrize("way", ["wait", "flush", "await"])
def test_without_a_limit_it_takes_as_long_as_it_takes(way: str, tmp_path: Path) -> None:
    """It may exceed RocketMQ's syncFlushTimeout, which counts only for `send` with SYNC_FLUSH."""
    with bench(tmp_path / "store", **HASTY) as made, ThreadPoolExecutor(1) as others:
        producer = made.producer()
        receipt = producer.send("t", b"x")
        answers: list[PutMessageStatus] = []
        receipt.add_callback(answers.append)
        hasty: list[PutMessageStatus] = []
        receipt.add_callback(hasty.append, timeout=0.02)
        waiting = others.submit(ways(producer, receipt)[way])
        wait_until(lambda: hasty, "the one with a limit")
        assert (hasty, answers, waiting.done()) == ([PutMessageStatus.FLUSH_DISK_TIMEOUT], [], False)
        made.settle()
        assert waiting.result() is (None if way == "flush" else PutMessageStatus.PUT_OK)
        wait_until(lambda: answers == [PutMessageStatus.PUT_OK], "the one without")
        wait_until(lambda: not watchers(), "the end of the thread that calls back")


def test_a_disk_that_refuses_is_the_same_error_for_everybody(tmp_path: Path) -> None:
    """Callbacks can't get the error: they go on waiting, and are called when the disk heals."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        made.faults.set(Rule("fdatasync", error=errno.EIO))
        receipt = producer.send("t", b"x")
        answers: list[PutMessageStatus] = []
        receipt.add_callback(answers.append)
        wait_until(lambda: made.turn() and made.lane(Lane.FLUSHER_FAULT), "the fault")
        for wait in ways(producer, receipt).values():
            with pytest.raises(errors.DiskInputOutput, match="EIO"):
                wait()
        assert not answers
        made.faults.clear()
        made.settle()
        wait_until(lambda: answers == [PutMessageStatus.PUT_OK], "the callback")


def test_a_cancelled_await_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a waiter nor the thread that would have answered it, while the disk stands still."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt = producer.send("t", b"x")

        async def impatient() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await receipt
                pytest.fail("nobody has flushed it")

        async def many() -> None:
            await asyncio.gather(*(impatient() for _ in range(5000)))

        asyncio.run(many())
        wait_until(lambda: not watchers(), "the end of the thread that calls back")
        waiters = producer._progress._waiters
        assert waiters.outstanding == 0
        receipt.add_callback(print, timeout=0)
        wait_until(lambda: not watchers(), "the end of the thread that calls back")
        queues: list[Any] = [*waiters._by_where.values(), waiters._by_deadline, waiters._of_faults, waiters._withdrawn]
        assert max(map(len, queues)) <= 1001
        made.settle()


def refused_in_send(made: Bench, send: Callable[[], commitlog.Receipt]) -> errors.CommitLogError:
    with pytest.raises(errors.CommitLogError) as raised:
        send()
    made.faults.clear()
    return raised.value


def test_a_thread_without_memory_goes_on_telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again: nobody else would call the callbacks."""
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        progress, answers, failures = producer._progress, list[PutMessageStatus](), [True, True]
        look = progress._take_lost

        def look_without_memory() -> Any:
            if failures:
                failures.pop()
                raise MemoryError
            return look()

        with monkeypatch.context() as patch:
            patch.setattr(progress, "_take_lost", look_without_memory)
            producer.send("t", b"x").add_callback(answers.append)
            wait_until(lambda: not failures, "it has looked without memory")
        made.settle()
        wait_until(lambda: answers == [PutMessageStatus.PUT_OK], "the callback is called")
        wait_until(lambda: not watchers())


def test_a_callback_without_a_thread_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is in the log, once; and the next callback is called."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt, answers = producer.send("t", b"x"), list[PutMessageStatus]()
        with monkeypatch.context() as patch:
            patch.setattr("_thread.start_new_thread", refuse)
            with pytest.raises(errors.NotEnoughThreads, match="can't start new thread"):
                receipt.add_callback(answers.append)
        made.settle()
        receipt.add_callback(answers.append)
        wait_until(lambda: answers == [PutMessageStatus.PUT_OK], "the second callback is called, and no other")
        assert producer.statistics().messages == 1
        wait_until(lambda: not watchers())


def test_what_send_raises_after_it_has_accepted_carries_the_receipt(tmp_path: Path) -> None:
    """With SYNC_FLUSH the stages are slow, or the disk refuses.

    The caller waits on with the receipt, and no message is doubled.
    """
    with bench(tmp_path / "store", **SYNC) as made:
        producer = made.producer()
        late = refused_in_send(made, lambda: producer.send("t", b"one"))
        batch = refused_in_send(made, lambda: producer.send_batch("t", [b"two", b"three"]))
        assert type(late) is type(batch) is errors.WaitTimeout
        assert late.receipt is not None
        assert batch.receipt is not None
        assert (late.receipt.offset, batch.receipt.offset) == (0, 1)
        assert late.receipt.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        refused = refused_in_send(made, lambda: producer.send("", b""))
        assert refused.receipt is None
        copy = pickle.loads(pickle.dumps(late))
        assert (type(copy), str(copy), copy.receipt) == (errors.WaitTimeout, str(late), None)
        made.settle()
        assert late.receipt.wait() is batch.receipt.wait() is PutMessageStatus.PUT_OK
        assert made.durable_bodies() == [b"one", b"two", b"three"]


def test_a_full_disk_in_a_synchronous_send_carries_the_receipt(tmp_path: Path) -> None:
    """The error is the disk's, and the message is there when it has healed."""
    with bench(tmp_path / "store", **(SYNC | {"producer": {"sync_flush_timeout_ms": 60_000}})) as made:
        producer = made.producer()
        made.faults.set(Rule("fdatasync", error=errno.ENOSPC))
        with ThreadPoolExecutor(1) as others:
            sending = others.submit(producer.send, "t", b"x")
            wait_until(lambda: made.turn() and made.lane(Lane.FLUSHER_FAULT), "the fault")
            with pytest.raises(errors.DiskFull) as raised:
                sending.result()
        assert raised.value.receipt is not None
        made.faults.clear()
        made.settle()
        assert raised.value.receipt.wait() is PutMessageStatus.PUT_OK
        assert made.durable_bodies() == [b"x"]


class _NoLink:
    """A job that only listens."""

    closed = False

    def send(self, _message: object) -> None:
        pass

    def receive(self, _timeout_s: float | None) -> list[object]:
        return []


def test_the_main_job_sends_nothing_twice(tmp_path: Path) -> None:
    """In a store with SYNC_FLUSH whose disk is slow: what is in the log counts as sent."""
    with bench(tmp_path / "store", **SYNC) as made:
        made.producer().close()
        store = str(tmp_path / "store")
        settings = {"topic": "t", "rate": 0, "run": "r", "producer": 0, "store": store, "skip_long": False}
        sender = Sender(_NoLink(), settings)  # type: ignore[arg-type]
        made.producers.append(sender.producer)
        assert sender._send([Item(None, b"one", {}), Item(None, b"two", {})]) == 2
        assert (sender.sequence, sender.waits) == (2, 0)
        made.settle()
        assert made.durable_bodies() == [b"one", b"two"]


def test_sync_flush_returns_when_flushed_and_times_out_by_name(tmp_path: Path) -> None:
    """With the flusher stopped it raises, and the error has the receipt.

    The message still becomes flushed later.
    """
    config: dict[str, Any] = {"store": {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH"}}
    patient, hasty = ({**config, "producer": {"sync_flush_timeout_ms": limit}} for limit in (60_000, 2000))
    with commitlog.Store.open(tmp_path / "store", patient) as store:
        receipt = store.producer().send("t", b"first")
        assert (receipt.done("flushed"), receipt.status) == (True, PutMessageStatus.PUT_OK)
    with commitlog.Store.open(tmp_path / "store", hasty) as store:
        producer = store.producer()
        flusher = int((store.path / "locks" / "flusher").read_text())
        os.kill(flusher, signal.SIGSTOP)
        with pytest.raises(errors.WaitTimeout) as second:
            producer.send("t", b"second")
        late = second.value.receipt
        assert late is not None
        assert late.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        unwaited = producer.send("t", b"third", wait=False)
        times = producer.statistics().put_times or {}
        assert sum(times[name] for name in ("<3s", "<4s", "<5s", "<10s", ">=10s")) == 1  # the second's
        with pytest.raises(errors.WaitTimeout, match="stay in the log"):
            producer.flush(timeout=0.05)
        os.kill(flusher, signal.SIGCONT)
        assert unwaited.wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
        assert late.wait().name == "PUT_OK"

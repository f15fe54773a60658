"""Waits: for a write buffer, refusals at once, and stages that are gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.appending import acknowledgements
from commitlog.appending.lease import Lease, try_lease
from commitlog.appending.wakeups import WakeupSender
from commitlog.shm import statistics
from commitlog.status import PutMessageStatus
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}}


def read(store: commitlog.Store) -> list[bytes]:
    with commitlog.Reader(store.path) as reader:
        return [message.value for message in reader]


async def awaited(receipt: commitlog.Receipt) -> PutMessageStatus:
    return await receipt


def send_until_refused(producer: commitlog.Producer, accepted: list[bytes]) -> None:
    while True:
        body = b"%d" % len(accepted) + bytes(1000)
        producer.send("t", body)
        accepted.append(body)


def test_back_pressure_may_be_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's fastFailIfNoBufferInStorePool: nobody waits, and each refusal is counted.

    Nothing of a refused message is in the log.
    """
    with commitlog.Store.open(tmp_path / "store", {**SMALL, "producer": {"buffer_wait_ms": 0}}) as store:
        producer = store.producer()
        committer = int((store.path / "locks" / "committer").read_text())
        os.kill(committer, signal.SIGSTOP)
        accepted: list[bytes] = []
        with pytest.raises(errors.NoBufferAvailable, match="in 0 ms"):
            send_until_refused(producer, accepted)
        with monkeypatch.context() as nobody:
            nobody.setattr(producer._attachment, "await_notice", pytest.fail)
            with pytest.raises(errors.NoBufferAvailable):
                producer.send("t", bytes(1000))
        assert producer.statistics().buffer_timeouts == 2
        os.kill(committer, signal.SIGCONT)
        producer.flush()
        producer.send("t", b"at last")
        producer.flush()
        assert read(store) == [*accepted, b"at last"]


def test_who_waits_for_stages_that_are_gone_is_told(tmp_path: Path) -> None:
    """All stages are killed at once, and nobody waits on.

    Callbacks get SERVICE_NOT_AVAILABLE; `wait`, `flush` and `await` raise.
    """
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    producer = commitlog.Producer(store.path)
    locks = (store.path / "lock", *(store.path / "locks").iterdir())
    pids = [int(text) for lock in locks if (text := lock.read_text())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    answers: list[PutMessageStatus] = []
    for number in range(100):
        producer.send("t", b"%d" % number).add_callback(answers.append)
    receipt = producer.send("t", b"")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(answers) == 100, "all callbacks")
    assert set(answers) == {PutMessageStatus.SERVICE_NOT_AVAILABLE}
    with pytest.raises(errors.StoreNotRunning):
        asyncio.run(awaited(receipt))
    for wait in (receipt.wait, producer.flush):
        with pytest.raises(errors.StoreNotRunning):
            wait()
    producer.close()
    with pytest.raises(errors.StageFailed):
        store.close()
    with commitlog.Store.open(store.path) as again:
        again.producer().flush()
        assert len(read(again)) == 101


def test_a_producer_that_comes_while_the_store_stops_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory goes then, and nobody has removed it under a running store."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)

    def close_and_lease(*places: Any) -> Lease | None:
        assert store.close().drained
        return try_lease(*places)

    monkeypatch.setattr("commitlog.appending.attachment.try_lease", close_and_lease)
    with pytest.raises(errors.StoreStopped):
        commitlog.Producer(store.path)


def test_stages_do_not_rest_while_a_producer_waits_for_a_buffer(tmp_path: Path) -> None:
    """They do not rest, however long they may.

    Small segments are filled quickly, and each would otherwise take a rest of both stages.
    """
    rest = {"linger_ms": 10_000}
    config = {**SMALL, "committer": rest, "flusher": rest, "producer": {"buffer_wait_ms": 60_000}}
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        for _ in range(1000):
            producer.send("t", bytes(1000))
        producer.flush()
        assert producer.statistics().buffer_waits
        assert producer.statistics().buffer_timeouts == 0


def test_a_signal_handler_may_wait_whatever_it_came_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while a bell is rung, and needs a socket that was not made yet."""
    rung = WakeupSender.hurry

    def hurry(bell: WakeupSender) -> None:
        rung(bell)
        if not told:
            signal.raise_signal(signal.SIGUSR1)

    def handle(*_: object) -> None:
        told.append("")
        told[0] = receipt.wait("flushed", 60).name

    def give_up(*_: object) -> None:
        raise TimeoutError("the handler waits for ever")

    def go_on() -> None:
        wait_until(lambda: producer._attachment._sockets._notices is not None, "the handler to listen")
        os.kill(flusher, signal.SIGCONT)

    told: list[str] = []
    before = signal.signal(signal.SIGUSR1, handle), signal.signal(signal.SIGALRM, give_up)
    try:
        with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
            flusher = int((store.path / "locks" / "flusher").read_text())
            os.kill(flusher, signal.SIGSTOP)
            receipt = producer.send("t", b"x")
            monkeypatch.setattr(WakeupSender, "hurry", hurry)
            going_on = threading.Thread(target=go_on, daemon=True)
            going_on.start()
            signal.alarm(60)
            try:
                assert receipt.wait("flushed", 60).name == "PUT_OK"
            finally:
                signal.alarm(0)
                os.kill(flusher, signal.SIGCONT)
            going_on.join()
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])
    assert told == ["PUT_OK"]


def test_a_signal_handler_may_send_while_a_send_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends by the same producer, with SYNC_FLUSH.

    By then the outer message is flushed, and its call is at its end.
    """
    counted = statistics.record_put_time
    sent: list[int] = []

    def count(*arguments: Any) -> None:
        if not sent:
            signal.raise_signal(signal.SIGUSR1)
        counted(*arguments)

    def handle(*_: object) -> None:
        sent.append(0)
        sent[0] = producer.send("t", b"inner").offset

    def give_up(*_: object) -> None:
        raise TimeoutError("the handler waits for ever")

    monkeypatch.setattr(acknowledgements, "record_put_time", count)
    before = signal.signal(signal.SIGUSR1, handle), signal.signal(signal.SIGALRM, give_up)
    try:
        config = {"store": {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH"}}
        with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
            signal.alarm(60)
            assert producer.send("t", b"outer").offset == 0
            signal.alarm(0)
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])
    assert sent == [1]

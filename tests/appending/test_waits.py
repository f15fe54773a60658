"""Waits: for a write buffer, refusals at once, and stages that are gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.appending import acknowledgements
from commitlog.appending.lease import Lease, try_lease
from commitlog.appending.wakeups import WakeupSender
from commitlog.native import core
from commitlog.reading.view import StoreView
from commitlog.shm import counters
from commitlog.status import PutMessageStatus
from tests.builders.killed import kill_store
from tests.crash.scene import halted_process, pid_of
from tests.nightly import with_nightly
from tests.waiting import PATIENCE_SECONDS, wait_until

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


def test_a_stage_that_hangs_is_named_to_who_waits_for_it(tmp_path: Path) -> None:
    """The disk is not blamed for it."""
    config = {**SMALL, "producer": {"buffer_wait_ms": 1100}, "supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        receipt = producer.send("t", b"x")
        receipt.wait()
        flusher = pid_of(store.path, "flusher")
        with halted_process(flusher):
            with pytest.raises(errors.NoBufferAvailable, match=rf"the flusher \(pid {flusher}\) has given no sign for"):
                send_until_refused(producer, [])
            with pytest.raises(errors.WaitTimeout, match=rf"the flusher \(pid {flusher}\) has given no sign for"):
                producer.flush(timeout=1.1)


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


@pytest.mark.leaves_pools
def test_who_waits_for_memory_that_is_gone_is_told(tmp_path: Path) -> None:
    """Everything was killed, shared memory removed, and the store started again without it."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    producer = commitlog.Producer(store.path)
    with closing(StoreView(store.path)) as view:
        pool = view.pool
    os.kill(int((store.path / "locks" / "committer").read_text()), signal.SIGSTOP)
    receipt = producer.send("t", b"lost")
    kill_store(store)
    producer.close()
    assert pool is not None
    shutil.rmtree(pool)
    gone = (errors.StoreNotRunning, errors.StoreStopped)  # the latter where a stage has seen the kill before its own
    with commitlog.Store.open(store.path), pytest.raises(gone):
        receipt.wait()


@pytest.mark.parametrize("way", with_nightly(["both"], ["callback", "thread"]))
def test_a_producer_closes_while_others_wait(tmp_path: Path, way: str) -> None:
    """The stages stand still, as on a disk that hangs. Who waits is told when they go on."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        producer = commitlog.Producer(store.path)
        flusher = int((store.path / "locks" / "flusher").read_text())
        os.kill(flusher, signal.SIGSTOP)
        receipt = producer.send("t", b"x")
        told: list[PutMessageStatus] = []
        if way != "thread":
            receipt.add_callback(told.append)
        waiting = threading.Thread(target=receipt.wait)
        if way != "callback":
            waiting.start()
        ending = threading.Thread(target=producer.close)
        ending.start()
        ending.join(PATIENCE_SECONDS)
        has_ended = not ending.is_alive()
        os.kill(flusher, signal.SIGCONT)
        ending.join()
        if way != "callback":
            waiting.join()
        if way != "thread":
            wait_until(lambda: told == [PutMessageStatus.PUT_OK], "the callback")
    assert has_ended


def ends_well(program: str, store: commitlog.Store) -> None:
    """Runs a program with the store's path as its argument. It has to end in time, with code 0."""
    command = [sys.executable, "-c", program, str(store.path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "work",
    with_nightly(
        ["while True: producer.send('t', bytes(1000))"],
        ["producer.send('t', b'x').wait()", "producer.send('t', b'x').add_callback(print)"],
    ),
)
@pytest.mark.parametrize("stands_still", with_nightly([False], [True]))
def test_a_program_ends_while_its_threads_send_and_wait(tmp_path: Path, work: str, stands_still: bool) -> None:
    """Nobody has closed the producer: it is closed before the interpreter is taken apart.

    The thread does not print that. Python ends with an abort if a daemon prints while it ends.
    """
    program = (
        "import contextlib, sys, threading, time, commitlog\n"
        "producer = commitlog.Producer(sys.argv[1])\n"
        "def work():\n"
        "    with contextlib.suppress(commitlog.errors.ProducerClosed):\n"
        f"        {work}\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.2)\n"
    )
    with (
        commitlog.Store.open(tmp_path / "store", {**SMALL, "producer": {"buffer_wait_ms": 100}}) as store,
        halted_process(pid_of(store.path, "flusher")) if stands_still else nullcontext(),
    ):
        ends_well(program, store)


def test_a_program_ends_while_a_thread_waits_for_its_put(tmp_path: Path) -> None:
    """Python ends the thread where it asks for the interpreter's lock, inside the native `send`."""
    program = (
        "import sys, threading, time, commitlog\n"
        "producer = commitlog.Producer(sys.argv[1])\n"
        "threading.Thread(target=lambda: producer.send('t', b'x'), daemon=True).start()\n"
        "while not producer.statistics().messages: time.sleep(0.001)\n"
    )
    config = {**SMALL, "store": {**SMALL["store"], "flush_disk_type": "SYNC_FLUSH"}}
    with commitlog.Store.open(tmp_path / "store", config) as store, halted_process(pid_of(store.path, "flusher")):
        ends_well(program, store)


@pytest.mark.skipif(core is None, reason="a send of Python's holds its lock for as long as the finalizer runs")
def test_a_program_ends_while_a_finalizer_runs_in_a_send(tmp_path: Path) -> None:
    """Up to Python 3.11 the allocation of a receipt may collect garbage."""
    program = (
        "import gc, sys, threading, time, commitlog\n"
        "producer = commitlog.Producer(sys.argv[1])\n"
        "producer.send('t', b'x')\n"
        "inside = threading.Event()\n"
        "class Garbage:\n"
        "    def __init__(self): self.cycle = self\n"
        "    def __del__(self):\n"
        "        inside.set()\n"
        "        while True: time.sleep(0.0001)\n"
        "def work():\n"
        "    gc.disable()\n"
        "    Garbage()\n"
        "    gc.set_threshold(1)\n"
        "    gc.enable()\n"
        "    while True: producer.send('t', b'x')\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "inside.wait()\n"
    )
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        ends_well(program, store)


def test_a_callback_that_ends_the_program_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit()` in a callback is logged. Those that come later are called."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        called = threading.Event()

        def leave(_: PutMessageStatus) -> None:
            called.set()
            sys.exit("enough")

        producer.send("t", b"1").add_callback(leave)
        assert called.wait(PATIENCE_SECONDS)
        told: list[PutMessageStatus] = []
        producer.send("t", b"2").add_callback(told.append)
        wait_until(lambda: told == [PutMessageStatus.PUT_OK], "the next callback")
        assert asyncio.run(awaited(producer.send("t", b"3"))) is PutMessageStatus.PUT_OK
    assert "a callback of an acknowledgement failed" in caplog.text
    caplog.clear()  # the frames of its traceback hold the producer


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


@pytest.mark.nightly
def test_a_producer_that_comes_when_its_lane_was_closed_leaves_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would take the store for one that was killed, and fear a loss.

    The other lane is held, so the stop does not take the pool away meanwhile.
    """
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    with commitlog.Producer(store.path) as holder:
        commitlog.Producer(store.path).close()

        def close_and_lease(*places: Any) -> Lease | None:
            assert not store.close().drained
            return try_lease(*places)

        monkeypatch.setattr("commitlog.appending.attachment.try_lease", close_and_lease)
        with pytest.raises(errors.StoreStopped):
            commitlog.Producer(store.path)
        assert {holder.statistics().lane} == {int(file.parent.name) for file in store.path.glob("lanes/*/abort")}
    monkeypatch.undo()
    commitlog.Store.open(store.path).close()  # takes its memory back


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
        if not_yet.acquire(blocking=False):  # a thread that makes a socket comes here, too
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
    not_yet = threading.Lock()
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
    counted = counters.record_put_time
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

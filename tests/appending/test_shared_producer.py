"""Many threads share one producer, and their calls come one after the other.

Only a call inside a call is an error.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest

import commitlog
from commitlog import errors
from commitlog.appending.thread_turns import Turns
from tests.children import in_child
from tests.waiting import wait_until

THREADS = 8
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["pool", pytest.param("direct", marks=pytest.mark.nightly)])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[commitlog.Store]:
    """A running store with small segments; nightly also one that is written directly.

    Callers take turns in the same way in both. Each test has a producer and a topic of its own.
    """
    settings = {
        "store": {"segment_bytes": 1 << 16, "write_path": request.param},
        "producer": {"buffer_wait_ms": 100_000, "segment_wait_ms": 100_000},
    }
    with commitlog.Store.open(tmp_path_factory.mktemp("shared") / "store", settings) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    """One that no other test sends to."""
    return f"t{next(_NUMBERS)}"


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Threads are switched, and garbage is collected, as often as can be."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


class Cycle:
    """Garbage that only the collector finds, and that lets another thread run when it is found."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


class Slow(bytearray):
    """A body that keeps its `send` inside until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside, self.may_go_on = threading.Event(), threading.Event()

    def __bytes__(self) -> bytes:
        self.is_inside.set()
        self.may_go_on.wait(100)
        return b"slow"


def in_threads(works: list[Callable[[], object]]) -> list[BaseException]:
    """Runs all at the same time to their ends; what they raised."""
    raised: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def check(store: commitlog.Store, topic: str, accepted: dict[str, list[tuple[int, bytes]]]) -> None:
    """What each thread had accepted is there once, where its receipt says, in the thread's order.

    No offset is missing.
    """
    with commitlog.Reader(store.path, topic=topic) as reader:
        found = [(message.offset, message.value) for message in reader]
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert Counter(value for _, value in found) == Counter(value for pairs in accepted.values() for _, value in pairs)
    for pairs in accepted.values():
        assert pairs == sorted(pairs)
        assert all(found[offset][1] == value for offset, value in pairs)


@pytest.mark.usefixtures("switching_often")
def test_threads_share_a_producer(store: commitlog.Store, topic: str) -> None:
    """Threads send single messages, batches and refused ones, over many segments.

    Every message is there once, and no thread is refused.
    """
    producer = commitlog.Producer(store.path)
    accepted: dict[str, list[tuple[int, bytes]]] = {f"{number}": [] for number in range(THREADS)}

    def work(name: str) -> None:
        dice, own = random.Random(name), accepted[name]
        for number in range(700):
            body = f"{name} {number} ".encode() + bytes(dice.randrange(300))
            Cycle()
            kind = dice.randrange(20)
            if kind == 0:
                with pytest.raises(errors.MessageTooLarge):
                    producer.send(topic, bytes(1 << 16))
            if kind == 1:
                bodies = [body + b"%d" % part for part in range(3)]
                receipt = producer.send_batch(topic, bodies)
                own += enumerate(bodies, receipt.offset)
            else:
                own.append((producer.send(topic, body).offset, body))
        producer.flush()

    assert not in_threads([partial(work, name) for name in accepted])
    assert all(len(pairs) >= 700 for pairs in accepted.values())
    check(store, topic, accepted)
    producer.close()


def test_who_comes_while_another_thread_is_inside_waits(store: commitlog.Store, topic: str) -> None:
    """As long as that takes, also to close it."""
    producer = commitlog.Producer(store.path)
    body = Slow()
    offsets: dict[str, int] = {}

    def send(name: str, body: bytes | bytearray) -> None:
        with contextlib.suppress(errors.ProducerClosed):  # the close may come before the second
            offsets[name] = producer.send(topic, body).offset

    first, second = (threading.Thread(target=send, args=each) for each in (("first", body), ("second", b"next")))
    first.start()
    assert body.is_inside.wait(100)
    second.start()
    closing = threading.Thread(target=producer.close)
    wait_until(lambda: is_waiting(second), "the second")
    closing.start()
    wait_until(lambda: is_waiting(closing), "the close")
    assert not offsets
    body.may_go_on.set()
    for thread in (first, second, closing):
        thread.join()
    assert offsets in ({"first": 0, "second": 1}, {"first": 0})
    with pytest.raises(errors.ProducerClosed):
        producer.send(topic, b"")


def is_waiting(thread: threading.Thread) -> bool:
    """Whether it looks for the token again and again."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not Turns.wait.__code__:
        frame = frame.f_back
    return frame is not None


def test_a_close_beside_senders_loses_nothing(store: commitlog.Store, topic: str) -> None:
    """A call after the close gets ProducerClosed, and what was accepted before is there.

    Two threads may close it.
    """
    producer = commitlog.Producer(store.path)
    accepted: dict[str, list[tuple[int, bytes]]] = {f"{number}": [] for number in range(4)}

    def work(name: str) -> None:
        for number in range(1_000_000):
            body = f"{name} {number}".encode()
            accepted[name].append((producer.send(topic, body).offset, body))

    def close() -> None:
        wait_until(lambda: all(len(pairs) > 50 for pairs in accepted.values()), "messages")
        producer.close()

    raised = in_threads([*(partial(work, name) for name in accepted), close, close])
    assert [type(error) for error in raised] == [errors.ProducerClosed] * 4
    with commitlog.Producer(store.path) as again:
        again.flush()
        assert again.send(topic, b"").offset == sum(map(len, accepted.values()))
        accepted["again"] = [(sum(map(len, accepted.values())), b"")]
        again.flush()
    check(store, topic, accepted)


class Interrupted(Exception):
    """Raised by a signal, at any place."""


@pytest.mark.usefixtures("switching_often")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it comes into others' callbacks, too
def test_interrupts_beside_other_threads_lose_and_double_nothing(store: commitlog.Store, topic: str) -> None:
    """The main thread is interrupted again and again.

    It and the others go on with the same producer.
    """
    producer = commitlog.Producer(store.path)
    accepted: dict[str, list[tuple[int, bytes]]] = {f"{number}": [] for number in range(3)}
    main: list[bytes] = []
    doubtful: list[bytes] = []
    ended = threading.Event()

    def work(name: str) -> None:
        number = 0
        while not ended.is_set():
            body = f"{name} {number}".encode()
            accepted[name].append((producer.send(topic, body).offset, body))
            number += 1

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    def send_on(count: int) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGVTALRM})  # here only: no other thread's signal comes late
        number = 0
        while number < count:
            body = b"main %d" % number
            number += 1
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, random.random() * 0.000_5)
                producer.send(topic, body)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                main.append(body)
            except Interrupted:
                doubtful.append(body)

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGVTALRM})
    try:
        raised = in_threads_beside([partial(work, name) for name in accepted], lambda: send_on(1500), ended.set)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # another thread may have a signal that it has not taken yet: it would end the process
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
        signal.signal(signal.SIGVTALRM, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGVTALRM})
    assert not raised
    producer.flush()
    with commitlog.Reader(store.path, topic=topic) as reader:
        found = [(message.offset, message.value) for message in reader]
    counts = Counter(value for _, value in found)
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert all(counts[body] == 1 for body in main)
    assert all(counts[body] <= 1 for body in doubtful)
    assert all(found[offset][1] == body for pairs in accepted.values() for offset, body in pairs)
    assert len(found) == sum(counts[body] for body in main + doubtful) + sum(map(len, accepted.values()))
    producer.close()


def in_threads_beside(
    works: list[Callable[[], object]], main: Callable[[], object], end: Callable[[], object]
) -> list[BaseException]:
    """Runs `main` here while the works run in threads, until `end` is called.

    Returns what the works raised.
    """
    raised: list[BaseException] = []
    beside = threading.Thread(target=lambda: raised.extend(in_threads(works)))
    beside.start()
    try:
        main()
    finally:
        end()
        beside.join()
    return raised


@pytest.mark.usefixtures("switching_often")
def test_a_signal_handler_may_send_while_another_thread_does(store: commitlog.Store, topic: str) -> None:
    """It waits for that thread.

    Only inside a call of its own thread it is refused, and that call goes on.
    """
    producer = commitlog.Producer(store.path)
    accepted: dict[str, list[tuple[int, bytes]]] = {"thread": [], "handler": []}
    ended = threading.Event()
    inside: list[errors.ConcurrentUse] = []

    def work() -> None:
        number = 0
        while not ended.is_set():
            body = b"thread %d" % number
            accepted["thread"].append((producer.send(topic, body).offset, body))
            number += 1

    def handle(_number: int, _frame: FrameType | None) -> None:
        body = b"handler %d" % len(accepted["handler"])
        accepted["handler"].append((producer.send(topic, body).offset, body))

    def be_signalled() -> None:
        for _ in range(300):
            os.kill(os.getpid(), signal.SIGUSR1)

    class Signalling(bytearray):
        def __bytes__(self) -> bytes:
            with pytest.raises(errors.ConcurrentUse, match="signal handler") as refused:
                signal.raise_signal(signal.SIGUSR1)
            inside.append(refused.value)
            return b"main"

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert not in_threads_beside([work], be_signalled, ended.set)
        accepted["main"] = [(producer.send(topic, Signalling()).offset, b"main")]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(inside) == 1
    assert len(accepted["handler"]) == 300
    producer.flush()
    check(store, topic, accepted)
    producer.close()


def test_a_child_that_is_forked_while_a_thread_is_inside_does_not_wait_for_it(
    store: commitlog.Store, topic: str
) -> None:
    """The child learns that the thread and the producer are its parent's.

    It may make a producer of its own.
    """
    producer = commitlog.Producer(store.path)
    body = Slow()
    first = threading.Thread(target=producer.send, args=(topic, body))
    first.start()
    assert body.is_inside.wait(100)
    for call in (lambda: producer.send(topic, b""), producer.close):
        said = in_child(call)
        assert said.startswith("ForkedProducer") or said == "None"

    def use_own() -> str:
        with commitlog.Producer(store.path) as own:
            return own.send(topic, b"").wait("flushed").name

    assert in_child(use_own) == "PUT_OK"
    body.may_go_on.set()
    first.join()
    assert producer.send(topic, b"").offset == 1
    producer.close()

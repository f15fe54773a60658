"""Producers through the public door: what is accepted, what is refused, forks and threads."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.status import AppendMessageStatus, PutMessageStatus
from tests.crash.accounts import read_store
from tests.waiting import wait_until

SMALL: dict[str, Any] = {"store": {"segment_bytes": 1 << 16, "max_lanes": 3}}
ProducerOf = Callable[[commitlog.Store], commitlog.Producer]
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["pool", pytest.param("direct", marks=pytest.mark.nightly)])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[commitlog.Store]:
    """A running store with small segments, for all tests that send to a topic of their own.

    Nightly there is also one that is written directly.
    """
    with _opened(tmp_path_factory.mktemp("shared"), request.param) as opened:
        yield opened


@pytest.fixture(scope="module", params=["pool", "direct"])
def store_of_each_way(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[commitlog.Store]:
    """The same for tests of what the two ways do differently: placing and rolling."""
    with _opened(tmp_path_factory.mktemp("shared"), request.param) as opened:
        yield opened


@pytest.fixture(params=["pool", pytest.param("direct", marks=pytest.mark.nightly)])
def new_store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[commitlog.Store]:
    """The test's own: it has the whole log, or stops the store."""
    with _opened(tmp_path, request.param) as opened:
        yield opened


@pytest.fixture(params=["pool", "direct"])
def new_store_of_each_way(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[commitlog.Store]:
    with _opened(tmp_path, request.param) as opened:
        yield opened


@pytest.fixture
def producer_of() -> Iterator[ProducerOf]:
    """Makes producers of shared stores, and closes them.

    A fixture that is a producer would keep the pool's memory until after the look for leaks.
    """
    made: list[commitlog.Producer] = []

    def make(store: commitlog.Store) -> commitlog.Producer:
        made.append(commitlog.Producer(store.path))
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.fixture
def topic() -> str:
    """One that no other test sends to."""
    return f"t{next(_NUMBERS)}"


@contextmanager
def _opened(directory: Path, write_path: str) -> Iterator[commitlog.Store]:
    settings = {"store": {**SMALL["store"], "write_path": write_path}, "producer": {"sync_flush_timeout_ms": 60_000}}
    with commitlog.Store.open(directory / "store", settings) as opened:
        yield opened


def read(store: commitlog.Store, **how: Any) -> list[commitlog.Message]:
    with commitlog.Reader(store.path, **how) as reader:
        return list(reader)


def test_a_message_comes_back_as_it_was_sent(new_store: commitlog.Store) -> None:
    """Every part of it, and the receipt says where it is."""
    producer = new_store.producer()
    receipt = producer.send("orders", b"one", key="42", tags="new", headers={"trace": "x"}, born_timestamp=1234)
    assert receipt.wait("flushed", timeout=60) is PutMessageStatus.PUT_OK
    assert receipt.done("committed")
    (message,) = read(new_store)
    assert (message.topic, message.partition, message.offset) == ("orders", producer.lane, 0)
    assert (message.key, message.tags, message.value, message.headers) == ("42", "new", b"one", {"trace": "x"})
    assert message.born_timestamp == 1234
    assert message.message_id == receipt.message_id
    assert message.physical_offset == receipt.physical_offset == 0


def test_offsets_count_by_topic_without_a_gap(new_store: commitlog.Store) -> None:
    """Also in the hands of the next producer, and of one after a restart."""
    for expected in range(3):
        with new_store.producer() as producer:
            assert [producer.send("a", b"").offset, producer.send("b", b"").offset] == [expected, expected]
    new_store.close()
    with commitlog.Store.open(new_store.path) as again, again.producer() as producer:
        assert producer.send("a", b"").offset == 3
        producer.flush()
        assert [(m.topic, m.offset) for m in read(again)] == [(t, n) for n in range(3) for t in "ab"] + [("a", 3)]


def test_messages_roll_over_segments(store_of_each_way: commitlog.Store, producer_of: ProducerOf, topic: str) -> None:
    """More than the buffers hold, of every size up to the largest."""
    producer = producer_of(store_of_each_way)
    largest = producer.message_bytes_max - 200
    bodies = [bytes([n % 256]) * (n * 997 % largest) for n in range(200)] + [b"x" * largest]
    for body in bodies:
        producer.send(topic, body)
    producer.flush(timeout=60)
    assert [message.value for message in read(store_of_each_way, topic=topic)] == bodies


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception]]] = [
    (("bad topic", b""), {}, errors.IllegalTopic),
    (("", b""), {}, errors.IllegalTopic),
    (("..", b""), {}, errors.IllegalTopic),
    (("t" * 256, b""), {}, errors.IllegalTopic),
    (("t", b"x" * (1 << 15)), {}, errors.MessageTooLarge),
    (("t", b""), {"key": "key\x01"}, errors.IllegalProperty),
    (("t", b""), {"headers": {"KEYS": "x"}}, errors.IllegalProperty),
    (("t", b""), {"headers": {"a": "x" * 40_000}}, errors.PropertiesTooLarge),
    (("t", "text"), {}, TypeError),
    (("t", {"a": 1}), {}, TypeError),
    (("t", None), {}, TypeError),
]


APPEND_STATUS: dict[type[Exception], AppendMessageStatus] = {
    errors.MessageTooLarge: AppendMessageStatus.MESSAGE_SIZE_EXCEEDED,
    errors.PropertiesTooLarge: AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED,
}


def test_what_is_refused_leaves_nothing(
    store: commitlog.Store, producer_of: ProducerOf, topic: str, subtests: pytest.Subtests
) -> None:
    """A named error, no record, and the next message takes the offset."""
    producer = producer_of(store)
    for number, (arguments, more, error) in enumerate(REFUSED):
        with subtests.test(error=error.__name__, arguments=arguments, more=more):
            with pytest.raises(error) as raised:
                producer.send(*arguments, **more)
            assert "\n" not in str(raised.value)
            if error is errors.PropertiesTooLarge:
                assert raised.value.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED  # type: ignore[attr-defined]
            elif issubclass(error, errors.CommitLogError):
                assert raised.value.status is PutMessageStatus.MESSAGE_ILLEGAL  # type: ignore[attr-defined]
            if issubclass(error, errors.CommitLogError):
                expected = APPEND_STATUS.get(error, AppendMessageStatus.UNKNOWN_ERROR)
                assert raised.value.append_status is expected  # type: ignore[attr-defined]
            assert producer.send(topic, b"fine").offset == number
    producer.flush()
    assert [message.value for message in read(store, topic=topic)] == [b"fine"] * len(REFUSED)


def test_lanes_run_out_by_name(new_store: commitlog.Store) -> None:
    """Three lanes serve three producers, and a fourth one waits and is refused.

    The error names the knob and who holds how many lanes. The lane of a closed producer is taken
    again.
    """
    producers = [commitlog.Producer(new_store.path) for _ in range(3)]
    assert sorted(producer.lane for producer in producers) == [0, 1, 2]
    held = rf"3 of 3 \(store\.max_lanes\) are held, 3 by pid {os.getpid()}: close a producer"
    with pytest.raises(errors.NoFreeLane, match=held):
        commitlog.Producer(new_store.path)
    producers[1].close()
    with commitlog.Producer(new_store.path) as again:
        assert again.lane == 1
    for producer in producers:
        producer.close()
    with pytest.raises(errors.ProducerClosed):
        producers[0].send("t", b"")


def test_no_producer_without_stages(tmp_path: Path) -> None:
    """The error says which command starts them."""
    with pytest.raises(errors.StoreNotFound, match="commitlog run"):
        commitlog.Producer(tmp_path / "store")
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    with pytest.raises(errors.StoreNotRunning, match="commitlog run"):
        commitlog.Producer(tmp_path / "store")


def test_a_producer_learns_that_its_store_was_closed(new_store: commitlog.Store) -> None:
    """What it had sent is drained, and sending on raises.

    Its pool stays only as long as something is in it.
    """
    producer = commitlog.Producer(new_store.path)
    producer.send("t", b"before")
    report = new_store.close()
    assert producer.send("t", b"on its way").offset == 1  # it stays in the pool
    with pytest.raises(errors.StoreStopped) as raised:
        producer.send("t", b"")
    assert raised.value.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    producer.close()
    assert not report.drained
    assert f"{os.getpid()}" in report.kept[0]
    with commitlog.Store.open(new_store.path) as again:
        wait_until(lambda: [message.value for message in read(again)] == [b"before", b"on its way"], "both")


def test_a_forked_child_can_neither_use_a_producer_nor_keep_its_lane(store: commitlog.Store, topic: str) -> None:
    """The child raises; when the parent lets go, the lane is free although the child lives on."""
    producer = commitlog.Producer(store.path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            producer.send(topic, b"from the child")
            os.write(writing, b"sent")
        except errors.ForkedProducer:
            os.write(writing, b"refused")
        signal.pause()
    try:
        assert os.read(reading, 100) == b"refused"
        producer.close()
        with commitlog.Producer(store.path) as again:
            assert again.lane == producer.lane
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_call_inside_a_call_is_refused(store: commitlog.Store, producer_of: ProducerOf, topic: str) -> None:
    """A signal handler or a finalizer may make such a call.

    The inner call raises before it stores anything, and the outer one goes on.
    """
    producer = producer_of(store)

    class Body(bytes):
        def __bytes__(self) -> bytes:
            with pytest.raises(errors.ConcurrentUse, match="further up"):
                producer.send(topic, b"inner")
            with pytest.raises(errors.ConcurrentUse):
                producer.close()
            return b"outer"

    assert producer.send(topic, Body()).offset == 0
    assert producer.send(topic, b"next").offset == 1
    producer.flush()
    assert [message.value for message in read(store, topic=topic)] == [b"outer", b"next"]


def test_a_finalizer_may_send_wherever_garbage_is_collected(
    store: commitlog.Store, producer_of: ProducerOf, topic: str
) -> None:
    """Also while the error for a key is made. Its message is accepted, or refused by name."""
    producer = producer_of(store)
    unexpected: list[Exception] = []

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                producer.send(topic, b"from a finalizer")
            except errors.ConcurrentUse:
                pass
            except Exception as error:
                unexpected.append(error)

    usual = gc.get_threshold()
    gc.freeze()  # what other tests have made is not looked at
    try:
        for allocations in range(1, 60):  # one of them is each place of the call that may collect
            producer.send(topic, b"good")  # the call after an error is Python's on both cores
            gc.collect()
            Garbage()
            gc.set_threshold(allocations)
            with pytest.raises(errors.IllegalProperty):
                producer.send(topic, b"x", key="\ud800")
            gc.set_threshold(*usual)
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
        gc.collect()
    assert unexpected == []


def test_a_topic_is_its_text(store: commitlog.Store, producer_of: ProducerOf, topic: str) -> None:
    """A str of a subclass with a hash of its own names the same topic, and counts on."""
    producer = producer_of(store)

    class Name(str):
        def __hash__(self) -> int:
            return 7

    assert [producer.send(name, b"").offset for name in (Name(topic), topic, Name(topic), topic)] == [0, 1, 2, 3]


def test_acknowledgements_come_by_callback_and_to_asyncio(
    store: commitlog.Store, producer_of: ProducerOf, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand outstanding receipts are answered once each.

    A callback that fails does not stop others.
    """
    producer = producer_of(store)
    answers: list[PutMessageStatus] = []

    def broken(_status: PutMessageStatus) -> None:
        raise ValueError("a mistake of the user's")

    for number in range(1000):
        producer.send(topic, b"%d" % number).add_callback(broken if number == 500 else answers.append, timeout=60)
    wait_until(lambda: len(answers) == 999, "all callbacks")
    assert set(answers) == {PutMessageStatus.PUT_OK}
    assert "a mistake of the user's" in caplog.text
    caplog.clear()  # the traceback in it holds the producer

    async def send_and_wait() -> list[PutMessageStatus]:
        receipts = [producer.send(topic, b"") for _ in range(1000)]
        return list(await asyncio.gather(*(_wait_for(receipt) for receipt in receipts)))

    assert set(asyncio.run(send_and_wait())) == {PutMessageStatus.PUT_OK}


def test_callbacks_do_not_wait_for_one_another(store: commitlog.Store, producer_of: ProducerOf, topic: str) -> None:
    """With the flusher stopped, a long wait for `flushed` delays no other callback.

    The others have a short limit or another level.
    """
    producer = producer_of(store)
    producer.send(topic, b"before").wait("flushed", timeout=60)
    flusher = int((store.path / "locks" / "flusher").read_text())
    answers: dict[str, PutMessageStatus] = {}
    os.kill(flusher, signal.SIGSTOP)
    try:
        for name, level, timeout in (
            ("patient", "flushed", 60),
            ("hasty", "flushed", 0.01),
            ("modest", "committed", 60),
        ):
            producer.send(topic, b"").add_callback(partial(answers.__setitem__, name), level, timeout)  # type: ignore[arg-type]
        wait_until(lambda: len(answers) == 2, "the other two")
        assert answers == {"hasty": PutMessageStatus.FLUSH_DISK_TIMEOUT, "modest": PutMessageStatus.PUT_OK}
    finally:
        os.kill(flusher, signal.SIGCONT)
    wait_until(lambda: len(answers) == 3, "the first")
    assert answers["patient"] is PutMessageStatus.PUT_OK


async def _wait_for(receipt: commitlog.Receipt) -> PutMessageStatus:
    return await receipt


def test_store_timestamps_never_go_back(new_store: commitlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the clock jumps back, or forward and back again, messages get the last timestamp.

    That is so for single messages, for batches and for the lane's next producer. So messages are
    found by their time whatever the clock did.
    """
    now, hour = time.time_ns(), 3_600_000_000_000
    for wall in (now, 0, now + hour, now - hour, now):
        monkeypatch.setattr("commitlog.client.producer.time_ns", partial(int, wall))
        with commitlog.Producer(new_store.path) as producer:
            producer.send("t", b"")
            producer.send_batch("t", [b"", b""])
            producer.flush()
    monkeypatch.undo()
    with commitlog.Producer(new_store.path) as producer:  # by the system's clock, which the native core asks itself
        producer.send("t", b"")
        producer.send("t", b"")
        producer.flush()
    stamps = [message.timestamp for message in read(new_store)]
    assert stamps == [now // 1_000_000] * 6 + [(now + hour) // 1_000_000] * 11
    for stamp, first in ((stamps[0], 0), (stamps[0] + 1, 6), (stamps[6], 6)):
        start = datetime.fromtimestamp(stamp / 1000, UTC).isoformat(timespec="milliseconds")
        with commitlog.Reader(new_store.path, start=start) as reader:
            assert [message.offset for message in reader] == list(range(first, 17))


def test_a_store_needs_no_reader_to_be_whole(new_store: commitlog.Store) -> None:
    """The files themselves hold what was flushed, every CRC right."""
    producer = new_store.producer()
    for number in range(500):
        producer.send(f"t{number % 7}", os.urandom(number))
    producer.flush()
    assert read_store(new_store.path).messages == 500


def test_a_batch_is_all_or_nothing_in_one_segment(new_store_of_each_way: commitlog.Store) -> None:
    """A batch has consecutive offsets and one timestamp.

    A batch that is too large is refused whole. One that does not fit into the segment goes into the
    next one whole.
    """
    producer = new_store_of_each_way.producer()
    producer.send("t", b"before")
    receipt = producer.send_batch("t", [b"a", b"", b"ccc"], key="k", tags="g", headers={"p": "1"})
    assert (receipt.offset, len(receipt)) == (1, 3)
    with pytest.raises(errors.MessageTooLarge, match="smaller batches"):
        producer.send_batch("t", [b"x" * 10_000] * 7)
    with pytest.raises(errors.MessageTooLarge, match="split the value"):
        producer.send_batch("t", [b"x" * 20_000])
    with pytest.raises(TypeError):
        producer.send_batch("t", ["text"])  # type: ignore[list-item]
    assert len(producer.send_batch("t", [])) == 0
    producer.send_batch("t", [b"y" * 10_000])
    rolled = producer.send_batch("t", [b"y" * 10_000] * 6)
    assert rolled.physical_offset == new_store_of_each_way.segment_bytes
    assert producer.send("t", b"after").offset == 11
    assert receipt.wait("flushed", 60) is PutMessageStatus.PUT_OK
    producer.flush()
    messages = read(new_store_of_each_way)
    assert [m.offset for m in messages] == list(range(12))
    batch = messages[1:4]
    assert [m.value for m in batch] == [b"a", b"", b"ccc"]
    assert {(m.key, m.tags, m.headers["p"], m.timestamp) for m in batch} == {("k", "g", "1", batch[0].timestamp)}
    assert [m.physical_offset for m in batch] == receipt.physical_offsets.tolist()


@pytest.mark.parametrize("values", [[b"one", b"two", b"three"], [b"same", b"size"]], ids=["mixed", "equal"])
def test_a_batch_is_what_the_list_has_at_the_call(
    store_of_each_way: commitlog.Store, producer_of: ProducerOf, topic: str, values: list[bytes]
) -> None:
    """The caller may change the list before the records are made, in a thread or its mapping."""
    producer = producer_of(store_of_each_way)
    wanted = list(values)

    class Headers(dict[str, str]):
        def items(self) -> Any:
            values[0] = b"another size"
            values.pop()
            return super().items()

    assert len(producer.send_batch(topic, values, headers=Headers(a="b"))) == len(wanted)
    producer.flush()
    assert [message.value for message in read(store_of_each_way, topic=topic)] == wanted


def test_batches_of_arrays_are_those_of_bytes(store: commitlog.Store, producer_of: ProducerOf) -> None:
    """A numpy matrix and an Arrow array give the same messages as a list."""
    producer = producer_of(store)
    numpy = pytest.importorskip("numpy")
    pyarrow = pytest.importorskip("pyarrow")
    bodies = [b"%03d" % n for n in range(100)]
    producer.send_batch("list", bodies)
    producer.send_batch("numpy", numpy.frombuffer(b"".join(bodies), numpy.uint8).reshape(100, 3))
    producer.send_batch("arrow", pyarrow.array(bodies, pyarrow.binary()))
    producer.flush()
    for topic in ("list", "numpy", "arrow"):
        assert [message.value for message in read(store, topic=topic)] == bodies

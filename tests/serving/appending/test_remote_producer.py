"""A producer of another machine: what arrives, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import commitlog
from commitlog.errors import (
    AccessDenied,
    IllegalArgument,
    IllegalMessage,
    IllegalProperty,
    IllegalRow,
    IllegalTopic,
    MessageTooLarge,
    NoFreeLane,
    NoSchema,
    NotCopied,
    ProducerClosed,
    ServerUnavailable,
    StoreNotFound,
    StoreNotRunning,
    ValuesRefused,
)
from commitlog.remote.remote_producer import RemoteReceipt
from commitlog.serving.access import Access, add_token
from commitlog.status import PutMessageStatus
from tests.builders.hand_made import small_store
from tests.served import ROOT
from tests.serving.appending.shared_store import messages, url_of
from tests.serving.asking import server_of, url_of_store
from tests.waiting import wait_until

# ---- what arrives -------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(store: commitlog.Store, url: str) -> None:
    """It is flushed when `wait` returns, and its lane is free after the with-block."""
    with commitlog.RemoteProducer(url) as producer:
        receipt = producer.send("orders", b"\x00\xff", key="ж", headers={"h": "x", "g": "ж"}, tags="T")
        assert receipt.wait("accepted", 60) is commitlog.PutMessageStatus.PUT_OK
        assert receipt.wait(timeout=60) is commitlog.PutMessageStatus.PUT_OK
        assert (receipt.topic, receipt.done(), receipt.done("accepted")) == ("orders", True, True)
        producer.send("orders", b"").wait(timeout=60)
        (first, second) = messages(store)
    assert (first.topic, first.value, first.key, first.tags) == ("orders", b"\x00\xff", "ж", "T")
    assert first.headers == {"h": "x", "g": "ж"}
    assert (second.value, second.key, second.headers, second.tags) == (b"", None, {}, None)
    with commitlog.Producer(store.path), commitlog.Producer(store.path):
        pass


@pytest.mark.nightly
def test_many_messages_keep_their_order(store: commitlog.Store, url: str) -> None:
    """Of some topics, single ones and batches; `close` flushes them all."""
    with commitlog.RemoteProducer(url) as producer:
        for number in range(30_000):
            producer.send(f"t{number % 3}", b"%d" % number)
        last = producer.send_batch("b", [b"%d" % number for number in range(30_000)])
        assert len({message.partition for message in messages(store)}) <= 1
    assert last.done()
    for topic in range(3):
        assert [int(m.value) for m in messages(store, f"t{topic}")] == list(range(topic, 30_000, 3))
    assert [int(m.value) for m in messages(store, "b")] == list(range(30_000))


@pytest.mark.parametrize("kind", ["list", "numpy", "arrow"])
def test_a_batch_in_each_of_its_forms(store: commitlog.Store, url: str, kind: str) -> None:
    """With a key for each message; and a batch of nothing."""
    values = [b"ab", b"cd", b"ef"]
    made = {"list": values, "numpy": np.frombuffer(b"abcdef", np.uint8).reshape(3, 2), "arrow": pa.array(values)}
    with commitlog.RemoteProducer(url) as producer:
        producer.send_batch("t", made[kind], keys=["a", None, "b"], headers={"h": "x"}).wait(timeout=60)
        assert producer.send_batch("t", []).done()
        with pytest.raises(IllegalMessage, match="2 keys for 3 values"):
            producer.send_batch("t", values, keys=["a", "b"])
    assert [(m.value, m.key, m.headers) for m in messages(store)] == [
        (b"ab", "a", {"h": "x"}),
        (b"cd", None, {"h": "x"}),
        (b"ef", "b", {"h": "x"}),
    ]


@pytest.mark.parametrize("kind", [bytearray, memoryview, np.array, pa.py_buffer])
def test_a_batch_is_as_it_was_when_it_was_sent(store: commitlog.Store, url: str, kind: Callable[[Any], Any]) -> None:
    """The program may use its buffers, list, keys and headers again when the call has returned."""
    memory = bytearray(b"abcd")
    lists: dict[Any, Any] = {
        bytearray: [memory, bytearray(b"x")],
        memoryview: [memoryview(memory), b"x"],
        np.array: np.frombuffer(memory, np.uint8).reshape(2, 2),
        pa.py_buffer: pa.Array.from_buffers(
            pa.binary(), 2, [None, pa.py_buffer(np.array([0, 1, 4], np.int32)), pa.py_buffer(memory)]
        ),
    }
    values, keys, headers = lists[kind], ["k", "l"], {"h": "x"}
    expected = [bytes(value) for value in (values.to_pylist() if kind is pa.py_buffer else values)]
    with commitlog.RemoteProducer(url) as producer:
        producer.send_batch("t", values, keys=keys, headers=headers)
        memory[:], keys[:], headers["h"] = b"WXYZ", ["m", "n"], "y"
        if isinstance(values, list):
            values.clear()
    found = [(m.value, m.key, m.headers) for m in messages(store)]
    assert found == [(value, key, {"h": "x"}) for value, key in zip(expected, ["k", "l"], strict=True)]


def test_rows_of_a_typed_topic(store: commitlog.Store, url: str) -> None:
    """Also when the schema has grown meanwhile; what does not fit is refused before it is sent."""
    store.create_topic("sales", pa.schema({"id": pa.int64(), "name": pa.string()}))
    with commitlog.RemoteProducer(url) as producer:
        rows = [{"id": number, "name": f"n{number}"} for number in range(25_000)]
        receipt = producer.send_rows("sales", rows)
        assert receipt is not None
        assert producer.send_rows("sales", []) is None
        store.create_topic("sales", pa.schema({"id": pa.int64(), "name": pa.string(), "no": pa.int32()}), evolve=True)
        producer.send_rows("sales", pa.table({"id": [25_000], "no": pa.array([7], pa.int32())}), compression="zstd")
        with pytest.raises(IllegalRow, match="row 1: there is no column 'nome'"):
            producer.send_rows("sales", [{"id": 1}, {"nome": "x"}])
        with pytest.raises(NoSchema, match="topic other has no schema"):
            producer.send_rows("other", [{"id": 1}])
    read = commitlog.read_arrow(store.path, "sales").read_all().to_pylist()
    assert read == [{**row, "no": None} for row in rows] + [{"id": 25_000, "name": None, "no": 7}]


def test_values_for_a_typed_topic(store: commitlog.Store, url: str) -> None:
    """They are refused before they are sent; a record batch with its headers is not."""
    store.create_topic("only-rows", "id BIGINT")
    with commitlog.RemoteProducer(url) as producer:
        with pytest.raises(ValuesRefused, match="topic only-rows has a schema"):
            producer.send("only-rows", b"poison")
        producer.send_rows("only-rows", [{"id": 1}])
        with pytest.raises(ValuesRefused):
            producer.send_batch("only-rows", [b"poison"])
        producer.flush()
        (message,) = messages(store, "only-rows")
        producer.send("only-rows", message.value, headers=message.headers)
    assert commitlog.read_arrow(store.path, "only-rows").read_all().to_pylist() == [{"id": 1}] * 2


def test_threads_share_a_producer(store: commitlog.Store, url: str) -> None:
    def send(name: str) -> None:
        for number in range(2_000):
            receipt = producer.send(name, b"%d" % number)
        receipt.wait(timeout=60)

    with commitlog.RemoteProducer(url) as producer:
        threads = [threading.Thread(target=send, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        assert [int(m.value) for m in messages(store, f"t{number}")] == list(range(2_000))


def test_more_than_may_be_on_its_way(store: commitlog.Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`send` waits for room, and goes on: with messages as large as may be."""
    from commitlog.remote import outbox

    monkeypatch.setattr(outbox, "OUTBOX_BYTES", 100_000)
    with commitlog.RemoteProducer(url) as producer:
        for number in range(40):
            producer.send("t", bytes([number]) * 200_000)
    assert [m.value[0] for m in messages(store)] == list(range(40))


@pytest.mark.nightly
def test_a_program_that_ends_without_close(store: commitlog.Store, url: str) -> None:
    """Everything is flushed at its end."""
    program = f"import commitlog; p = commitlog.RemoteProducer({url!r}); [p.send('t', b'%d' % n) for n in range(1000)]"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
    assert [int(m.value) for m in messages(store)] == list(range(1000))


def test_a_program_that_ends_without_closing_its_rows(store: commitlog.Store, url: str) -> None:
    """They come before their producer, whatever was made last."""
    store.create_topic("ends", pa.schema({"id": pa.int64()}))
    program = (
        f"import commitlog; first = commitlog.RemoteProducer({url!r}); rows = first.rows('ends', linger_ms=1e6)\n"
        f"rows.append(id=7); second = commitlog.RemoteProducer({url!r})"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
    assert commitlog.read_arrow(store.path, "ends").read_all().to_pylist() == [{"id": 7}]


# ---- callbacks and awaitables ------------------------------------------------------------------


def test_receipts_have_the_methods_of_local_ones() -> None:
    """Of the same arguments; the levels are fewer."""
    for name in ("done", "wait", "add_callback", "wait_async"):
        own, local = (inspect.signature(getattr(kind, name)) for kind in (RemoteReceipt, commitlog.Receipt))
        assert [(one.name, one.default) for one in own.parameters.values()] == [
            (one.name, one.default) for one in local.parameters.values()
        ]


def test_callbacks_are_called_once_each(store: commitlog.Store, url: str) -> None:
    """From another thread; an error in one stops no other; one that comes late is called, too."""
    answers: list[tuple[int, PutMessageStatus]] = []

    def broken(_: PutMessageStatus) -> None:
        raise ValueError("a user's mistake")

    with commitlog.RemoteProducer(url) as producer:
        for number in range(1_000):
            receipt = producer.send("t", b"x")
            receipt.add_callback(broken if number == 500 else partial(note, answers, number))
        for wrong in ((None,), (print, "x"), (print, "flushed", "x")):
            with pytest.raises(IllegalArgument):
                receipt.add_callback(*wrong)
    wait_until(lambda: len(answers) == 999, "the callbacks")
    assert answers == [(number, PutMessageStatus.PUT_OK) for number in range(1_000) if number != 500]
    receipt.add_callback(partial(note, answers, 1_000), "accepted", 60)
    wait_until(lambda: answers[-1] == (1_000, PutMessageStatus.PUT_OK), "the one that came late")
    wait_until(lambda: not callers(), "the end of the thread that calls back")


def note(answers: list[tuple[int, PutMessageStatus]], number: int, status: PutMessageStatus) -> None:
    assert threading.current_thread() is not threading.main_thread()
    answers.append((number, status))


def callers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "commitlog-calls-back"]


def test_callbacks_and_awaits_while_nothing_becomes_flushed(store: commitlog.Store, url: str) -> None:
    """One with a limit, one without, and a thousand awaits that are cancelled."""
    flusher = int((store.path / "locks" / "flusher").read_text())
    with commitlog.RemoteProducer(url) as producer:
        producer.send("t", b"first").wait(timeout=60)
        os.kill(flusher, signal.SIGSTOP)
        try:
            receipt = producer.send("t", b"x")
            hasty: list[PutMessageStatus] = []
            patient: list[PutMessageStatus] = []
            receipt.add_callback(patient.append)
            receipt.add_callback(hasty.append, timeout=0.02)
            wait_until(lambda: hasty == [PutMessageStatus.FLUSH_DISK_TIMEOUT], "the one with a limit")

            async def impatient() -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await receipt
                    pytest.fail("nobody has flushed it")

            async def many() -> PutMessageStatus:
                await asyncio.gather(*(impatient() for _ in range(1_000)))
                return await receipt.wait_async("accepted")

            assert asyncio.run(many()) is PutMessageStatus.PUT_OK
            assert not patient
        finally:
            os.kill(flusher, signal.SIGCONT)
    wait_until(lambda: patient == [PutMessageStatus.PUT_OK], "the one without")
    wait_until(lambda: not callers(), "the end of the thread that calls back")


# ---- what is refused ----------------------------------------------------------------------------


def test_what_send_refuses(store: commitlog.Store, url: str) -> None:
    """Nothing of it is sent, and what comes after it is."""
    with commitlog.RemoteProducer(url) as producer:
        with pytest.raises(IllegalTopic, match="topic 'a b': only letters"):
            producer.send("a b", b"x")
        with pytest.raises(IllegalMessage, match=r"a value is bytes, not str: send value\.encode"):
            producer.send("t", "x")  # type: ignore[arg-type]
        with pytest.raises(IllegalProperty, match="header 'h': readers drop"):
            producer.send("t", b"x", headers={"h": ""})
        with pytest.raises(IllegalProperty, match="KEYS"):
            producer.send("t", b"x", headers={"KEYS": "x"})
        with pytest.raises(MessageTooLarge, match="MESSAGE_SIZE_EXCEEDED: a record of 300,"):
            producer.send("t", b"x" * 300_000)
        with pytest.raises(IllegalArgument, match="a level of a remote message is 'accepted' or 'flushed'"):
            producer.send("t", b"last").wait("committed")  # type: ignore[arg-type]
        with pytest.raises(NotCopied):
            pickle.dumps(producer)
    with pytest.raises(ProducerClosed):
        producer.send("t", b"x")
    producer.close()
    assert [m.value for m in messages(store)] == [b"last"]


def test_a_place_that_is_none(store: commitlog.Store, url: str, served_base: str, tmp_path: Path) -> None:
    """Each with one line, and without a path of the server."""
    with pytest.raises(IllegalArgument, match=r"takes the URL of a served store; see commitlog\.Producer"):
        commitlog.RemoteProducer(str(store.path))
    with pytest.raises(IllegalArgument, match="token and token_file: give only one of them"):
        commitlog.RemoteProducer(url, token="a", token_file="b")
    with pytest.raises(StoreNotFound, match="there is no store here"):
        commitlog.RemoteProducer(url_of(tmp_path / "nowhere", served_base))
    with pytest.raises(ServerUnavailable, match="no server answers"):
        commitlog.RemoteProducer("commitlog://127.0.0.1:1/store")
    with (
        commitlog.Producer(store.path),
        commitlog.Producer(store.path),
        pytest.raises(NoFreeLane, match="no lane is free: 2 of 2"),
    ):
        commitlog.RemoteProducer(url)
    stopped = small_store(tmp_path / "stopped").path
    with pytest.raises(StoreNotRunning, match="so the stages must run on its machine") as it:
        commitlog.RemoteProducer(url_of(stopped, served_base))
    assert str(stopped) not in str(it.value)


def test_what_a_token_is_not_for(store: commitlog.Store, tmp_path: Path) -> None:
    """A server that is not writable; a token to read with; a topic that a token does not cover."""
    with (
        server_of([store.path]) as server,
        pytest.raises(AccessDenied, match=r"served for reading; .* --writable"),
    ):
        commitlog.RemoteProducer(url_of_store(server))
    tokens = tmp_path / "tokens"
    reading = add_token(tokens, Access("reader"))
    file = tmp_path / "token"
    file.write_text(add_token(tokens, Access("writer", topics=("orders*",), read=False, write=True)) + "\n")
    with server_of([store.path], writable=True, tokens=tokens) as server:
        url = url_of_store(server)
        with pytest.raises(AccessDenied, match="the token reader is not one to write with"):
            commitlog.RemoteProducer(url, token=reading)
        with pytest.raises(AccessDenied, match="the server wants a token"):
            commitlog.RemoteProducer(url)
        with commitlog.RemoteProducer(url, token_file=file) as producer:
            with pytest.raises(AccessDenied, match=r"the token writer is not for topic secret; it is for orders\*"):
                producer.send("secret", b"x")
            producer.send("orders-1", b"x")
    assert [m.topic for m in messages(store)] == ["orders-1"]


def test_rows_one_by_one(store: commitlog.Store, url: str) -> None:
    store.create_topic("typed", schema="id INT")
    with commitlog.RemoteProducer(url) as producer:
        with pytest.raises(NoSchema):
            producer.rows("untyped")
        with producer.rows("typed", max_rows=4) as rows:
            for number in range(10):
                rows.append(id=number)
    table = commitlog.read_arrow(store.path, "typed").read_all()
    assert table["id"].to_pylist() == list(range(10))


def test_receipts_in_asyncio(store: commitlog.Store, url: str) -> None:
    async def send(producer: commitlog.RemoteProducer) -> list[PutMessageStatus]:
        receipts = [producer.send("orders", b"%d" % number) for number in range(20)]
        return [await receipt for receipt in receipts]

    with commitlog.RemoteProducer(url) as producer:
        assert set(asyncio.run(send(producer))) == {PutMessageStatus.PUT_OK}
    assert len(messages(store)) == 20

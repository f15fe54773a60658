"""Bad days of a producer on another machine: servers, stores, schemas and clients that go away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import commitlog
from commitlog.errors import (
    AccessDenied,
    NoFreeLane,
    SchemaConflict,
    ServerUnavailable,
    WaitTimeout,
)
from commitlog.remote import stream_threads
from commitlog.serving.access import Access, add_token, remove_token
from commitlog.status import PutMessageStatus
from tests.command_line import run
from tests.nightly import with_nightly
from tests.served import ROOT
from tests.serving.appending.shared_store import messages, url_of
from tests.serving.asking import await_free_lane, kill_process, server_of, url_of_store
from tests.waiting import wait_until


def test_a_server_killed_in_mid_stream(store: commitlog.Store) -> None:
    """What was on its way is sent again: nothing is lost, the order is kept, some are doubled."""
    with (
        server_of([store.path], writable=True) as server,
        commitlog.RemoteProducer(url_of_store(server)) as producer,
    ):
        receipts = []
        for number in range(15_000):
            if number in (5_000, 10_000):
                kill_process(server)
            receipts.append(producer.send("t", b"%d" % number))
            if number == 2_500:
                receipts[-1].wait(timeout=60)
        producer.flush(timeout=120)
        assert all(receipt.done() for receipt in receipts)
    counts = Counter(int(m.value) for m in messages(store))
    assert set(counts) == set(range(15_000))
    assert {counts[number] for number in range(2_500)} == {1}, "what was flushed is not sent again"
    assert max(counts.values()) <= 3
    in_order = list(dict.fromkeys(int(m.value) for m in messages(store) if m.partition == 0))
    assert in_order == sorted(in_order)


def test_a_store_that_is_stopped_and_started(tmp_path: Path, served_base: str, store_config: dict[str, Any]) -> None:
    """Messages wait for it, and receipts too."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, store_config):
        producer = commitlog.RemoteProducer(url_of(path, served_base))
        producer.send("t", b"before").wait(timeout=60)
    receipt = producer.send("t", b"after")
    with pytest.raises(WaitTimeout, match=r"1 messages are not flushed after 0\.1 s; they are still on their way"):
        receipt.wait(timeout=0.1)
    with commitlog.Store.open(path, store_config) as store:
        receipt.wait(timeout=60)
        producer.close()
        values = [m.value for m in messages(store)]
    assert values[0] == b"before"
    assert set(values[1:]) == {b"after"}, "it may be doubled"


@pytest.mark.nightly
@pytest.mark.parametrize("bad_day", with_nightly(["deleted"], ["restored"]))
def test_rows_of_a_schema_that_is_gone_are_refused(bad_day: str, tmp_path: Path, store_config: dict[str, Any]) -> None:
    """Under the number of their version, the store has other columns now, or none."""
    path, first = tmp_path / "store", pa.schema({"id": pa.int64()})
    prices, counts = (first.append(pa.field("n", kind)) for kind in (pa.float64(), pa.int64()))
    with commitlog.Store.open(path, store_config) as store:
        store.create_topic("orders", first)
        commitlog.backup(path, tmp_path / "backup")
        store.create_topic("orders", prices, evolve=True)
        with server_of([path], writable=True) as server:
            url = url_of_store(server)
            producer = commitlog.RemoteProducer(url)
            producer.send_rows("orders", [{"id": 1, "n": 1.5}])
            producer.flush(timeout=60)
    if bad_day == "restored":
        path.rename(tmp_path / "broken")
        commitlog.backup(tmp_path / "backup", path)
    else:
        assert run("topics", path, "--delete", "orders", "--yes").returncode == 0
    again = urlsplit(url).netloc
    with commitlog.Store.open(path, store_config) as store, server_of([path], listen=again, writable=True):
        store.create_topic("orders", counts, evolve=True)
        receipt = producer.send_rows("orders", [{"id": 2, "n": 2.5}])
        assert receipt is not None
        with pytest.raises(
            SchemaConflict, match=r"rows of topic orders were encoded with version 2: .* a new producer"
        ):
            receipt.wait(timeout=60)
        with pytest.raises(SchemaConflict):
            producer.close()
        with commitlog.RemoteProducer(url) as another:
            another.send_rows("orders", [{"id": 3, "n": 7}])
        assert commitlog.read_arrow(path, "orders").read_all().to_pylist() == [{"id": 3, "n": 7}]


@pytest.mark.nightly
def test_a_server_that_does_not_come_back(store: commitlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts, flush, send and close say so: no message is lost without a word."""
    monkeypatch.setattr(stream_threads, "RESEND_SECONDS", 0.5)
    with server_of([store.path], writable=True) as server:
        producer = commitlog.RemoteProducer(url_of_store(server))
        flushed = producer.send("t", b"flushed")
        flushed.wait(timeout=60)
    lost = producer.send("t", b"lost")
    answers: list[PutMessageStatus] = []
    lost.add_callback(answers.append)

    async def awaited() -> None:
        await lost

    with pytest.raises(ServerUnavailable, match=r"1 messages are not known to be flushed"):
        asyncio.run(awaited())
    wait_until(lambda: answers == [PutMessageStatus.SERVICE_NOT_AVAILABLE], "the callback")
    for call in (lost.wait, producer.flush, lambda: producer.send("t", b"x"), producer.close):
        with pytest.raises(ServerUnavailable, match=r"1 messages are not known to be flushed: send them again"):
            call()
    flushed.wait()
    producer.close()


@pytest.mark.nightly
def test_a_token_that_is_removed(store: commitlog.Store, tmp_path: Path) -> None:
    """A stream that is open goes on; after a restart of the server its messages are refused."""
    tokens = tmp_path / "tokens"
    token = add_token(tokens, Access("writer", write=True))
    with server_of([store.path], writable=True, tokens=tokens) as server:
        producer = commitlog.RemoteProducer(url_of_store(server), token=token)
        producer.send("t", b"x").wait(timeout=60)
        remove_token(tokens, "writer")
        kill_process(server)
        receipt = producer.send("t", b"y")
        with pytest.raises(AccessDenied, match=r"does not know this token; .* 1 messages are not known"):
            receipt.wait(timeout=60)
        with pytest.raises(AccessDenied):
            producer.close()
    assert [m.value for m in messages(store)] == [b"x"]


def test_a_client_that_is_killed_gives_its_lane_back(store: commitlog.Store, url: str) -> None:
    program = (
        f"import commitlog, time; p = commitlog.RemoteProducer({url!r})\n"
        f"p.send('t', b'x').wait(); print('sent', flush=True); time.sleep(1000)"
    )
    client = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"sent\n"
    with commitlog.Producer(store.path):
        with pytest.raises(NoFreeLane):
            commitlog.Producer(store.path)
        client.kill()
        client.wait()
        client.stdout.close()

        await_free_lane(store)


@pytest.mark.nightly
def test_a_forked_child(store: commitlog.Store, url: str) -> None:
    """It can't use its parent's producer, says so, and ends; the parent's goes on."""
    program = f"""if True:
        import os
        import commitlog
        with commitlog.RemoteProducer({url!r}) as producer:
            receipt = producer.send("t", b"parent")
            receipt.wait()
            later = producer.send("t", b"later")
            pid = os.fork()
            if not pid:
                for call in (lambda: producer.send("t", b"child"), producer.flush, later.wait, lambda: None):
                    try:
                        call()
                        later.done() or print("not flushed")
                    except commitlog.errors.ForkedProducer as error:
                        print(type(error).__name__)
                producer.close()
                raise SystemExit
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert [m.value for m in messages(store)] == [b"parent", b"later"]
    assert done.stdout.startswith("ForkedProducer\n")
    assert done.stdout.endswith("\n0\n")

"""`Reader(url)` gives what `Reader(path)` gives, and goes on when the server comes back."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import Reader
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.errors import (
    AccessDenied,
    CorruptRecord,
    DataLoss,
    IllegalArgument,
    OffsetOutOfRange,
    OptionError,
    ReaderError,
    ReadingWarning,
    ServerUnavailable,
    UnknownTopic,
)
from commitlog.message import Message
from commitlog.remote import fetching, flight_connection
from commitlog.remote.served_messages import ServedMessages
from commitlog.serving.access import Access, add_token, remove_token
from commitlog.serving.server_processes import Server
from tests.builders.hand_made import V6, HandMadeStore, small_store
from tests.builders.vector_store import load
from tests.namespaces import started_again
from tests.nightly import with_nightly
from tests.served import by_url, forget_connection, place_of
from tests.serving.asking import address_of, kill_process, server_of, url_of_store
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _looks_each_time(look_each_time: None) -> None:
    """A stopped store that a test changes is read again at once."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of a small store, which a test may kill."""
    small_store(tmp_path / "store")
    with server_of([tmp_path / "store"]) as running:
        yield running
        forget_connection(address_of(running))


def url_of(path: Path, base: str) -> str:
    with by_url(base):
        return place_of(path)


def both(path: Path, base: str, *arguments: Any, **options: Any) -> tuple[list[Message], list[Message]]:
    """All messages by path, and by URL."""
    found = []
    for place in (path, url_of(path, base)):
        with Reader(place, *arguments, **options) as reader:
            found.append(list(reader))
    return found[0], found[1]


def varied_store(path: Path) -> HandMadeStore:
    """Three lanes of three topics: keys, tags, headers, no value, hosts of IPv6, packed values."""
    store = HandMadeStore(path)
    for lane in range(3):
        made = store.lane(lane)
        for number in range(40):
            made.append("orders", b"%d.%d" % (lane, number), key=f"k{number}", properties={"trace": "x"})
            if number % 3 == lane:
                made.append("clicks", b"p\xff", tags="red")
            if number % 7 == 0:
                made.append("far", b"", born=V6, stored=V6)
                made.append("orders", zlib.compress(b"packed" * 9), sys_flag=1)
        made.dispatch(30)
    store.publish()
    return store


# ---- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        (None, {}),
        ("orders", {}),
        (["orders", "far"], {"lanes": {0, 2}}),
        ("clicks", {"members": (1, 2)}),
        ("orders", {"start": "last 3"}),
        ("orders", {"start": {"orders": {0: 30, 1: -1}}}),
        ("orders", {"start": "2023-11-14T22:14:00+00:00"}),
        (None, {"start": "latest"}),
        ("orders", {"isolation": "committed"}),
    ],
)
def test_the_same_messages(tmp_path: Path, served_base: str, topic: Any, options: dict[str, Any]) -> None:
    """All fields of them, in the same order."""
    by_path, far = both(varied_store(tmp_path / "store").path, served_base, topic, **options)
    assert far == by_path
    assert [message.properties for message in far] == [message.properties for message in by_path]
    assert pickle.loads(pickle.dumps(far)) == by_path


@pytest.mark.nightly
def test_pieces_of_any_size(tmp_path: Path, served_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are merged however few messages of each are there at a time."""
    path = varied_store(tmp_path / "store").path
    for rows, most in ((1, 1), (2, 300), (7, 1 << 20)):
        monkeypatch.setattr(fetching, "_FIRST_ROWS", rows)
        monkeypatch.setattr(fetching, "_PIECE_BYTES_MOST", most)
        monkeypatch.setattr(fetching, "_PIECE_BYTES_LEAST", most)
        by_path, far = both(path, served_base)
        assert far == by_path


@pytest.mark.parametrize("name", ["v1_basic", "transactions", "rolls"])
def test_a_rocketmq_root(name: str, tmp_path: Path, served_base: str) -> None:
    by_path, far = both(load(name).unpack(tmp_path / "root"), served_base)
    assert far == by_path != []


def test_light_queues(tmp_path: Path, served_base: str) -> None:
    """Their messages have the queue's own name, lane and offsets."""
    root = load("v1_basic").unpack(tmp_path / "root")
    with Reader(root) as reader:
        some = list(reader)[3:30:5]
    record_bytes = [len(_record_at(root, message.physical_offset)) for message in some]
    with closing(ConsumeQueue(root / "consumequeue" / "%LMQ%device" / "0", 2000)) as queue:
        queue.place(range(len(some)), [one.physical_offset for one in some], record_bytes, [0] * len(some))
    by_path, far = both(root, served_base, "%LMQ%device")
    assert [(one.topic, one.partition, one.offset) for one in far] == [("%LMQ%device", 0, n) for n in range(len(some))]
    assert far == by_path
    assert both(root, served_base, "%LMQ%device", ignore_corrupt=True)[1] == far


def _record_at(root: Path, where: int) -> bytes:
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    return log[where : where + int.from_bytes(log[where : where + 4], "big")]


def test_a_value_that_does_not_unpack(tmp_path: Path, served_base: str) -> None:
    """It is an error each time it is looked at, or left out, and hides no other message."""
    store = HandMadeStore(tmp_path / "store")
    for value, flag in ((b"first", 0), (zlib.compress(bytes(5 << 20)), 1), (b"last", 0)):
        store.lane(0).append("orders", value, sys_flag=flag)
        store.lane(1).append("orders", value)
    store.publish()
    with Reader(url_of(store.path, served_base), "orders") as reader:
        assert [next(reader).offset for _ in range(2)] == [0, 0]
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=r"topic orders, lane 0: the ZLIB body .*ignore_corrupt"):
                next(reader)
    with pytest.warns(ReadingWarning, match="corrupt"):
        by_path, far = both(store.path, served_base, "orders", ignore_corrupt=True)
    assert far == by_path


@pytest.mark.nightly
def test_many_messages_that_no_memory_holds_at_once(
    tmp_path: Path, served_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads ahead waits for the user's."""
    monkeypatch.setattr(fetching, "AHEAD_BYTES", 10_000)
    monkeypatch.setattr(fetching, "_PIECE_BYTES_LEAST", 1_000)
    store = small_store(tmp_path / "store", rows=2_000)
    with Reader(url_of(store.path, served_base), "orders") as reader:
        first = next(reader)
        assert isinstance(reader._source, ServedMessages)
        ahead = reader._source._fetching
        assert ahead is not None
        wait_until(lambda: ahead._ahead_bytes >= fetching.AHEAD_BYTES, "it is ahead")
        assert ahead._ahead_bytes < 4 * fetching.AHEAD_BYTES
        assert [first, *reader] == list(Reader(store.path, "orders"))


# ---- following -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*was not stopped properly")  # it may look while a lane is made by hand
def test_a_follower(tmp_path: Path, served_base: str) -> None:
    """New messages, a new lane, and a topic that was not there; `poll` comes back in time."""
    store = small_store(tmp_path / "store")
    with pytest.warns(ReadingWarning, match="no topic later yet"):
        reader = Reader(url_of(store.path, served_base), ["orders", "later"], start="latest", follow=True)
    with reader:
        assert reader.poll() is None
        assert reader.poll(0.05) is None
        store.lane(0).append("later", b"first")
        store.lane(7).append("orders", b"new lane")
        store.publish()
        assert {message.value for message in islice(reader, 2)} == {b"first", b"new lane"}
    assert reader.poll(1) is None
    assert reader.closed


def test_a_running_store(tmp_path: Path, served_base: str) -> None:
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        producer.send("orders", b"before")
        producer.flush()
        with Reader(url_of(tmp_path / "store", served_base), "orders", follow=True) as reader:
            assert next(reader).value == b"before"
            for number in range(20):
                producer.send("orders", b"%d" % number)
                assert next(reader).value == b"%d" % number


def test_close_ends_a_next_that_waits(tmp_path: Path, served_base: str) -> None:
    """In another thread, at once."""
    store = small_store(tmp_path / "store")
    reader = Reader(url_of(store.path, served_base), "orders", start="latest", follow=True)
    found: list[Message] = []
    thread = threading.Thread(target=lambda: found.extend(reader))
    thread.start()
    wait_until(lambda: reader._source.is_waiting, "it waits")
    reader.close()
    thread.join(10)
    assert not thread.is_alive()
    assert found == []


def test_the_event_loop_is_not_blocked(tmp_path: Path, served_base: str, server: Server) -> None:
    """Not by a server that is away, either."""
    url = url_of_store(server)

    async def follow() -> list[bytes]:
        with Reader(url, "orders", follow=True) as reader:
            found = [message.value async for message in _first(reader, 50)]
            kill_process(server)
            began, turns = time.monotonic(), 0
            task = asyncio.create_task(anext(reader))
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 1 or time.monotonic() - began < 0.1
            return [*found, (await task).value, *[message.value async for message in _first(reader, 149)]]

    async def _first(reader: Reader, count: int) -> Any:
        for _ in range(count):
            yield await anext(reader)

    path = Path(server.settings.stores["store"])
    assert asyncio.run(follow()) == [message.value for message in Reader(path, "orders")]


def test_a_program_that_does_not_close_it(tmp_path: Path, served_base: str) -> None:
    """It ends soon, without a word of gRPC's or of the interpreter's."""
    store = small_store(tmp_path / "store")
    program = f"""
import commitlog
reader = commitlog.Reader({url_of(store.path, served_base)!r}, "orders", name="billing", follow=True)
for _ in range(200):
    message = next(reader)
reader.commit(message)
assert reader.poll(0.1) is None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_is_told(tmp_path: Path, served_base: str) -> None:
    store = small_store(tmp_path / "store")
    with Reader(url_of(store.path, served_base), "orders") as reader:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                list(reader)
            except ReaderError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            assert b"made before a fork" in pipe.read()
        assert len(list(reader)) == 200


# ---- a server that is away -----------------------------------------------------------------------


def test_a_server_that_is_killed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader goes on exactly where it was, in the middle of the messages and at their end."""
    monkeypatch.setattr(fetching, "AHEAD_BYTES", 1)
    monkeypatch.setattr(fetching, "_PIECE_BYTES_LEAST", 300)
    path = Path(server.settings.stores["store"])
    with Reader(url_of_store(server), follow=True) as reader:
        found = list(islice(reader, 100))
        kill_process(server)
        found += islice(reader, 300)
        kill_process(server)
        assert reader.poll(1) is None
    assert found == list(Reader(path))


def test_a_server_that_does_not_come_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it is an error, which stays."""
    for module in (fetching, flight_connection):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)
    with Reader(url_of_store(server), "orders", start="latest", follow=True) as reader:
        server.close()
        with pytest.raises(ServerUnavailable):
            next(reader)
        with pytest.raises(ReaderError, match="this reader ended with ServerUnavailable"):
            next(reader)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ServerUnavailable):
        Reader("commitlog://127.0.0.1:1/store")


# ---- loss and damage -----------------------------------------------------------------------------


def test_retention_that_is_faster(tmp_path: Path, served_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AHEAD_BYTES", "_FIRST_ROWS", "_PIECE_BYTES_LEAST", "_PIECE_BYTES_MOST"):  # never ahead of retention
        monkeypatch.setattr(fetching, name, 1)
    store = HandMadeStore(tmp_path / "store", segment_bytes=4096)
    for number in range(200):
        store.lane(0).append("orders", b"%d" % number)
    store.publish()
    with Reader(url_of(store.path, served_base), "orders", follow=True) as reader:
        assert next(reader).value == b"0"
        store.lane(0).forget_before(4)
        store.lane(0).publish(first=4 * 4096)
        with pytest.raises(DataLoss, match="topic orders, lane 0"):
            list(islice(reader, 200))


@pytest.mark.parametrize("ignore_corrupt", [False, True])
def test_a_damaged_record(tmp_path: Path, served_base: str, ignore_corrupt: bool) -> None:
    """All good messages before it and of other lanes, then the error; or on behind it."""
    store = small_store(tmp_path / "store", topics=("orders",))
    record = next(one for one in store.lane(1).records if one.queue_offset == 40)
    path = store.directory.lane_directory(1).segment_path(0)
    with path.open("r+b") as file:
        file.seek(record.physical_offset + record.total_size - 30)
        damaged = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([damaged[0] ^ 1]))
    options = {"ignore_corrupt": ignore_corrupt}
    if ignore_corrupt:
        with pytest.warns(ReadingWarning, match="corrupt"):
            by_path, far = both(store.path, served_base, "orders", **options)
        assert far == by_path
        assert len(far) == 199
        return
    with Reader(url_of(store.path, served_base), "orders") as reader:
        found: list[Message] = []
        for _ in range(2):
            with pytest.raises(CorruptRecord, match="offset 40"):
                found.extend(iter(lambda: next(reader), None))
        assert {lane: sum(one.partition == lane for one in found) for lane in (0, 1)} == {0: 100, 1: 40}
        with path.open("r+b") as file:  # somebody heals it
            file.seek(record.physical_offset + record.total_size - 30)
            file.write(damaged)
        assert [one.offset for one in reader] == list(range(40, 100))


@pytest.mark.parametrize("is_restored", with_nightly([False], [True]))
def test_a_store_that_is_replaced(tmp_path: Path, server: Server, is_restored: bool) -> None:
    """By another one, or by a copy of it that is as long."""
    path, other = tmp_path / "store", tmp_path / "other"
    if is_restored:
        shutil.copytree(path, other)
    else:
        small_store(other, rows=300)
    with Reader(url_of_store(server), "orders", follow=True) as reader:
        assert len(list(islice(reader, 200))) == 200
        (pid,) = server.pids
        os.kill(pid, signal.SIGSTOP)  # it never sees that there is none
        path.rename(tmp_path / "broken")
        other.rename(path)
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(DataLoss, match="restored copy" if is_restored else "another store"):
            next(reader)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", with_nightly(["committed"], ["flushed"]))
def test_a_machine_that_was_started_again(tmp_path: Path, isolation: Any) -> None:
    """What was committed may be lost then, and new messages have its offsets: nobody could tell."""
    store = small_store(tmp_path / "store").path
    with server_of([store]) as before:
        reader = Reader(url := url_of_store(before), "orders", isolation=isolation, follow=True)
        assert len(list(islice(reader, 200))) == 200

    def serve() -> None:
        with server_of([store], listen=f"127.0.0.1:{before.ports[0]}"):
            wait_until((tmp_path / "done").exists, "the reader has read")

    with ThreadPoolExecutor() as threads, closing(reader):
        machine = threads.submit(started_again, tmp_path, serve)
        try:
            if isolation == "flushed":
                assert commitlog.read(url, "orders").count() == 200  # it is there
                assert reader.poll(1) is None
            else:
                with pytest.raises(DataLoss, match="its machine was started again"):
                    reader.poll(60)
        finally:
            (tmp_path / "done").touch()
            machine.result()


def test_what_is_refused(tmp_path: Path, served_base: str) -> None:
    url = url_of(small_store(tmp_path / "store").path, served_base)
    root = url_of(load("v1_basic").unpack(tmp_path / "root"), served_base)
    wrong: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        (url, {"isolation": "wrong"}, IllegalArgument, "isolation"),
        (url, {"topic": "missing"}, UnknownTopic, "missing"),
        (url, {"start": 201}, OffsetOutOfRange, "201"),
        (url, {"start": {"nowhere": {0: 3}}}, OffsetOutOfRange, "nowhere"),
        (url, {"token": "t", "token_file": "f"}, IllegalArgument, "only one"),
        (url, {"ca_file": "f"}, IllegalArgument, "ca_file"),
        (str(tmp_path / "store"), {"token": "t"}, IllegalArgument, "served store"),
        (url, {"name": "../x"}, OptionError, "not a reader's name"),
        (url, {"auto_commit_seconds": 1}, OptionError, "only a reader with a name"),
        (root, {"follow": True}, OptionError, "RocketMQ store root"),
        (root, {"name": "billing"}, OptionError, "RocketMQ store root"),
    ]
    for place, options, error, text in wrong:
        with pytest.raises(error, match=text):
            Reader(place, **options)


@pytest.mark.nightly
def test_tokens(tmp_path: Path) -> None:
    """Only topics of the token; and once it is taken back, an error at the next batch."""
    store, file = small_store(tmp_path / "store"), tmp_path / "tokens.json"
    token, writer = (
        add_token(file, Access("billing", ("orders",))),
        add_token(file, Access("w", read=False, write=True)),
    )
    with server_of([store.path], tokens=file) as server:
        url = url_of_store(server)
        with Reader(url, token=token) as reader:
            assert {message.topic for message in reader} == {"orders"}
        refused: list[dict[str, Any]] = [
            {},
            {"token": "clog_wrong"},
            {"token": writer},
            {"token": token, "topic": "other"},
        ]
        for given in refused:
            with pytest.raises(AccessDenied):
                Reader(url, **given)
        with Reader(url, "orders", start="latest", follow=True, token=token) as reader:
            assert reader.poll() is None
            remove_token(file, "billing")
            with pytest.raises(AccessDenied):
                next(reader)
        for given_token in (None, token, writer, "clog_wrong"):
            forget_connection(address_of(server, token=given_token))


def test_a_reader_that_is_asked_for_its_place_first(tmp_path: Path, served_base: str) -> None:
    """It looks which queues there are, and then has messages at once, and all of them."""
    store = small_store(tmp_path / "store")
    with Reader(url_of(store.path, served_base), "orders", follow=True) as reader:
        assert reader.position() == {"orders": {0: 0, 1: 0}}
        assert isinstance(reader._source, ServedMessages)
        ahead = reader._source._fetching
        assert ahead is not None
        wait_until(lambda: ahead._waits, "its thread waits at the server")
        assert list(islice(reader, 200)) == list(Reader(store.path, "orders"))

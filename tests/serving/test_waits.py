"""A client that asks what is new: a server answers when something is, and not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import commitlog
from commitlog.planning.address import parse_address
from commitlog.remote import requests
from commitlog.remote.remote_index import RemoteIndex
from commitlog.serving import answers, flush_notices
from commitlog.serving.flight_server import FlightServer
from commitlog.serving.limits import Places
from commitlog.serving.served_store import ServedStore
from commitlog.spark import server_wait
from commitlog.spark.server_wait import SHORT_WAIT_MS, ServerWait
from commitlog.spark.source import CommitLogDataSource, StreamReader
from tests.builders.hand_made import small_store
from tests.fake_clock import SetClock
from tests.waiting import wait_until

LONG_MS = 60_000
"""A wait that only new rows end."""
START, END = {"orders": {"0": 1}}, {"orders": {"0": 2}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path_factory.mktemp("waits") / "store") as opened:
        yield opened


@pytest.fixture
def store(running: commitlog.Store, orders: str, monkeypatch: pytest.MonkeyPatch) -> commitlog.Store:
    """A running store with a message of topic `orders`, where servers wait for long."""
    monkeypatch.setattr(requests, "WAIT_MS_MAX", LONG_MS)
    monkeypatch.setattr(flush_notices, "LOOK_SECONDS", LONG_MS / 1000)
    append(running, orders)
    return running


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return str(request.node.name)


@pytest.fixture
def server(store: commitlog.Store) -> Iterator[FlightServer]:
    served = ServedStore("store", store.path)
    with FlightServer("grpc://127.0.0.1:0", {"store": served}) as running, closing(served):
        yield running


def append(store: commitlog.Store, topic: str) -> None:
    with commitlog.Producer(store.path) as producer:
        producer.send(topic, b"one").wait()


def end_of(index: RemoteIndex, topic: str) -> int:
    return sum(queue.end for queue in index.ranges(topic).values())


def url_of(server: FlightServer) -> str:
    return f"commitlog://127.0.0.1:{server.port}/store"


def calls(server: FlightServer) -> int:
    """The calls that the server has answered."""
    return server.traffic.by_store().get("store", {}).get("everybody", {}).get("calls", 0)


def during(wait: Callable[[], Any], act: Callable[[], None], server: FlightServer) -> Any:
    """What `wait` returns, while it waits for what `act` does."""
    (served,) = server._stores.values()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        wait_until(lambda: served.notices._waiting == 1, "the server waits")
        act()
        return waiting.result(LONG_MS / 1000)


def test_an_idle_client_is_answered_when_there_is_something_new(
    server: FlightServer, store: commitlog.Store, orders: str
) -> None:
    index = RemoteIndex(parse_address(url_of(server)), topics=(orders,))
    assert index.refresh(LONG_MS)  # the first look never waits
    assert not index.refresh()
    before = calls(server)
    for number in range(2, 5):
        assert during(lambda: index.refresh(LONG_MS), lambda: append(store, orders), server)
        assert end_of(index, orders) == number
    assert calls(server) == before + 3


def test_the_client_of_a_quiet_topic_hears_nothing_of_others(
    server: FlightServer, store: commitlog.Store, orders: str
) -> None:
    index = RemoteIndex(parse_address(url_of(server)), topics=(orders,))
    index.refresh()

    def act() -> None:
        for _ in range(5):
            append(store, f"{orders}-other")
        append(store, orders)

    before = calls(server)
    assert during(lambda: index.refresh(LONG_MS), act, server)
    assert calls(server) == before + 1
    append(store, f"{orders}-other")
    assert not index.refresh()


def test_an_idle_stream_asks_once_and_waits(
    server: FlightServer, store: commitlog.Store, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_wait, "WAIT_MS_MAX", LONG_MS)
    monkeypatch.setattr(server_wait, "AT_ONCE_NS", LONG_MS * 1_000_000)
    source = CommitLogDataSource({"path": url_of(server), "subscribe": orders})
    of: StreamReader = source.streamReader(source.schema())
    start, most = of.initialOffset(), ReadAllAvailable()
    for _ in range(1 + server_wait.SHORT_WAITS):
        assert of.latestOffset(start, most) == start
    before = calls(server)
    end = during(lambda: of.latestOffset(start, most), lambda: append(store, orders), server)
    assert end[orders] == {"0": 2}
    assert calls(server) == before + 1
    of.stop()


def test_rows_of_a_store_that_is_started_meanwhile(tmp_path: Path) -> None:
    """Nobody tells of the start, so the server looks now and then."""
    made = small_store(tmp_path / "store")
    served = ServedStore("store", made.path)
    with FlightServer("grpc://127.0.0.1:0", {"store": served}) as server, closing(served):
        index = RemoteIndex(parse_address(url_of(server)), topics=("orders",))
        index.refresh()
        with commitlog.Store.open(made.path) as store:
            append(store, "orders")
            wait_until(lambda: index.refresh(500) and end_of(index, "orders") == 201)


def idle_round(clock: SetClock, sources: list[ServerWait]) -> list[int]:
    """Asks one source after the other, as Spark does while nothing is new. Returns their waits."""
    waits = []
    for wait in sources:
        waits.append(wait.milliseconds(START))
        clock.sleep(waits[-1] / 1000)
        wait.answered(START, START)
    clock.sleep(0.012)  # Spark's polling delay, and a little
    return waits


def test_a_query_with_one_source_may_be_kept_waiting() -> None:
    """Once it has been told "nothing new" some times, and was back at once each time."""
    clock = SetClock()
    wait = ServerWait(clock)
    waits = [idle_round(clock, [wait])[0] for _ in range(8)]
    assert waits[0] == 0
    assert set(waits[1:4]) == {SHORT_WAIT_MS}
    assert set(waits[5:]) == {requests.WAIT_MS_MAX}
    assert wait.milliseconds(END) == 0
    clock.sleep(0.1)  # a trigger interval, or a batch
    assert wait.milliseconds(START) == SHORT_WAIT_MS
    wait.answered(START, END)
    assert wait.milliseconds(END) == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sources_of_one_query_do_not_keep_each_other_waiting(count: int) -> None:
    clock = SetClock()
    sources = [ServerWait(clock) for _ in range(count)]
    assert max(max(idle_round(clock, sources)) for _ in range(100)) == SHORT_WAIT_MS


def test_a_source_that_learns_of_others_from_a_batch() -> None:
    """They may be of another format, which answers at once."""
    clock = SetClock()
    wait = ServerWait(clock)
    wait.committed(END)
    assert [idle_round(clock, [wait])[0] for _ in range(8)][-1] == requests.WAIT_MS_MAX
    wait.committed(END)
    assert {idle_round(clock, [wait])[0] for _ in range(8)} == {SHORT_WAIT_MS}


def test_rows_of_a_source_while_another_one_is_idle(
    server: FlightServer, store: commitlog.Store, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a server would wait for a minute."""
    monkeypatch.setattr(server_wait, "WAIT_MS_MAX", LONG_MS)
    append(store, f"{orders}-other")
    readers, ends = [], []
    for topic in (orders, f"{orders}-other"):
        source = CommitLogDataSource({"path": url_of(server), "subscribe": topic})
        readers.append(source.streamReader(source.schema()))
        ends.append(readers[-1].initialOffset())
    for idle_rounds in range(20):
        if idle_rounds == 10:
            append(store, orders)
        ends = [reader.latestOffset(end, ReadAllAvailable()) for reader, end in zip(readers, ends, strict=True)]
    assert ends[0][orders] == {"0": 2}
    for reader in readers:
        reader.stop()


def test_a_wait_is_ended_by_its_name(server: FlightServer, orders: str) -> None:
    """By a request of the same name that does not wait, as a reader's `close` sends it."""
    waiting, other = (RemoteIndex(parse_address(url_of(server)), topics=(orders,)) for _ in range(2))
    for index in (waiting, other):
        index.refresh()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(waiting.refresh, LONG_MS, "one")
        store = server.store("store")
        wait_until(lambda: store.notices.waiting, "it waits")
        other.end_wait("another")
        assert store.notices.waiting
        assert not found.done()
        other.end_wait("one")
        assert found.result(60) is False
        assert not store.notices.is_ended("one")


def test_those_who_wait_for_quiet_topics_share_the_looks(
    store: commitlog.Store, server: FlightServer, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each notice of a busy store is not a look for each of them."""
    looks: list[str] = []
    plain = answers._look

    def counted(*asked: Any) -> Any:
        looks.append(orders)
        return plain(*asked)

    monkeypatch.setattr(answers, "_look", counted)
    served = server.store("store")
    index = RemoteIndex(parse_address(url_of(server)), topics=(orders,))
    index.refresh()
    with ThreadPoolExecutor(20) as pool:
        waits = [pool.submit(_wait, url_of(server), orders) for _ in range(20)]
        wait_until(lambda: served.notices.waiting == 20, "all wait")
        looks.clear()
        before = served.notices.count
        with commitlog.Producer(store.path) as producer:
            for _ in range(50):
                producer.send("busy", b"x").wait()
        wait_until(lambda: served.notices.count > before, "notices come")
        assert len(looks) < 20 * 50 / 2
        append(store, orders)
        assert all(wait.result(60) for wait in waits)


def _wait(url: str, topic: str) -> bool:
    index = RemoteIndex(parse_address(url), topics=(topic,))
    index.refresh()
    return index.refresh(LONG_MS)


def test_a_reader_for_which_no_wait_is_left_asks_now_and_then(server: FlightServer, orders: str) -> None:
    """The server answers at once then, and must not be asked at once again."""
    server.limits.waits = Places("waiting calls", 0)
    with commitlog.Reader(url_of(server), orders, start="latest", follow=True) as reader:
        assert reader.poll() is None
        before = calls(server)
        assert reader.poll(1) is None
        assert 0 < calls(server) - before < 30

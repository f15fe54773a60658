"""Calls that take long: what is too much is refused, and work for a client that is gone ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

from commitlog.columns.read_plan import ReadPlan
from commitlog.errors import AccessDenied, CommitLogError, ServerBusy, UnknownTopic
from commitlog.reading.topic_index import TopicIndex
from commitlog.remote import requests
from commitlog.remote.remote_rows import ticket_of
from commitlog.remote.server_errors import from_bytes
from commitlog.serving import flight_server, flights
from commitlog.serving.flight_server import FlightServer
from commitlog.serving.limits import Places
from commitlog.serving.served_store import ServedStore
from tests.builders.hand_made import HandMadeStore, small_store
from tests.serving.asking import SCHEMA
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_segments_mapped")
TOPICS = tuple(f"t{number}" for number in range(300))


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """Many queues, with two messages each."""
    return small_store(tmp_path / "store", 2, 1, TOPICS)


@pytest.fixture
def server(store: HandMadeStore) -> Iterator[FlightServer]:
    served = ServedStore("store", store.path)
    with FlightServer("grpc://127.0.0.1:0", {"store": served}) as running, closing(served):
        yield running


def _command(options: dict[str, str]) -> bytes:
    return orjson.dumps({"subscribe": ",".join(TOPICS), **options})


TIMES = orjson.dumps({"store": "store", "times": [(name, 0, 1) for name in TOPICS]})
CALLS = {
    "find_by_times": f"list(client.do_action(flight.Action('find_by_times', {TIMES!r})))",
    "a plan": f"client.get_flight_info(flight.FlightDescriptor.for_command({_command({'startingTimestamp': '1'})!r}))",
}


@pytest.mark.parametrize("kind", CALLS)
def test_work_for_a_client_that_is_gone_ends(server: FlightServer, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits any more for what takes seconds, and the index is free for others."""
    looked, place = list[str](), f"grpc://127.0.0.1:{server.port}"

    def find_slowly(_: TopicIndex, topic: str, _lane: int, _ms: int) -> int:
        looked.append(topic)
        threading.Event().wait(0.05)  # a slow disk
        return 0

    monkeypatch.setattr(TopicIndex, "find_by_time", find_slowly)
    program = f"from pyarrow import flight; client = flight.connect('{place}'); {CALLS[kind]}"
    with subprocess.Popen([sys.executable, "-c", program]) as killed:
        wait_until(lambda: bool(looked), "the server works for the client")
        killed.kill()
    wait_until(lambda: bool(server.traffic.by_store()), "the call ends")
    assert len(looked) < len(TOPICS)
    with flight.connect(place) as client:
        assert list(client.do_action(flight.Action("look", b'{"store": "store"}')))


@pytest.mark.parametrize("options", [{"minPartitions": "99"}, {"maxRecordsPerPartition": "1"}])
def test_many_endpoints_are_refused(
    server: FlightServer, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory here and in the answer: a large topic has as many as it has messages."""
    monkeypatch.setattr(flights, "ENDPOINTS_MAX", 10)
    with (
        flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
        pytest.raises(flight.FlightServerError, match=r"minPartitions, .*: (99|600) parts; allowed are 10"),
    ):
        client.get_flight_info(flight.FlightDescriptor.for_command(_command(options)))


def test_a_stream_needs_the_place_of_a_call_until_its_rows_are_planned(
    server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many streams that are opened at a time take no more of the index than other calls do.

    One that appends needs the place for as long as its request is read.
    """
    began, go_on = threading.Event(), threading.Event()

    def plan_slowly(*_: object) -> None:
        began.set()
        go_on.wait()
        raise UnknownTopic("none")

    monkeypatch.setattr(flight_server, "_plan", plan_slowly)
    server.limits.actions = Places("open calls", 2)
    ticket = ticket_of(ReadPlan("", "", 0, ()), SCHEMA, "store")

    def refused(call: Callable[[flight.FlightClient], object]) -> CommitLogError | None:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client, pytest.raises(flight.FlightError) as error:
            call(client)
        return from_bytes(error.value.extra_info)

    def read(client: flight.FlightClient) -> object:
        return client.do_get(flight.Ticket(ticket), flight.FlightCallOptions(timeout=120)).read_all()

    def append(client: flight.FlightClient) -> None:
        request = flight.FlightDescriptor.for_command(orjson.dumps(requests.Append("store", "orders")))
        writer, reader = client.do_put(request, pa.schema([]), flight.FlightCallOptions(timeout=120))
        reader.read()
        writer.close()

    with ThreadPoolExecutor() as threads:
        first = threads.submit(refused, read)
        began.wait()
        try:
            assert isinstance(refused(read), ServerBusy)
            assert isinstance(refused(append), ServerBusy)
        finally:
            go_on.set()
        assert isinstance(first.result(), UnknownTopic)
    assert isinstance(refused(append), AccessDenied)

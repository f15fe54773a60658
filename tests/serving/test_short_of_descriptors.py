"""A server whose descriptors somebody else holds for a moment: its clients wait, and go on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import psutil
import pytest

import commitlog
from commitlog.errors import CommitLogError, ServerBusy
from commitlog.planning.address import Address, parse_address
from commitlog.remote import flight_connection
from commitlog.remote.server_errors import translated
from commitlog.serving.server_processes import Server
from tests.builders.hand_made import small_store
from tests.served import forget_connection
from tests.serving.asking import address_of, client_of, server_of, url_of_store


class Shortage:
    """Leaves a server's process a few descriptors, until it has refused a call."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        (pid,) = server.pids
        self.complaints: list[CommitLogError] = []
        self._process = psutil.Process(pid)
        self._limit = self._process.rlimit(psutil.RLIMIT_NOFILE)
        monkeypatch.setattr(flight_connection, "translated", self._refused)

    def begin(self, left: int = 0) -> None:
        open_now = {int(file.name) for file in Path(f"/proc/{self._process.pid}/fd").iterdir()}
        free = (number for number in count() if number not in open_now)
        self._process.rlimit(psutil.RLIMIT_NOFILE, (next(islice(free, left, None)), self._limit[1]))

    def end(self) -> None:
        self._process.rlimit(psutil.RLIMIT_NOFILE, self._limit)

    def _refused(self, error: Exception, address: Address) -> CommitLogError:
        complaint = translated(error, address)
        self.complaints.append(complaint)
        self.end()
        return complaint


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 20}}) as opened:
        with opened.producer() as producer:
            producer.send_batch("orders", [b"an apple"] * 8)
        yield opened


@pytest.fixture
def server(store: commitlog.Store) -> Iterator[Server]:
    with server_of([store.path], writable=True) as running:
        yield running
        forget_connection(parse_address(url_of_store(running)))


@pytest.mark.nightly
def test_a_read_goes_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = url_of_store(server)
    assert commitlog.read(url, "orders").count() == 8
    shortage = Shortage(server, monkeypatch)
    shortage.begin()
    assert commitlog.read(url, "orders").to_arrow()["value"].to_pylist() == [b"an apple"] * 8
    assert [type(complaint) for complaint in shortage.complaints] == [ServerBusy]


def test_a_named_reader_goes_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with commitlog.Reader(url_of_store(server), "orders", name="shipping") as reader:
        next(reader)
        shortage = Shortage(server, monkeypatch)
        for left in range(5):  # so another step of the commit fails
            shortage.begin(left)
            reader.commit()
            shortage.end()
            next(reader)
        assert reader.committed() == {"orders": {0: 5}}
    assert {type(complaint) for complaint in shortage.complaints} == {ServerBusy}


def test_the_text_is_about_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who reads it can't do what the server's own error says. The server's log has that one."""
    with server_of([small_store(tmp_path / "store").path]) as server, client_of(address_of(server)) as client:
        ticket = client.ticket()
        shortage = Shortage(server, monkeypatch)
        shortage.begin()
        with pytest.raises(ServerBusy, match="the server has no file descriptor for it; try again"):
            next(client.connection.read(ticket, patient=False))
        assert len(client.rows(ticket)) > 0
    assert "ulimit -n" in capfd.readouterr().err

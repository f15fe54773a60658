"""Named readers by URL: a position in the store, a name that one client holds, refusals."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commitlog import Reader
from commitlog.cli.app import app
from commitlog.errors import (
    AccessDenied,
    CommitLogError,
    DataLoss,
    ReaderError,
    ReaderInUse,
    ReadingWarning,
    ServerBusy,
    ServerUnavailable,
)
from commitlog.message import Message
from commitlog.reading.named_reader import PYTHON, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.reader_position import seek
from commitlog.reading.topic_index import current_index
from commitlog.reading.view import StoreView
from commitlog.remote import leased_position, requests
from commitlog.serving import served_store
from commitlog.serving.access import EVERYTHING, Access, add_token
from commitlog.serving.served_store import ServedStore
from commitlog.serving.server_processes import Server
from tests.builders.hand_made import HandMadeStore, small_store
from tests.nightly import with_nightly
from tests.served import by_url, forget_connection, place_of
from tests.serving.asking import Certificates, address_of, kill_process, server_of, url_of_store
from tests.waiting import wait_until

PEER = "127.0.0.1:1"
HOLDER = """
import sys, commitlog
reader = commitlog.Reader(sys.argv[1], "orders", name="billing", follow=True)
message = next(reader)
reader.commit()
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` and of `other` in each of two lanes."""
    return small_store(tmp_path / "store")


@pytest.fixture
def server(store: HandMadeStore, look_each_time: None) -> Iterator[Server]:
    with server_of([store.path]) as running:
        yield running
        forget_connection(address_of(running))


@pytest.fixture
def url(server: Server) -> str:
    return url_of_store(server)


def position(store: HandMadeStore, name: str = "billing") -> dict[str, dict[int, int]]:
    return {topic: dict(lanes) for topic, lanes in NamedReaders(store.directory).load(name).offsets.items()}


def billing(place: str | Path, **options: Any) -> Reader:
    return Reader(place, "orders", name="billing", **options)


# ---- the position --------------------------------------------------------------------------------


def test_it_goes_on_where_it_was(store: HandMadeStore, url: str) -> None:
    """By URL and by path in turn. What was not committed comes again."""
    found: list[Message] = []
    for place in (url, store.path, url, url):
        with billing(place) as reader:
            assert reader.committed() == position(store)
            found += islice(reader, 30)
            reader.commit()
            assert reader.committed() == reader.position() == position(store)
            next(reader)
    assert found == list(islice(Reader(store.path, "orders"), 120))
    assert NamedReaders(store.directory).load("billing").kind == PYTHON


def test_one_message_is_committed(store: HandMadeStore, url: str) -> None:
    with billing(url) as reader:
        first, second, third = islice(reader, 3)
        reader.commit(second)
        assert position(store)["orders"][second.partition] == second.offset + 1
        with pytest.raises(ReaderError, match="was not given out by this reader"):
            reader.commit(list(Reader(store.path, "orders"))[50])
        assert first.partition != second.partition or third


@pytest.mark.nightly
def test_automatic_commits(store: HandMadeStore, url: str) -> None:
    """The last message counts when another one was asked for."""
    with billing(url, auto_commit_seconds=0) as reader:
        assert len(list(islice(reader, 200))) == 200
        assert sum(position(store)["orders"].values()) == 199
    with billing(url, auto_commit_seconds=3600) as reader:
        assert len(list(reader)) == 1
    assert position(store) == {"orders": {0: 100, 1: 100}}


@pytest.mark.parametrize("options", with_nightly([{"topic": "orders", "lanes": {0}}], [{"topic": "other"}]))
def test_a_place_is_not_forgotten_without_a_word(store: HandMadeStore, url: str, options: Any) -> None:
    """Of topics or lanes that the reader does not read any more."""
    with billing(url) as reader:
        list(reader)
        reader.commit()
    with pytest.raises(ReaderError, match="has places that it does not read now: topic orders, lane"):
        Reader(url, name="billing", **options)
    assert position(store) == {"orders": {0: 100, 1: 100}}


@pytest.mark.nightly
def test_members_and_topics_are_kept(store: HandMadeStore, url: str) -> None:
    """Retention has to know what the reader does not need."""
    with Reader(url, name="all", members=(1, 2)) as reader:
        assert {message.partition for message in reader} == {1}
        reader.commit()
    known = NamedReaders(store.directory).load("all")
    assert (known.all_topics, known.lanes.member) == (True, (1, 2))
    assert known.offsets == {"orders": {1: 100}, "other": {1: 100}}
    with billing(url, lanes={0}) as reader:
        assert {message.partition for message in reader} == {0}
    assert known.offset("orders", 0) is None


def test_messages_that_were_deleted(tmp_path: Path, served_base: str) -> None:
    """While the reader was stopped: DataLoss, or on with a warning."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=4096)
    for number in range(100):
        store.lane(0).append("orders", b"%d" % number)
    store.publish()
    with by_url(served_base):
        url = place_of(store.path)
    with billing(url) as reader:
        next(reader)
        reader.commit()
    store.lane(0).forget_before(2)
    with pytest.raises(DataLoss, match="reader billing"):
        billing(url)
    with pytest.warns(ReadingWarning, match="it goes on without them"):
        billing(url, fail_on_data_loss=False).close()


def test_where_it_reads_from(store: HandMadeStore, url: str) -> None:
    """`readers` names the machine of the client, until a process here reads under the name."""
    with billing(url):
        said = CliRunner().invoke(app, ["readers", str(store.path)]).stdout
        assert "in use, from 127.0.0.1\n" in said
    with billing(store.path):
        assert "in use\n" in CliRunner().invoke(app, ["readers", str(store.path)]).stdout
    with billing(url):
        assert NamedReaders(store.directory).load("billing").host == "127.0.0.1"


# ---- the name ------------------------------------------------------------------------------------


def test_one_reader_at_a_time(store: HandMadeStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.reading.named_readers.PATIENCE_SECONDS", 0.05)
    with billing(url):
        for place in (url, store.path):
            with pytest.raises(ReaderInUse, match="reader billing is in use by"):
                billing(place)
    with billing(store.path), pytest.raises(ReaderInUse):
        billing(url)
    billing(url).close()


def test_a_reader_that_nobody_has_any_more(store: HandMadeStore, url: str) -> None:
    """It gives the name back when it is collected."""
    reader = billing(url)
    next(reader)
    del reader
    gc.collect()
    wait_until(lambda: not NamedReaders(store.directory).is_held("billing"), "the name is free")


def test_a_client_that_is_killed(store: HandMadeStore, url: str) -> None:
    """Its name is free at once, and its commit is there."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        with pytest.raises(ReaderInUse):
            billing(url)
        holder.kill()
    with billing(url) as reader:
        assert sum(reader.committed()["orders"].values()) == 1


def test_a_server_that_is_killed(store: HandMadeStore, server: Server, url: str) -> None:
    """The reader gets its name again, and goes on."""
    with billing(url, follow=True) as reader:
        found = list(islice(reader, 50))
        reader.commit()
        kill_process(server)
        found += islice(reader, 50)
        kill_process(server)
        reader.commit()
        assert sum(position(store)["orders"].values()) == 100
        with pytest.raises(ReaderInUse):
            billing(url)
        found += islice(reader, 100)
    assert found == list(Reader(store.path, "orders"))


@pytest.mark.nightly
def test_a_server_that_is_away_for_too_long(
    store: HandMadeStore, server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit says so, and may be tried again."""
    for module in ("leased_position", "flight_connection", "fetching"):
        monkeypatch.setattr(f"commitlog.remote.{module}.PATIENCE_SECONDS", 0.1)
    with billing(url) as reader:
        next(reader)
        server.close()
        with pytest.raises(ServerUnavailable):
            reader.commit()
    assert sum(position(store)["orders"].values()) == 0


@pytest.mark.parametrize("what", with_nightly(["held"], ["moved", "used", "removed"]))
def test_a_name_that_was_lost(
    store: HandMadeStore, server: Server, url: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever moves or takes it meanwhile is noticed: at the next commit, and soon by `next`."""
    monkeypatch.setattr(leased_position, "RENEW_SECONDS", 3600)
    with billing(url, follow=True) as reader:
        found = list(islice(reader, 10))
        reader.commit()
        next(reader)
        kill_process(server)
        other = None
        if what == "moved":
            with current_index(StoreView(store.path)) as index:
                seek(index, "billing", "earliest")
        elif what == "removed":
            NamedReaders(store.directory).remove("billing")
        else:
            other = billing(store.path)
            list(islice(other, 20))
            other.commit()
            if what == "used":
                other.close()
        error = ReaderInUse if what == "held" else ReaderError
        for call in (reader.commit, lambda: list(reader)):
            with pytest.raises(error, match="billing"):
                call()
        before = what != "removed" and position(store)
        if other is not None:
            other.close()
    assert len(found) == 10
    assert what == "removed" or position(store) == before


DOORS: dict[str, Callable[[Reader], Iterator[Any]]] = {
    "next": iter,
    "batches": lambda reader: reader.batches(10),
    "arrow_batches": lambda reader: reader.arrow_batches(),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_reader_that_commits_by_itself_hears_that_its_name_was_lost(
    store: HandMadeStore, server: Server, url: str, door: str
) -> None:
    """It gives out nothing more of what it has read ahead: somebody else may read that, too."""
    with billing(url, follow=True, auto_commit_seconds=0) as reader:
        given = DOORS[door](reader)
        next(given)
        next(given)
        kill_process(server)
        with current_index(StoreView(store.path)) as index:
            seek(index, "billing", "earliest")
        with pytest.raises(ReaderError, match="moved or removed it"):
            next(given)
    assert position(store) == {"orders": {0: 0, 1: 0}}


@pytest.mark.nightly
def test_the_lease_is_renewed(store: HandMadeStore, server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose user works for long keeps its name, also if the server is started again."""
    monkeypatch.setattr(leased_position, "RENEW_SECONDS", 0.05)
    with billing(url):
        kill_process(server)
        wait_until(lambda: NamedReaders(store.directory).is_held("billing"), "it has its name again")
    assert not NamedReaders(store.directory).is_held("billing")


# ---- what a server refuses -----------------------------------------------------------------------


@pytest.fixture
def served(store: HandMadeStore) -> Iterator[ServedStore]:
    with closing(ServedStore("store", store.path)) as found:
        yield found


def move(served: ServedStore, lease: str, offsets: Any, access: Access = EVERYTHING, **more: Any) -> bool:
    epoch, store_id = more.pop("epoch", None), more.pop("store_id", None)
    with served.index() as (index, _):
        wanted = requests.Position(store_id or index.store_id, offsets, **more)
    return served.move_name(requests.MoveName("store", lease, wanted, epoch=epoch), access, PEER)


@pytest.mark.parametrize(
    ("offsets", "more", "error"),
    [
        ({"orders": {0: 101}}, {}, "ends at 100"),
        ({"orders": {0: 1 << 57}}, {}, "ends at 100"),
        ({"orders": {0: 1 << 70}}, {}, "no position"),
        ({"orders": {0: -1}}, {}, "no position"),
        ({"orders": {0: 9}}, {}, "never goes back"),
        ({"orders": {7: 1}}, {}, "no messages that can be read"),
        ({"missing": {0: 1}}, {}, "no messages that can be read"),
        ({"../x": {0: 0}}, {}, "no position"),
        ({"orders": {5000: 0}}, {}, "no position"),
        ({"orders": {0: 20}}, {"store_id": "0" * 16}, "another store"),
        ({"orders": {0: 20}}, {"lanes": (0,), "members": (0, 2)}, "lanes and members"),
        ({"orders": {0: 20}}, {"epoch": 77}, "was never in epoch 77"),
    ],
)
def test_positions_that_none_can_have(
    store: HandMadeStore, served: ServedStore, offsets: Any, more: dict[str, Any], error: str
) -> None:
    """Beyond the end, back, in queues that are not there, of another store; it stays as it was."""
    held = served.hold_reader("billing", EVERYTHING, PEER)
    assert held.position is None
    assert move(served, held.lease, {"orders": {0: 10, 1: 3}})
    with pytest.raises(CommitLogError, match=error):
        move(served, held.lease, offsets, **more)
    assert position(store) == {"orders": {0: 10, 1: 3}}
    assert move(served, held.lease, {"orders": {0: 10, 1: 100}})


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 101, "\0", "a b"])
def test_names_that_are_none(served: ServedStore, name: str) -> None:
    with pytest.raises(CommitLogError, match="is not a reader's name"):
        served.hold_reader(name, EVERYTHING, PEER)


def test_many_leases(served: ServedStore) -> None:
    """One client has some names and not all, and keeps no other one from having its own."""
    greedy = Access("greedy")
    for number in range(served_store.NAMES_PER_CLIENT_MAX):
        served.hold_reader(f"r{number}", greedy, PEER)
    with pytest.raises(ServerBusy, match="which is the limit"):
        served.hold_reader("one-more", greedy, PEER)
    served.hold_reader("other", Access("other"), PEER)


def test_rights(store: HandMadeStore, served: ServedStore) -> None:
    """A token that reads a topic commits there. One of all topics would keep those it can't see."""
    orders = Access("billing", ("orders",))
    held = served.hold_reader("mine", orders, PEER)
    assert move(served, held.lease, {"orders": {0: 3}}, orders)
    with pytest.raises(AccessDenied, match="not for topic other"):
        move(served, held.lease, {"other": {0: 3}}, orders)
    with pytest.raises(AccessDenied, match="name the topics of the reader"):
        move(served, held.lease, {"orders": {0: 3}}, orders, all_topics=True)
    with pytest.raises(AccessDenied, match="another client's"):
        move(served, held.lease, {"orders": {0: 4}}, Access("audit"))
    served.move_name(requests.MoveName("store", held.lease, release=True), orders, PEER)
    with pytest.raises(AccessDenied, match="not for the token wide"):
        served.hold_reader("mine", Access("wide", ("orders", "other")), PEER)
    assert position(store, "mine") == {"orders": {0: 3}}


def test_readers_of_other_kinds(store: HandMadeStore, served: ServedStore) -> None:
    """The name of a Spark query is not a Python reader's, nor the other way round."""
    readers = NamedReaders(store.directory)
    readers.save(readers.moved(NamedReader("spark", store.id, {"orders": {0: 1}}, moved_ms=0)))
    with pytest.raises(ReaderError, match="Spark query's"):
        served.hold_reader("spark", EVERYTHING, PEER)
    served.move_name(
        requests.MoveName("store", served.hold_reader("python", EVERYTHING, PEER).lease, release=True), EVERYTHING, PEER
    )
    lease = served.hold_reader("python", EVERYTHING, PEER).lease
    move(served, lease, {"orders": {0: 1}})
    served.move_name(requests.MoveName("store", lease, release=True), EVERYTHING, PEER)
    with pytest.raises(ReaderError, match="one of Python's"):
        served.hold_name("python", EVERYTHING, PEER)
    assert not readers.is_held("python")
    assert not readers.is_held("spark")


# ---- TLS, tokens ---------------------------------------------------------------------------------


@pytest.mark.nightly
def test_with_tls_and_a_token(tmp_path: Path, store: HandMadeStore, certificates: Certificates) -> None:
    certificate, key = certificates.make("server")
    token_file = tmp_path / "token"
    token_file.write_text(add_token(tmp_path / "tokens.json", Access("billing", ("orders",))))
    files: dict[str, Any] = {"token_file": str(token_file), "ca_file": str(certificates.authority)}
    with server_of([store.path], tokens=tmp_path / "tokens.json", certificate=certificate, key=key) as server:
        address = address_of(server, **files)
        with Reader(str(address), "orders", name="billing", **files) as reader:
            assert len(list(reader)) == 200
            reader.commit()
        with pytest.raises(AccessDenied, match="name the topics of the reader"):
            Reader(str(address), name="all", **files)
        forget_connection(address)
    assert position(store) == {"orders": {0: 100, 1: 100}}
    known = NamedReaders(store.directory).load("billing")
    assert known.client is not None
    assert known.client.name == "billing"
    assert os.listdir(store.directory.readers_directory).count("all.json") == 0

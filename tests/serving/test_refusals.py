"""What a client hears where a server can't be reached, does not know it, or has not what it wants.

Each time it is a named error of one line, without a path of the server.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from commitlog.errors import (
    AccessDenied,
    CertificateRefused,
    CommitLogError,
    DataLoss,
    IllegalArgument,
    OffsetOutOfRange,
    ServerError,
    ServerUnavailable,
    StoreNotFound,
    UnknownTopic,
)
from commitlog.planning.address import Address, parse_address
from commitlog.remote import flight_connection, requests
from commitlog.serving.access import Access, add_token, remove_token
from commitlog.serving.server_processes import Server
from tests.builders.hand_made import HandMadeStore, small_store
from tests.nightly import with_nightly
from tests.served import by_url, place_of
from tests.serving.asking import Certificates, address_of, ask, client_of, server_of
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read, which is patient, gives up at once."""
    monkeypatch.setattr(flight_connection, "PATIENCE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """A store that no test changes."""
    return small_store(tmp_path_factory.mktemp("shared") / "store")


@pytest.fixture(scope="module")
def plain(shared: HandMadeStore) -> Iterator[Server]:
    with server_of([shared.path]) as server:
        yield server


@pytest.fixture(scope="module")
def with_tls(shared: HandMadeStore, certificates: Certificates) -> Iterator[Server]:
    certificate, key = certificates.make("server")
    with server_of([shared.path], certificate=certificate, key=key) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(shared: HandMadeStore, certificates: Certificates) -> Iterator[Server]:
    certificate, key = certificates.make("mutual")
    with server_of([shared.path], certificate=certificate, key=key, client_authority=certificates.authority) as server:
        yield server


def served(path: Path, served_base: str) -> Address:
    """Where the worker's server of any store has one, for tests that change their store."""
    with by_url(served_base):
        return parse_address(place_of(path))


def refused(kind: type[CommitLogError], address: Address, action: str = "stores", request: object = None) -> str:
    """The text of the error that an action raises: of this very class, and of one line."""
    with pytest.raises(CommitLogError) as caught:
        ask(address, action, request)
    return checked(kind, caught.value)


def checked(kind: type[CommitLogError], error: CommitLogError) -> str:
    text = str(error)
    assert type(error) is kind, text
    assert text.isprintable()
    for foreign in ("gRPC", "Traceback", 'File "', "/tmp", "/pytest", "Flight"):
        assert foreign not in text
    return text


@pytest.mark.parametrize(
    ("action", "request_of"),
    [
        ("find_by_times", lambda topic, lane: requests.FindByTimes("store", ((topic, lane, 1),))),
        ("sizes", lambda topic, lane: requests.Sizes("store", ((topic, lane, 0, 1),))),
        ("limit_rows", lambda topic, lane: requests.LimitRows("store", ((topic, lane, 0, 1),), 1, (topic, lane))),
        ("shared_ends", lambda topic, lane: requests.SharedEnds("store", 0, ((topic, lane),))),
    ],
)
def test_a_topic_that_is_not_there(action: str, request_of: Callable[[str, int], object], plain: Server) -> None:
    """The words are those of every door."""
    missing = refused(UnknownTopic, address_of(plain), action, request_of("nothing", 0))
    assert missing == "store: no topic nothing; there are: orders, other"
    no_lane = refused(UnknownTopic, address_of(plain), action, request_of("orders", 7))
    assert no_lane == "store: topic 'orders' has no lane 7; it has 0, 1"


@contextmanager
def something_else(says: bytes) -> Iterator[int]:
    """A port where something else listens: it says this to all, and hangs up."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            accepted, _ = listening.accept()
            with accepted:
                if not accepted.recv(100):
                    return
                accepted.sendall(says)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        with socket.create_connection(listening.getsockname()):
            pass
        thread.join()
        listening.close()


# ---- where no server answers -------------------------------------------------------------------


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = refused(ServerUnavailable, parse_address(f"commitlog://127.0.0.1:{port}/store"))
    assert text == (
        f"commitlog://127.0.0.1:{port}/store: no server answers (Failed to connect to remote host: Connection refused); "
        f"is it running, and the address right?"
    )


def test_a_host_that_there_is_not() -> None:
    text = refused(ServerUnavailable, parse_address("commitlog+tls://nowhere.invalid/store"))
    assert text.startswith("commitlog+tls://nowhere.invalid:4433/store: no server answers (")


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0" * 64])
def test_something_else_listens(says: bytes) -> None:
    with something_else(says) as port:
        assert "no server answers" in refused(ServerUnavailable, parse_address(f"commitlog://127.0.0.1:{port}/store"))


def test_of_several_hosts_the_next_one_answers(plain: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = parse_address(f"commitlog://127.0.0.1:{port},127.0.0.1:{plain.ports[0]}/store")
    assert ask(both) == ["store"]


# ---- TLS ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_rows_come_over_tls(with_tls: Server, certificates: Certificates, shared: HandMadeStore) -> None:
    with client_of(address_of(with_tls, ca_file=str(certificates.authority))) as client:
        assert sorted(client.rows(client.ticket())) == shared.rows("orders")


def test_rows_come_over_mutual_tls(mutual: Server, certificates: Certificates, shared: HandMadeStore) -> None:
    certificate, key = certificates.make("client")
    known = {"ca_file": str(certificates.authority), "cert_file": str(certificate), "key_file": str(key)}
    with client_of(address_of(mutual, **known)) as client:
        assert sorted(client.rows(client.ticket())) == shared.rows("orders")


def test_a_certificate_of_a_foreign_authority(with_tls: Server, certificates: Certificates) -> None:
    address = address_of(with_tls, ca_file=str(certificates.foreign_authority))
    assert "of no authority in ca_file" in refused(CertificateRefused, address)
    assert "without ca_file, of no public one" in refused(CertificateRefused, address_of(with_tls))


@pytest.mark.parametrize(
    ("made", "says"),
    with_nightly(
        [({"expired": True}, "its certificate has expired")], [({"hosts": "elsewhere.example"}, "is for another host")]
    ),
)
def test_a_servers_wrong_certificate(
    made: dict[str, Any], says: str, shared: HandMadeStore, certificates: Certificates
) -> None:
    hosts = [made.pop("hosts")] if "hosts" in made else []
    certificate, key = certificates.make("wrong", *hosts, **made)
    with server_of([shared.path], certificate=certificate, key=key) as server:
        assert says in refused(CertificateRefused, address_of(server, ca_file=str(certificates.authority)))


def test_a_client_with_tls_and_a_server_without(plain: Server, certificates: Certificates) -> None:
    address = replace(address_of(plain, ca_file=str(certificates.authority)), tls=True)
    assert "does not speak TLS" in refused(CertificateRefused, address)


def test_a_client_without_tls_and_a_server_with_it(with_tls: Server) -> None:
    """The server just ends the connection, as one does that ends itself."""
    assert "want TLS: commitlog+tls://" in refused(ServerUnavailable, replace(address_of(with_tls), tls=False))


def test_a_client_without_a_certificate_that_the_server_knows(mutual: Server, certificates: Certificates) -> None:
    """With TLS 1.3 the client believes at first that all is well."""
    authority = {"ca_file": str(certificates.authority)}
    assert "give cert_file and key_file" in refused(ServerUnavailable, address_of(mutual, **authority))
    certificate, key = certificates.make("foreigner", foreign=True)
    foreign = address_of(mutual, **authority, cert_file=str(certificate), key_file=str(key))
    assert "not know the authority of the certificate in cert_file" in refused(ServerUnavailable, foreign)


def test_files_that_are_none(with_tls: Server, certificates: Certificates, tmp_path: Path) -> None:
    own = str(certificates.make("own")[0])
    junk, missing = tmp_path / "junk.pem", str(tmp_path / "missing.pem")
    junk.write_text("junk")
    authority = str(certificates.authority)
    for wrong in (
        {"ca_file": str(junk)},
        {"ca_file": authority, "cert_file": own, "key_file": str(junk)},
        {"ca_file": authority, "cert_file": own, "key_file": str(certificates.make("other")[1])},
        {"ca_file": authority, "cert_file": own, "key_file": str(certificates.with_password("own"))},
    ):
        assert "not PEM, or the key is another's or has a password" in refused(
            CertificateRefused, address_of(with_tls, **wrong)
        )
    with pytest.raises(ServerError, match=re.escape(f"ca_file {missing}: No such file or directory; give a file")):
        ask(address_of(with_tls, ca_file=missing))


def test_files_that_are_replaced_while_a_client_runs(
    mutual: Server, certificates: Certificates, tmp_path: Path
) -> None:
    """Its own certificate, and the authority that it believes."""
    authority, own, key = tmp_path / "ca.pem", tmp_path / "own.pem", tmp_path / "own.key"
    files = {"ca_file": str(authority), "cert_file": str(own), "key_file": str(key)}
    authority.write_bytes(certificates.foreign_authority.read_bytes())
    for file, content in zip((own, key), certificates.make("foreign-client", foreign=True), strict=True):
        file.write_bytes(content.read_bytes())
    with closing(flight_connection.Connection(address_of(mutual, **files))) as client:
        with pytest.raises(CertificateRefused, match="of no authority"):
            client.ask("stores", requests.Stores())
        authority.write_bytes(certificates.authority.read_bytes())
        with pytest.raises(ServerUnavailable, match="not know the authority"):
            client.ask("stores", requests.Stores())
        for file, content in zip((own, key), certificates.make("known-client"), strict=True):
            file.write_bytes(content.read_bytes())
        assert client.ask("stores", requests.Stores()) == ["store"]


# ---- tokens -------------------------------------------------------------------------------------


def test_only_clients_with_a_token_get_in(tmp_path: Path) -> None:
    """A server that runs sees what is added and removed."""
    store, tokens = small_store(tmp_path / "store"), tmp_path / "tokens.json"
    first = add_token(tokens, Access("first"))
    with server_of([store.path], tokens=tokens) as server:
        assert ask(address_of(server, token=first)) == ["store"]
        assert "wants a token" in refused(AccessDenied, address_of(server))
        assert "does not know this token" in refused(AccessDenied, address_of(server, token="clog_x"))
        assert "token: a token has no blanks" in refused(AccessDenied, address_of(server, token="é\nx"))
        second = add_token(tokens, Access("second"))
        file = tmp_path / "token"
        file.write_text(f"{second}\n")
        assert ask(address_of(server, token_file=str(file))) == ["store"]
        with client_of(address_of(server, token=first)) as client:
            ticket = client.ticket()
            remove_token(tokens, "first")
            with pytest.raises(AccessDenied, match="may have been removed"):
                client.rows(ticket)


def test_a_token_for_another_topic(tmp_path: Path) -> None:
    """Nothing else is seen of the others than that the token is not for them."""
    store, tokens = small_store(tmp_path / "store"), tmp_path / "tokens.json"
    own, writer = (
        add_token(tokens, Access("own", ("oth*",))),
        add_token(tokens, Access("writer", read=False, write=True)),
    )
    with server_of([store.path], tokens=tokens) as server, client_of(address_of(server, token=own)) as client:
        assert client.look().topics == {"other": False}
        assert sorted(client.rows(client.ticket("other"))) == store.rows("other")
        foreign = orjson.loads(client.ticket("other"))
        foreign["slices"] = [["orders", *rest] for _, *rest in foreign["slices"]]
        with pytest.raises(AccessDenied, match="the token own is not for topic orders; it is for oth\\*"):
            client.rows(orjson.dumps(foreign))
        request = requests.FindByTimes("store", (("orders", 0, 0),))
        assert "not for topic orders" in refused(AccessDenied, client.address, "find_by_times", request)
        look = requests.Look("store")
        assert "not one to read with" in refused(AccessDenied, address_of(server, token=writer), "look", look)


# ---- what is not there -------------------------------------------------------------------------


def test_a_store_and_an_action_that_there_are_not(plain: Server) -> None:
    address = address_of(plain)
    assert refused(StoreNotFound, address, "look", requests.Look("x")) == "no store 'x' is served here; those are store"
    assert "action 'x': there is none" in refused(IllegalArgument, address, "x")
    assert "is the client of another version?" in refused(IllegalArgument, address, "look", requests.Stores())


def test_offsets_that_the_store_has_not_yet(plain: Server) -> None:
    with client_of(address_of(plain)) as client:
        ticket = orjson.loads(client.ticket())
        ticket["slices"] = [["orders", 0, 0, 101]]
        with pytest.raises(OffsetOutOfRange) as caught:
            client.rows(orjson.dumps(ticket))
    assert "offset 101 is beyond the store's end, 100" in checked(OffsetOutOfRange, caught.value)


def test_offsets_that_the_store_has_no_more(tmp_path: Path, served_base: str) -> None:
    store = small_store(tmp_path / "store")
    with client_of(served(store.path, served_base)) as client:
        ticket = client.ticket()
        store.lane(0).forget_before(3)
        with pytest.raises(DataLoss) as caught:
            client.rows(ticket)
    assert "Option failOnDataLoss=false" in checked(DataLoss, caught.value)


def test_another_store_at_the_place(tmp_path: Path, served_base: str) -> None:
    """The server notices; an old ticket is of a store that is gone, and a new one works."""
    path = tmp_path / "store"
    small_store(path)
    with client_of(served(path, served_base)) as client:
        ticket = client.ticket()
        path.rename(tmp_path / "gone")  # the server may be writing there
        made_again = small_store(path, rows=7)
        with pytest.raises(DataLoss) as caught:
            client.rows(ticket)
        assert "store was deleted and made again" in checked(DataLoss, caught.value)
        assert sorted(client.rows(client.ticket())) == made_again.rows("orders")


def test_another_store_at_the_place_in_the_middle_of_a_stream(tmp_path: Path, served_base: str) -> None:
    """Its records have the same sizes, and none of its rows come."""

    def make(name: str, value: bytes) -> None:
        store = HandMadeStore(tmp_path / name, segment_bytes=1 << 20)
        for _ in range(20):
            store.lane(0).append("orders", value * (1 << 19))
        store.publish()

    make("store", b"A")
    make("other", b"B")
    with client_of(served(tmp_path / "store", served_base)) as client:
        asked = orjson.loads(client.ticket())
        asked["slices"] *= 20
        stream = client.batches(orjson.dumps(asked))
        seen = [next(stream)]
        (tmp_path / "store").rename(tmp_path / "gone")
        (tmp_path / "other").rename(tmp_path / "store")
        with pytest.raises(DataLoss) as caught:
            seen.extend(stream)
        assert "store was deleted and made again while it was read" in checked(DataLoss, caught.value)
    assert {value[:1] for batch in seen for value in batch["value"].to_pylist()} == {b"A"}


def test_a_store_that_is_removed_while_it_is_served(tmp_path: Path, served_base: str) -> None:
    """It says so, and goes on when the store is back."""
    path = tmp_path / "store"
    small_store(path)
    with client_of(served(path, served_base)) as client:
        client.look()
        path.rename(tmp_path / "away")
        with pytest.raises(CommitLogError) as caught:
            client.look()
        checked(StoreNotFound, caught.value)
        (tmp_path / "away").rename(path)
        assert wait_until(client.look).topics


def test_grpc_writes_nothing_of_its_own(with_tls: Server, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CertificateRefused):
        ask(address_of(with_tls))
    assert capfd.readouterr() == ("", "")

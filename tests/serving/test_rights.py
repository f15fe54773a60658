"""Rights that end while they are used, and calls of those who have none."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.errors import AccessDenied, ServerError
from commitlog.serving.access import Access, add_token, remove_token
from commitlog.serving.flight_server import STRANGER
from tests.builders.hand_made import HandMadeStore, small_store
from tests.serving.asking import Certificates, address_of, ask, client_of, server_of
from tests.waiting import wait_until


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_stream_of_rows_ends_with_its_token(tmp_path: Path, tokens: Path) -> None:
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 20)
    for _ in range(20):
        store.lane(0).append("orders", bytes(1 << 19))
    store.publish()
    token = add_token(tokens, Access("billing"))
    with server_of([store.path], tokens=tokens) as server, client_of(address_of(server, token=token)) as client:
        asked = orjson.loads(client.ticket())
        asked["slices"] *= 20
        stream = client.batches(orjson.dumps(asked))
        next(stream)
        remove_token(tokens, "billing")
        with pytest.raises(AccessDenied, match="the server does not know this token"):
            list(stream)


def test_files_that_are_symbolic_links(tmp_path: Path, certificates: Certificates) -> None:
    """Kubernetes mounts secrets so, and certbot keeps certificates so. Both sides follow links."""
    store = small_store(tmp_path / "store")
    certificate, key = certificates.make("linked")
    (tmp_path / "token").write_text(add_token(tmp_path / "tokens.json", Access("billing")))
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def link(file: Path) -> Path:
        made = mounted / file.name
        made.symlink_to(file)
        return made

    tokens = link(tmp_path / "tokens.json")
    files = {"token_file": str(link(tmp_path / "token")), "ca_file": str(link(certificates.authority))}
    with server_of([store.path], certificate=link(certificate), key=link(key), tokens=tokens) as server:
        assert ask(address_of(server, **files)) == ["store"]


def test_a_token_of_a_file_is_replaced_while_a_client_runs(tmp_path: Path, tokens: Path) -> None:
    """First the new one is in the client's file, then the old one is removed."""
    store = small_store(tmp_path / "store")
    file = tmp_path / "token"
    file.write_text(add_token(tokens, Access("old")))
    with (
        server_of([store.path], tokens=tokens) as server,
        client_of(address_of(server, token_file=str(file))) as client,
    ):
        ticket = client.ticket()
        file.write_text(add_token(tokens, Access("new")))
        remove_token(tokens, "old")
        assert client.rows(ticket)
        client.look()
        remove_token(tokens, "new")
        file.unlink()
        with pytest.raises(AccessDenied, match="the server does not know this token"):
            client.look()


@pytest.mark.nightly
def test_a_named_reader_goes_on_with_a_new_token(tmp_path: Path, tokens: Path) -> None:
    """The server holds the name for the old token, whose place the new one takes."""
    store = small_store(tmp_path / "store")
    file = tmp_path / "token"
    file.write_text(add_token(tokens, Access("old", ("orders",))))
    with (
        server_of([store.path], tokens=tokens) as server,
        commitlog.Reader(str(address_of(server)), "orders", name="billing", token_file=file) as reader,
    ):
        next(reader)
        file.write_text(add_token(tokens, Access("new", ("orders",))))
        remove_token(tokens, "old")
        reader.commit()


@pytest.mark.nightly
def test_appending_over_tls_ends_with_the_right_to(tmp_path: Path, tokens: Path, certificates: Certificates) -> None:
    certificate, key = certificates.make("append")
    token = add_token(tokens, Access("shop", write=True))
    with (
        commitlog.Store.open(tmp_path / "store") as store,
        server_of([store.path], certificate=certificate, key=key, tokens=tokens, writable=True) as server,
    ):
        url, ca_file = str(address_of(server)), certificates.authority
        producer = commitlog.RemoteProducer(url, token=token, ca_file=ca_file)
        producer.send("orders", b"one").wait()
        remove_token(tokens, "shop")
        add_token(tokens, Access("shop"))
        producer.send("orders", b"two")
        with pytest.raises(AccessDenied, match="1 messages are not known to be flushed"):
            producer.flush()
        with pytest.raises(AccessDenied):
            producer.close()
        with commitlog.Reader(store.path) as reader:
            assert [message.value for message in reader] == [b"one"]


def test_refused_tokens_are_counted(tmp_path: Path, tokens: Path) -> None:
    store = small_store(tmp_path / "store")
    add_token(tokens, Access("billing"))
    with server_of([store.path], tokens=tokens) as server:
        for wrong in ("clog_wrong", None):
            with pytest.raises(AccessDenied):
                ask(address_of(server, token=wrong))

        def is_seen() -> bool:
            done = CliRunner().invoke(app, ["stat", str(store.path), "--json"])
            (of_server,) = orjson.loads(done.stdout)["servers"]
            return [(one["client"], one["errors"]) for one in of_server["clients"]] == [(STRANGER, 2)]

        wait_until(is_seen, "the refusals are counted")


def test_a_file_of_tokens_that_is_gone_is_no_business_of_clients(tmp_path: Path, tokens: Path) -> None:
    """They hear no path of the server, and nobody is let in."""
    token = add_token(tokens, Access("billing"))
    HandMadeStore(tmp_path / "store").publish()
    with server_of([tmp_path / "store"], tokens=tokens) as server:
        tokens.unlink()
        with pytest.raises(ServerError, match="can't use its file of tokens") as failed:
            ask(address_of(server, token=token))
        assert str(tmp_path) not in str(failed.value)

"""What `commitlog serve` refuses before it listens."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import CommitLogError, IllegalArgument, ServingRefused, StoreNotFound
from commitlog.forwarding.forward_settings import servers_of
from commitlog.planning.address import parse_address
from commitlog.serving.access import Access, add_token
from commitlog.serving.server_settings import ServerSettings, listening_address, settings_of
from tests.builders.hand_made import HandMadeStore
from tests.command_line import run
from tests.serving.asking import Certificates, server_of


def checked(*stores: object, listen: str = "127.0.0.1:4433", **given: Any) -> ServerSettings:
    nothing: dict[str, Any] = dict.fromkeys(("certificate", "key", "client_authority", "tokens", "advertise"))
    return settings_of([str(store) for store in stores], listen, **{**nothing, "writable": False, **given})


def refused(*stores: object, **given: Any) -> str:
    with pytest.raises((IllegalArgument, ServingRefused)) as caught:
        checked(*stores, **given)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_what_others_reach_needs_tls_and_who_they_are(
    store: HandMadeStore, certificates: Certificates, tmp_path: Path
) -> None:
    certificate, key = certificates.make("settings")
    tls = {"certificate": certificate, "key": key}
    tokens = tmp_path / "tokens.json"
    add_token(tokens, Access("billing"))
    for listen in ("0.0.0.0:4433", "[::]:4433", "10.0.0.1", "host.example:1"):
        assert "so it needs TLS" in refused(store.path, listen=listen)
        assert "so it needs TLS" in refused(store.path, listen=listen, tokens=tokens)
        assert "give --tokens or --client-authority" in refused(store.path, listen=listen, **tls)
        assert checked(store.path, listen=listen, tokens=tokens, **tls).tls
        assert checked(store.path, listen=listen, client_authority=certificates.authority, **tls).tls
    for listen in ("127.0.0.1:0", "localhost", "[::1]:5", "4433"):
        assert not checked(store.path, listen=listen).tls


def test_a_certificate_and_its_key_belong_together(store: HandMadeStore, certificates: Certificates) -> None:
    certificate, key = certificates.make("pair")
    assert "give both, or none" in refused(store.path, certificate=certificate)
    assert "give both, or none" in refused(store.path, key=key)
    assert "give --certificate and --key too" in refused(store.path, client_authority=certificates.authority)


def test_files_that_are_not_pem(store: HandMadeStore, certificates: Certificates, tmp_path: Path) -> None:
    certificate, _ = certificates.make("pem")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    assert "not a file in PEM format" in refused(store.path, certificate=certificate, key=junk)
    assert "No such file or directory" in refused(store.path, certificate=certificate, key=tmp_path / "none")
    assert "No such file or directory" in refused(store.path, tokens=tmp_path / "none")


def test_stores_have_names(store: HandMadeStore) -> None:
    assert checked(store.path).stores == {"store": str(store.path)}
    assert checked(f"a={store.path}", f"b={store.path}").stores == {"a": str(store.path), "b": str(store.path)}
    assert "two stores are called store" in refused(store.path, store.path)
    assert "give a store a name without /" in refused(f"={store.path}")
    with pytest.raises(StoreNotFound):
        checked(store.path / "none")


@pytest.mark.parametrize("listen", ["", ":4433", "host:", "host:x", "host:65536", "host:-1", "127.0.0.1:4433:1x"])
def test_what_is_no_address(listen: str) -> None:
    with pytest.raises(IllegalArgument, match="it is HOST:PORT"):
        listening_address(listen)


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("9", ("127.0.0.1", 9)),
        ("host", ("host", 4433)),
        ("[::1]", ("::1", 4433)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_addresses(listen: str, found: tuple[str, int]) -> None:
    assert listening_address(listen) == found


def test_a_port_that_is_taken(store: HandMadeStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServingRefused, match=f"can't listen on 127.0.0.1:{port}: give an address"):
            server_of([store.path], listen=f"127.0.0.1:{port}")


def test_a_key_of_another_certificate(store: HandMadeStore, certificates: Certificates) -> None:
    certificate, key = certificates.make("mine")[0], certificates.make("yours")[1]
    with pytest.raises(CommitLogError, match="and a certificate with its own key"):
        server_of([store.path], certificate=certificate, key=key)


def test_a_key_with_a_password(store: HandMadeStore, certificates: Certificates) -> None:
    certificate, _ = certificates.make("mine")
    with pytest.raises(CommitLogError, match="with its own key, which has no password"):
        server_of([store.path], certificate=certificate, key=certificates.with_password("mine"))


def test_the_command_says_so_in_one_line(store: HandMadeStore) -> None:
    done = run("serve", store.path, "--listen", "0.0.0.0:0")
    assert done.returncode == 2
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert "so it needs TLS" in line
    assert line.endswith("[IllegalArgument]")


@pytest.mark.parametrize(
    "rest", ["?token=SECRET", "#SECRET", "/store?t=SECRET", "/store/SECRET", "?a@SECRET", "/clog_SECRET/store"]
)
@pytest.mark.parametrize("place", ["commitlog+tls://host:1", "commitlog+tls://user:SECRET@host", "commitlog://h:x"])
def test_no_error_shows_what_may_be_a_token_in_a_url(place: str, rest: str) -> None:
    with pytest.raises(IllegalArgument) as refused:
        parse_address(place + rest)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://u:SECRET@host", "kafka://host?p=SECRET", "kafka://host#SECRET", "x?SECRET"])
def test_no_error_shows_a_secret_of_a_clusters_address(url: str) -> None:
    with pytest.raises(IllegalArgument) as refused:
        servers_of(url)
    assert "SECRET" not in str(refused.value)


def test_more_processes_than_there_are_ports(store: HandMadeStore) -> None:
    done = run("serve", store.path, "--listen", "127.0.0.1:65535", "--processes", "2")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"port 65535: 2 processes need as many ports from there on" in done.stderr

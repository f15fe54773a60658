"""Errors of credentials name what the user can give: an option, an argument, or --an-option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.errors import CommitLogError
from commitlog.serving.access import Access, add_token
from commitlog.spark.source import CommitLogDataSource
from tests.builders.hand_made import HandMadeStore, small_store
from tests.nightly import with_nightly
from tests.serving.asking import Certificates, address_of, server_of

Door = Callable[..., Any]


def with_spark(url: str, **given: str) -> None:
    named = {first + "".join(map(str.title, rest)): value for (first, *rest), value in _split(given)}
    source = CommitLogDataSource({"path": url, "subscribe": "orders", **named})
    source.reader(source.schema()).partitions()


def _split(given: dict[str, str]) -> list[tuple[list[str], str]]:
    return [(name.split("_"), value) for name, value in given.items()]


def with_read_arrow(url: str, **given: str) -> None:
    commitlog.read_arrow(url, "orders", **given)  # type: ignore[arg-type]


def with_producer(url: str, **given: str) -> None:
    commitlog.RemoteProducer(url, **given).close()


def with_command(url: str, **given: str) -> None:
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    done = CliRunner().invoke(app, ["stat", url, *options], catch_exceptions=False)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    raise CommitLogError(done.stderr)


DOORS = {
    "option tokenFile, option caFile, option certFile, option keyFile": with_spark,
    "token_file, ca_file, cert_file, key_file": with_read_arrow,
    "token_file, ca_file, cert_file, key_file ": with_producer,
    "--token-file, --ca-file, --cert-file, --key-file": with_command,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    return small_store(tmp_path_factory.mktemp("hints") / "store")


def refusal(door: Door, *arguments: Any, **given: Any) -> str:
    with pytest.raises(CommitLogError) as caught:
        door(*arguments, **given)
    return str(caught.value)


@pytest.mark.parametrize("names", with_nightly(list(DOORS)[:1], list(DOORS)[1:]))
def test_what_can_be_given_is_named(
    names: str, shared: HandMadeStore, certificates: Certificates, tmp_path: Path
) -> None:
    """Of one server for each door: a token, an authority, and a certificate of the client."""
    door, (token_file, ca_file, cert_file, key_file) = DOORS[names], names.strip().split(", ")
    certificate, key = certificates.make("hints")
    tokens, wrong = tmp_path / "tokens.json", tmp_path / "wrong"
    add_token(tokens, Access("known"))
    wrong.write_text("two words\n")
    own, foreign = str(certificates.authority), str(certificates.foreign_authority)
    with server_of([shared.path], certificate=certificate, key=key, tokens=tokens) as server:
        url = str(address_of(server))
        assert f"the server wants a token: give {token_file}\n" in refusal(door, url, ca_file=own) + "\n"
        assert f"of no authority in {ca_file}; without {ca_file}" in refusal(door, url, ca_file=foreign)
        assert f"{token_file}: a token has no blanks" in refusal(door, url, ca_file=own, token_file=str(wrong))
        missing = str(tmp_path / "missing")
        assert f"{token_file} {missing}: No such file" in refusal(door, url, ca_file=own, token_file=missing)
        assert f"{ca_file} {missing}: No such file" in refusal(door, url, ca_file=missing)
        assert f"{cert_file} and {key_file}: give both" in refusal(door, url, ca_file=own, cert_file=str(certificate))
        plain = url.replace("+tls", "").replace("localhost", "127.0.0.1")
        assert f"{ca_file}: it is for commitlog+tls://" in refusal(door, plain, ca_file=own)


@pytest.mark.parametrize("names", with_nightly([*DOORS][-1:], [*DOORS][:-1]))
def test_a_certificate_of_the_client_is_named(names: str, shared: HandMadeStore, certificates: Certificates) -> None:
    door, (_, _, cert_file, key_file) = DOORS[names], names.strip().split(", ")
    certificate, key = certificates.make("hints")
    authority = certificates.authority
    with server_of([shared.path], certificate=certificate, key=key, client_authority=authority) as server:
        said = refusal(door, str(address_of(server)), ca_file=str(authority))
        assert f"give {cert_file} and {key_file}" in said

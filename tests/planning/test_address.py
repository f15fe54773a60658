"""URLs of served stores, and the credentials that go with them, before anybody is called."""

from __future__ import annotations

from typing import Any

import pytest

import commitlog
from commitlog.errors import IllegalArgument

URL = "commitlog+tls://shop:4433/orders"
WRONG: list[tuple[str, dict[str, str], str]] = [
    ("commitlog://127.0.0.1/orders?x=1", {}, r"a store's URL has no \? and no #"),
    ("commitlog://127.0.0.1/orders#end", {}, r"a store's URL has no \? and no #"),
    ("commitlog://", {}, "it names no store, or more than one"),
    ("http://shop/orders", {}, "not the URL of a store"),
    ("commitlog+tls://me:secret@shop/orders", {}, "no user and no password: give the token apart from it"),
    ("commitlog+tls://shop", {}, "it names no store, or more than one"),
    ("commitlog+tls://shop/a/b", {}, "it names no store, or more than one"),
    ("commitlog+tls://shop:0/orders", {}, "'shop:0' is not a host with a port"),
    ("commitlog+tls://shop:65536/orders", {}, "'shop:65536' is not a host with a port"),
    ("commitlog+tls://shop:x/orders", {}, "'shop:x' is not a host with a port"),
    ("commitlog+tls://one,two:x/orders", {}, "'two:x' is not a host with a port"),
    ("commitlog://shop/orders", {}, r"not encrypted.* for this machine only; for shop give commitlog\+tls://"),
    (URL, {"token": "secret", "token_file": "f"}, "token and token_file: give only one of them"),
    (URL, {"cert_file": "f"}, "cert_file and key_file: give both, or none"),
    (URL, {"key_file": "f"}, "cert_file and key_file: give both, or none"),
    ("commitlog://127.0.0.1/orders", {"ca_file": "f"}, r"ca_file: it is for commitlog\+tls://"),
    ("data/orders", {"token": "secret"}, r"token: it is for a served store, .*; .* is a directory"),
]


@pytest.mark.parametrize(("url", "credentials", "message"), WRONG)
def test_what_is_wrong_with_a_url_or_its_credentials(url: str, credentials: Any, message: str) -> None:
    """The error says it, and tells no secret."""
    with pytest.raises(IllegalArgument, match=message) as raised:
        commitlog.RemoteProducer(url, **credentials)
    assert "secret" not in str(raised.value)
    with pytest.raises(IllegalArgument, match=message):
        commitlog.read_arrow(url, "apples", **credentials)

"""Options that exclude each other: the command line is wrong, and nothing is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.hand_made import small_store
from tests.command_line import run


@pytest.mark.parametrize(
    "words",
    [
        ("readers", "STORE", "--remove", "a", "--seek", "a", "latest"),
        ("readers", "STORE", "--remove", "a", "--json"),
        ("replicas", "STORE", "--forget", "a", "--json"),
        ("topics", "STORE", "--delete", "orders", "--yes", "--json"),
        ("topics", "STORE", "--trim", "orders", "--before", "latest", "--yes", "--columns"),
        ("config", "durable", "--effective", "STORE"),
        ("demo", "--notebook", "STORE/demo.ipynb", "--store", "STORE/demo"),
        ("token", "remove", "STORE/tokens", "me", "--topics", "orders"),
        ("token", "remove", "STORE/tokens", "me", "--json"),
        ("token", "list", "STORE/tokens", "--write"),
        ("systemd", "install", "events", "--user", "--root", "STORE", "--print"),
        ("profile", "flusher", "--store", "STORE", "--body-bytes", "1KiB"),
    ],
    ids=" ".join,
)
def test_no_option_is_passed_over(tmp_path: Path, words: tuple[str, ...]) -> None:
    """One of them would do nothing."""
    store = small_store(tmp_path / "store", rows=2)
    before = sorted(store.path.rglob("*"))
    done = run(*(word.replace("STORE", str(store.path)) for word in words))
    assert done.returncode == 2, done.stdout
    assert b"Error: " in done.stderr
    assert sorted(store.path.rglob("*")) == before

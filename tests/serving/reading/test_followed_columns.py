"""`Reader(url, follow=True).arrow_batches` goes on with what comes, however far behind it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog import Reader
from commitlog.errors import ServerUnavailable
from commitlog.remote import fetching
from tests.builders.hand_made import small_store
from tests.served import by_url, forget_connection, place_of
from tests.serving.asking import address_of, server_of


def test_new_rows_after_many_old_ones(
    tmp_path: Path, served_base: str, look_each_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AHEAD_BYTES", "_FIRST_ROWS", "_PIECE_BYTES_LEAST", "_PIECE_BYTES_MOST"):
        monkeypatch.setattr(fetching, name, 1)
    store = small_store(tmp_path / "store")
    with by_url(served_base):
        url = place_of(store.path)
    with Reader(url, "orders", name="far", follow=True) as reader:
        batches, rows = reader.arrow_batches(["partition", "offset"]), 0
        while rows < 200:
            rows += next(batches).num_rows
        for number in range(3):
            store.lane(0).append("orders", b"new")
            store.publish()
            assert next(batches).to_pylist() == [{"partition": 0, "offset": 100 + number}]
            reader.commit()
        batches.close()  # type: ignore[attr-defined]
        store.lane(1).append("orders", b"a message")
        store.publish()
        assert next(reader).value == b"a message"


def test_the_server_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader does not wait for rows for ever: nothing would look for them any more."""
    monkeypatch.setattr(fetching, "PATIENCE_SECONDS", 0.1)
    made = small_store(tmp_path / "store")
    with server_of([made.path]) as server:
        reader = Reader(str(address_of(server)), "orders", follow=True)
        batches, rows = reader.arrow_batches(["offset"]), 0
        while rows < 200:
            rows += next(batches).num_rows
    with reader, pytest.raises(ServerUnavailable):
        next(batches)
    forget_connection(address_of(server))

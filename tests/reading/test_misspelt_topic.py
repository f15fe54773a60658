"""A reader that follows a topic that is not there waits, and warns where it may be misspelt."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import ReadingWarning
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import declare


def test_it_warns_once_and_names_those_that_are_there(tmp_path: Path) -> None:
    """As `cat -f` does, which reads by it."""
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("orders", b"1")
    store.lane(0).append("clicks", b"1")
    store.publish()
    with pytest.warns(
        ReadingWarning, match="no topic oders yet, and .* waits for it; there are: clicks, orders"
    ) as seen:
        reader = commitlog.Reader(store.path, ["oders", "orders"], follow=True)
    with reader:
        assert next(reader).value == b"1"
    assert [warning.filename for warning in seen] == [__file__]


def test_a_topic_that_is_to_come_is_no_mistake(tmp_path: Path) -> None:
    """One that is declared, and any topic of a store without messages."""
    store = HandMadeStore(tmp_path / "store")
    store.publish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        commitlog.Reader(store.path, "orders", follow=True).close()
        store.lane(0).append("clicks", b"1")
        store.publish()
        declare(store, "orders", "id BIGINT")
        commitlog.Reader(store.path, "orders", follow=True).close()

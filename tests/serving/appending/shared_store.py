"""A store that all tests of a file share: the messages of one test, and its URL."""

from __future__ import annotations

from pathlib import Path

import commitlog
from tests.served import by_url, place_of

_begins: dict[Path, dict[int, int]] = {}
"""Where in each lane of a store the messages of the test begin."""


def begin(store: commitlog.Store) -> None:
    """Leaves out what is there now: it is of other tests.

    A test makes its producers by `commitlog.Producer`: the store would keep them for the next one.
    """
    _begins[store.path] = {lane.lane: lane.wrote for lane in store.statistics().lanes}


def messages(store: commitlog.Store, topic: str | None = None) -> list[commitlog.Message]:
    """What the test has written."""
    begins = _begins.get(store.path, {})
    with commitlog.Reader(store.path, topic=topic) as reader:
        return [message for message in reader if message.physical_offset >= begins.get(message.partition, 0)]


def url_of(path: Path, served_base: str) -> str:
    with by_url(served_base):
        return place_of(path)

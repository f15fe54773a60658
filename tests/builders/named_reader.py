"""Readers of one name, for tests of named readers."""

from __future__ import annotations

from typing import Any

from commitlog.client.reader import Reader
from commitlog.message import Message
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders
from tests.builders.hand_made import HandMadeStore

CHANGES = [
    ("readers", "--seek", "billing", "latest"),
    ("readers", "--remove", "billing"),
    ("topics", "--trim", "orders", "--before", "latest", "--force", "--yes"),
    ("topics", "--delete", "orders", "--force", "--yes"),
    ("topics", "--create", "sales", "--schema", "id BIGINT"),
    ("trim", "--keep-bytes", "1kB", "--yes"),
]
"""The commands that change a store with the reader `billing` and the topic `orders`."""
Places = list[tuple[str, int, int]]


def billing(store: HandMadeStore, **options: Any) -> Reader:
    return Reader(store.path, **{"topic": "orders", "name": "billing"} | options)


def place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset


def rest(store: HandMadeStore, **options: Any) -> Places:
    """What a reader of the name is given now."""
    with billing(store, **options) as reader:
        return list(map(place, reader))


def stored(store: HandMadeStore, name: str = "billing") -> NamedReader:
    return NamedReaders(store.directory).load(name)

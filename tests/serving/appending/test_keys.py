"""Keys come by many doors, as text or as bytes. None is lost, and readers show each one."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

import commitlog
from commitlog.errors import IllegalProperty
from commitlog.record.properties import BytesKey
from tests.served import name_of
from tests.serving.appending import shared_store

KEYS = [b"\xff\x00", b"a\x01b", b"\x02", b"plain", None]
"""No UTF-8, RocketMQ's separators, text, and no key."""


@pytest.mark.parametrize("key", [b"k", "a\x01b", "a\x02", "", "\udcff", 7])
def test_keys_that_are_no_text_are_refused_by_both_producers(store: commitlog.Store, url: str, key: str) -> None:
    """Nothing of a batch is sent where one is among its keys."""
    with commitlog.Producer(store.path) as by_path, commitlog.RemoteProducer(url) as by_url:
        for producer in (by_path, by_url):
            with pytest.raises(IllegalProperty):
                producer.send("orders", b"x", key=key)
            with pytest.raises(IllegalProperty):
                producer.send_batch("orders", [b"x", b"y"], keys=["good", key])
            producer.flush()
    assert not shared_store.messages(store)


def test_keys_of_any_bytes_by_flight(store: commitlog.Store, url: str, served_base: str) -> None:
    """Each comes back whole from a Reader, by URL, and as columns; so do copies of the messages."""
    with flight.connect(served_base.replace("commitlog", "grpc")) as client:
        for columns in ({}, {"tags": ["T"] * len(KEYS)}):  # together, and one by one
            table = pa.table({"value": [*KEYS[:-1], b"none"], "key": pa.array(KEYS, pa.binary()), **columns})
            descriptor = flight.FlightDescriptor.for_command(
                orjson.dumps({"store": name_of(store.path), "topic": "keyed"})
            )
            writer, _ = client.do_put(descriptor, table.schema)
            with writer:
                writer.write_table(table)
    read = shared_store.messages(store, "keyed")
    assert [_bytes(message.key) for message in read] == KEYS * 2
    with commitlog.Reader(url, "keyed") as reader:
        remote = list(reader)
    assert [_bytes(message.key) for message in remote] == KEYS * 2
    assert commitlog.read_arrow(store.path, "keyed").read_all()["key"].to_pylist() == KEYS * 2
    with commitlog.Producer(store.path) as by_path, commitlog.RemoteProducer(url) as by_url:
        by_path.send_batch("copy", [message.value for message in read], keys=[message.key for message in read])
        for message in read:
            by_url.send("copy", message.value, key=message.key)
        by_path.flush()
    assert commitlog.read_arrow(store.path, "copy").read_all()["key"].to_pylist() == KEYS * 4


@pytest.mark.nightly
def test_cat_of_a_key_of_bytes(store: commitlog.Store) -> None:
    with commitlog.Producer(store.path) as producer:
        producer.send("shown", b"x", key=BytesKey.of(b"\xff\x00"))
    words = [sys.executable, "-m", "commitlog.cli", "cat", str(store.path), "--topic", "shown"]
    assert subprocess.check_output([*words, "--format", "%k %K"]) == b"\xff\x00 2"
    (line,) = subprocess.check_output([*words, "--format", "json"]).splitlines()
    assert orjson.loads(line)["key_base64"] == "/wA="


def _bytes(key: str | None) -> bytes | None:
    return key.data if isinstance(key, BytesKey) else key.encode() if key else None

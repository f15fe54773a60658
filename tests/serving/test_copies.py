"""Several hosts with copies of a store: which one answers, and what of it others hear."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import store_moved
from commitlog.errors import OffsetOutOfRange, ReadingWarning, StoreMoved, StoreNotRunning
from commitlog.planning.address import Address
from commitlog.remote.remote_index import RemoteIndex
from commitlog.serving.flight_errors import client_error
from commitlog.serving.served_store import ServedStore
from commitlog.serving.server_processes import Server
from commitlog.shm.region import base_directory
from tests.builders.hand_made import HandMadeStore, small_store
from tests.served import forget_connection
from tests.serving.asking import address_of, client_of, server_of


def both(first: Server, second: Server) -> Address:
    """The address of a store that two servers have."""
    return replace(address_of(first), hosts=address_of(first).hosts + address_of(second).hosts)


@pytest.mark.nightly
def test_a_producer_passes_over_a_copy_that_does_not_run(tmp_path: Path) -> None:
    copy = small_store(tmp_path / "copy" / "store")
    with (
        commitlog.Store.open(tmp_path / "store") as store,
        server_of([copy.path], writable=True) as idle,
        server_of([copy.path]) as readable,
        server_of([store.path], writable=True) as running,
    ):
        for other in (idle, readable):
            with commitlog.RemoteProducer(str(both(other, running))) as producer:
                producer.send("orders", b"one").wait()
        with pytest.raises(StoreNotRunning), commitlog.RemoteProducer(str(address_of(idle))):
            pass
        with commitlog.Reader(store.path) as reader:
            assert len(list(reader)) == 2


@pytest.mark.nightly
def test_a_reader_passes_over_a_copy_that_is_behind(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("orders", b"first")
    store.publish()
    shutil.copytree(store.path, tmp_path / "copy" / "store")
    store.lane(0).append("orders", b"second")
    store.publish()
    with server_of([tmp_path / "copy" / "store"]) as behind, server_of([store.path]) as ahead:
        with client_of(address_of(ahead)) as client:
            ticket = client.ticket()
        with client_of(address_of(behind)) as client, pytest.raises(OffsetOutOfRange):
            client.rows(ticket)
        with client_of(both(behind, ahead)) as client:
            assert [value for _, _, value in client.rows(ticket)] == [b"first", b"second"]


def test_a_reader_passes_over_a_copy_that_has_parted_from_its_own(tmp_path: Path) -> None:
    """It is as long, and has another message at the same offset."""

    def send(path: Path, value: bytes) -> None:
        with commitlog.Store.open(path) as store, store.producer() as producer:
            producer.send("orders", value)
            producer.flush()

    old, new = tmp_path / "store", tmp_path / "copy" / "store"
    send(old, b"first")
    commitlog.backup(old, new)
    send(old, b"of the old one")
    send(new, b"second")
    with server_of([old]) as parted, server_of([new]) as right:
        with client_of(address_of(right)) as client:
            ticket = client.ticket()
        with client_of(address_of(parted)) as client, pytest.raises(OffsetOutOfRange, match="are of"):
            client.rows(ticket)
        with client_of(both(parted, right)) as client:
            assert [value for _, _, value in client.rows(ticket)] == [b"first", b"second"]


def test_a_client_is_warned_of_a_store_that_was_killed(tmp_path: Path) -> None:
    """It may have more messages than can be read; the warning has no path of the server."""
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("orders", b"first")
    store.publish()
    store.lane(0).append("orders", b"second")
    (store.directory.lane_directory(0).path / "positions").unlink()
    with server_of([store.path]) as server:
        index = RemoteIndex(address_of(server))
        with pytest.warns(ReadingWarning, match="store was not stopped properly: lane 0") as found:
            index.refresh()
        assert str(tmp_path) not in str(found[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReadingWarning)  # once is enough
            index.refresh()
        forget_connection(address_of(server))


def test_no_error_names_the_pool(tmp_path: Path) -> None:
    store = ServedStore("orders", tmp_path / "store")
    error = client_error(store_moved(store.path, base_directory() / "commitlog-0-6f05f0081d35"), [store])
    assert isinstance(error, StoreMoved)
    assert str(base_directory()) not in str(error)
    assert str(error).startswith("orders was renamed")

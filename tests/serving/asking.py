"""Servers as `commitlog serve` makes them, and clients that ask them."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import commitlog
from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.columns.read_plan import ReadPlan, Slice
from commitlog.errors import NoFreeLane
from commitlog.planning.address import Address, Credentials, parse_address
from commitlog.remote import requests
from commitlog.remote.flight_connection import Connection
from commitlog.remote.remote_rows import ticket_of
from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import settings_of
from tests.waiting import wait_until

HOSTS = ("localhost", "127.0.0.1")
SCHEMA = pa.schema([(name, COLUMN_TYPES[name]) for name in ("partition", "offset", "value")])
_NOTHING: dict[str, Any] = dict.fromkeys(("certificate", "key", "client_authority", "tokens", "advertise"))


def server_of(stores: Sequence[Path | str], *, processes: int = 1, listen: str = "127.0.0.1:0", **given: Any) -> Server:
    """A running server; end it with a with-block. `given` is what `settings_of` takes."""
    settings = settings_of([str(store) for store in stores], listen, **{**_NOTHING, "writable": False, **given})
    return Server(settings, processes)


def address_of(server: Server, store: str = "store", **credentials: Any) -> Address:
    """Where a server has a store, for a client with these credentials."""
    host, tls = "localhost" if server.settings.tls else "127.0.0.1", "+tls" if server.settings.tls else ""
    url = f"commitlog{tls}://{host}:{server.ports[0]}/{store}"
    return parse_address(url).with_credentials(Credentials(**credentials))


def url_of_store(server: Server, store: str = "store") -> str:
    """What a program is given as the place of a store that is served without TLS."""
    return str(address_of(server, store))


def kill_process(server: Server) -> None:
    """Kills the one process that serves, as a lack of memory does. Another one is started."""
    (pid,) = server.pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in server.pids, "the killed process is replaced")


def ask(address: Address, kind: str = "stores", request: object = None) -> Any:
    """The answer to one action, over a connection of its own."""
    with closing(Connection(address)) as connection:
        return connection.ask(kind, requests.Stores() if request is None else request)


@dataclass
class Client:
    """A connection to a store: it looks, and reads rows as a task of Spark's does."""

    address: Address
    connection: Connection

    def look(self) -> requests.Looked:
        return requests.Looked(**self.connection.ask("look", requests.Look(self.address.store)))

    def ticket(self, topic: str = "orders") -> bytes:
        """The ticket of all rows that there are now."""
        looked = self.look()
        assert looked.queues is not None
        slices = tuple(
            Slice(topic, int(lane), first, end, -1, 0) for lane, (first, end) in looked.queues[topic].items()
        )
        plan = ReadPlan("", looked.store_id, 0, slices, epoch=looked.epoch)
        return ticket_of(plan, SCHEMA, self.address.store)

    def batches(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in self.connection.read(ticket))

    def rows(self, ticket: bytes) -> list[tuple[int, int, bytes]]:
        """Lane, offset and value of each row."""
        return [
            (row["partition"], row["offset"], row["value"])
            for batch in self.batches(ticket)
            for row in batch.to_pylist()
        ]


@contextmanager
def client_of(address: Address) -> Iterator[Client]:
    with closing(Connection(address)) as connection:
        yield Client(address, connection)


class Certificates:
    """An authority, a foreign one, and certificates of both as files in PEM format."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._own, self._foreign = trustme.CA(), trustme.CA()
        self.authority, self.foreign_authority = directory / "authority.pem", directory / "foreign.pem"
        self._own.cert_pem.write_to_path(str(self.authority))
        self._foreign.cert_pem.write_to_path(str(self.foreign_authority))

    def make(self, name: str, *hosts: str, foreign: bool = False, expired: bool = False) -> tuple[Path, Path]:
        """A certificate and its key."""
        now = datetime.datetime.now(datetime.UTC)
        times: dict[str, Any] = (
            {"not_before": now - datetime.timedelta(9), "not_after": now - datetime.timedelta(1)} if expired else {}
        )
        made = (self._foreign if foreign else self._own).issue_cert(*hosts or HOSTS, **times)
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return certificate, key

    def with_password(self, name: str) -> Path:
        """The key of a certificate that was made, in a file that a password opens."""
        plain = load_pem_private_key((self.directory / f"{name}.key").read_bytes(), None)
        encrypted = self.directory / f"{name}-encrypted.key"
        encrypted.write_bytes(
            plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
        )
        return encrypted


def await_free_lane(store: commitlog.Store) -> None:
    """Waits until a producer gets a lane: the server gives one back a moment after its stream."""

    def is_free() -> bool:
        try:
            commitlog.Producer(store.path).close()
        except NoFreeLane:
            return False
        return True

    wait_until(is_free, "the lane is free")

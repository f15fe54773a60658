"""Calls to the servers of a store, over Arrow Flight. Threads may share a connection."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import pyarrow as pa

from commitlog.disk.descriptors import are_free
from commitlog.disk.file_channel import DISK
from commitlog.errors import (
    AccessDenied,
    CertificateRefused,
    CommitLogError,
    OffsetOutOfRange,
    ServerBusy,
    ServerError,
    ServerUnavailable,
    StoreNotRunning,
    StoreRefused,
    named_while_loading,
)
from commitlog.planning.address import Address
from commitlog.remote import requests
from commitlog.remote.server_errors import translated
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.system.threads import are_startable

if TYPE_CHECKING:
    from pyarrow import flight

ANSWER_SECONDS = 60.0
"""How long an answer may take, apart from streams of rows."""
PATIENCE_SECONDS = 30.0
"""How long a server that was there before may be away, for a restart."""
BUSY_PATIENCE_SECONDS = 900.0
"""How long a task waits for its turn: a server ends streams that others need after 10 minutes."""
_FILE_BYTES_MAX = 1 << 20
_NEEDED_DESCRIPTORS = 8
"""What a call may take: gRPC ends the whole process where it gets none."""
_NEEDED_THREADS = 10
"""What a client may start. gRPC ends the process in this case, too."""
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
_GRPC_OPTIONS = [
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
"""A server that has vanished is noticed. gRPC's servers end connections that ask more often.

One that comes back is tried again while there is patience. gRPC itself would wait for minutes.
"""

_OF_CREDENTIALS = (AccessDenied, CertificateRefused, ServerUnavailable)
"""The errors of a client whose credentials are out of date.

A server that wants another certificate of the client ends the connection, and does not say why.
"""
_CANT_APPEND = (StoreNotRunning, AccessDenied)
"""The errors of the host of a copy for a client that wants to append."""

_PASSED_OVER: dict[str, tuple[type[CommitLogError], ...]] = {
    "check_append": _CANT_APPEND,
    "hold_reader": (StoreRefused,),
    "move_name": (StoreRefused,),
}
"""Actions → the errors of a host whose copy can't do what another one may: it is a replica."""

Host = tuple[str, int]
T = TypeVar("T")

_process = 0
"""The process that has made connections: gRPC does not survive a fork."""


class Connection:
    """The connection to one server of a store at a time: to the first one that answers.

    Files of the credentials that have changed are read again when a server refuses the old ones: a
    process may live longer than a token or a certificate. Raises ServerError where one of them
    can't be read.
    """

    def __init__(self, address: Address) -> None:
        with named_while_loading("gRPC"):
            import pyarrow.flight  # noqa: F401
        self.address = address
        self._files = _Files(address)
        self._clients: dict[Host, flight.FlightClient] = {}
        self._lock = threading.Lock()
        self._at = 0
        self._was_there = False

    def ask(self, kind: str, request: object, *, patient: bool = True) -> Any:
        """Returns the answer to an action, as Python reads its JSON. `kind` names the action.

        If no server answers, it tries again for a while, unless it is not to be `patient`; nor does
        it if none has ever answered.

        Raises what the server raises, ServerUnavailable, AccessDenied, CertificateRefused.
        """
        from pyarrow import flight

        action = flight.Action(kind, orjson.dumps(request, option=orjson.OPT_NON_STR_KEYS))

        def call(host: Host) -> Any:
            options = flight.FlightCallOptions(timeout=ANSWER_SECONDS, headers=self._files.headers)
            answers = [result.body for result in self._client(*host).do_action(action, options)]
            return orjson.loads(memoryview(answers[0])) if answers else None

        passed_over = _PASSED_OVER.get(kind, (OffsetOutOfRange,))
        return self._at_some_host(call, patient=patient and self._was_there, passed_over=passed_over)

    def read(
        self, ticket: bytes, port: int | None = None, *, patient: bool = True
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """The batches of a ticket, each with its metadata, which is b"" if there is none.

        `port` is that of one of the server's processes, and is tried first. If no server answers,
        it tries again for a while, unless it is not to be `patient`. Raises what the server raises,
        and ServerUnavailable, also in the middle.
        """
        from pyarrow import flight

        def open_stream(host: Host) -> tuple[flight.FlightStreamReader, flight.FlightStreamChunk | None]:
            options = flight.FlightCallOptions(headers=self._files.headers)
            stream = self._client(*host).do_get(flight.Ticket(ticket), options)
            return stream, next(iter(stream), None)

        stream, chunk = self._at_some_host(open_stream, patient=patient, port=port)
        try:
            while chunk is not None:
                metadata = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
                yield chunk.data, metadata
                try:
                    chunk = stream.read_chunk()
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as error:
                    raise translated(error, self.address) from None
        finally:
            stream.cancel()

    def append(
        self, request: requests.Append, schema: pa.Schema, *, patient: bool = False
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader, bytes]:
        """Opens a stream of rows, and waits for the server's first answer, which is the last value.

        Raises what the server raises, ServerUnavailable, AccessDenied, CertificateRefused.
        """
        from pyarrow import flight

        descriptor = flight.FlightDescriptor.for_command(orjson.dumps(request))

        def open_stream(host: Host) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader, bytes]:
            options = flight.FlightCallOptions(headers=self._files.headers)
            writer, reader = self._client(*host).do_put(descriptor, schema, options)
            answer = reader.read()
            if answer is None:
                writer.close()  # raises what the server has raised
                raise ServerError(f"{self.address}: the server has ended the stream without a word")
            return writer, reader, answer.to_pybytes()

        return self._at_some_host(open_stream, patient=patient, passed_over=_CANT_APPEND)

    def close(self) -> None:
        """Closes what is open."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _client(self, host: str, port: int) -> flight.FlightClient:
        from pyarrow import flight

        if not are_free(_NEEDED_DESCRIPTORS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if (host, port) not in self._clients and not are_startable(_NEEDED_THREADS):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        with self._lock:
            client = self._clients.get((host, port))
            if client is None:
                _keep_grpc_quiet()
                make = flight.Location.for_grpc_tls if self.address.tls else flight.Location.for_grpc_tcp
                client = flight.FlightClient(make(host, port), generic_options=_GRPC_OPTIONS, **self._files.tls)
                self._clients[host, port] = client
        return client

    def _has_newer(self, files: _Files) -> bool:
        """Whether the files have changed since `files` were read. From then on they are used."""
        try:
            newest = _Files(self.address)
        except CommitLogError:  # gone or half written: what the server has said matters more
            return False
        with self._lock:
            if self._files is files and (newest.headers, newest.tls) != (files.headers, files.tls):
                self._files, self._clients = newest, {}  # streams that are open keep the old clients
            return self._files is not files

    def _at_some_host(
        self,
        call: Callable[[Host], T],
        *,
        patient: bool,
        port: int | None = None,
        passed_over: tuple[type[CommitLogError], ...] = (OffsetOutOfRange,),
    ) -> T:
        """Calls the host that answered last, then the others in turn.

        A host whose answer is one of `passed_over` may have a copy that is behind, or one that
        can't be appended to: another host may do better. If none answers and it is to be
        `patient`, it tries again for a while.
        """
        hosts = self.address.hosts
        preferred = [] if port is None else [(hosts[self._at][0], port)]
        files, began_ns = self._files, SYSTEM_CLOCK.monotonic_ns()
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while True:
            refused: CommitLogError | None = None
            turns = [(index, hosts[index]) for index in (*range(self._at, len(hosts)), *range(self._at))]
            for index, host in (*((self._at, host) for host in preferred), *turns):
                try:
                    answer = call(host)
                except (pa.ArrowException, OSError) as error:
                    complaint = translated(error, self.address)
                    if isinstance(complaint, _OF_CREDENTIALS) and self._has_newer(files):
                        return self._at_some_host(call, patient=patient, port=port, passed_over=passed_over)
                    if isinstance(complaint, passed_over):
                        refused = refused or complaint
                    elif not isinstance(complaint, (ServerUnavailable, ServerBusy)):
                        raise complaint from None
                    continue
                self._at, self._was_there = index, True
                return answer
            if refused is not None:
                raise refused
            patience = BUSY_PATIENCE_SECONDS if isinstance(complaint, ServerBusy) else PATIENCE_SECONDS
            if not patient or SYSTEM_CLOCK.monotonic_ns() - began_ns >= patience * 1e9:
                raise complaint
            SYSTEM_CLOCK.sleep(next(pauses))


class _Files:
    """What a client says of itself in each call, and what it believes."""

    def __init__(self, address: Address) -> None:
        known, names = address.credentials, address.names
        token = (known.token or "").encode() if known.token_file is None else _read(known.token_file, names.token_file)
        token = token.strip()
        if not all(33 <= byte <= 126 for byte in token):
            raise AccessDenied(
                f"{names.token if known.token_file is None else names.token_file}: a token has no blanks and no letters "
                "beyond ASCII; give it as `commitlog token add` has printed it"
            )
        self.headers = [(b"authorization", b"Bearer " + token)] if token else []
        self.tls: dict[str, Any] = {}
        if address.tls:
            if known.ca_file:
                self.tls["tls_root_certs"] = _read(known.ca_file, names.ca_file)
            if known.cert_file and known.key_file:
                self.tls["cert_chain"] = _read(known.cert_file, names.cert_file)
                self.tls["private_key"] = _read(known.key_file, names.key_file)


def _read(file: str, name: str) -> bytes:
    try:
        return DISK.read_named_file(file, _FILE_BYTES_MAX)
    except OSError as error:
        raise ServerError(f"{name} {file}: {error.strerror}; give a file that this process can read") from None


def _keep_grpc_quiet() -> None:
    """Keeps gRPC's own lines away from standard error: what they tell comes as an error, too.

    Its library reads the variable when it makes the first client. A user's setting stays.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_connections: dict[Address, Connection] = {}
_connections_lock = threading.Lock()


def connection_of(address: Address) -> Connection:
    """The connection of this process to the servers of an address. It stays for later calls.

    Raises ServerError in a process that was forked from one with connections, and where a file of
    the credentials can't be read.
    """
    global _process
    if _process not in (0, os.getpid()):
        raise ServerError(
            "this process was forked from one that had asked a server, which does not work: start it with "
            "multiprocessing's method spawn or forkserver"
        )
    _process = os.getpid()
    server = replace(address, store="")
    with _connections_lock:
        found = _connections.get(server)
        if found is None:
            found = _connections[server] = Connection(server)
        return found

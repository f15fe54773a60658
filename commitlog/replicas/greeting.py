"""Greets a store over the network."""

from __future__ import annotations

import socket
import ssl

from commitlog.disk.replica_files import is_replica_name
from commitlog.disk.store_directory import StoreFacts
from commitlog.replicas.tls import GREETING_SECONDS, Credentials, connect, connection_error
from commitlog.replicas.wire import Hello, Welcome, read_greeting


def exchange(peer: ssl.SSLSocket, address: str, credentials: Credentials, hello: Hello) -> Welcome:
    """Greets, and returns what the store says of itself.

    In TLS 1.3 a store that refuses our certificate says so only now. Raises what the store refuses
    with, ReplicationRefused, EOFError, OSError.
    """
    try:
        peer.sendall(hello.to_bytes())
        return Welcome.from_bytes(read_greeting(peer.recv_into))
    except (ssl.SSLError, ConnectionError, EOFError) as error:
        raise connection_error(address, error, credentials) from error


def ask_epoch(address: str, credentials: Credentials, facts: StoreFacts, seconds: float = GREETING_SECONDS) -> Welcome:
    """Returns what the store at an address says of itself.

    That store learns the asking store's epoch. Raises StoreSuperseded where it is of an older
    epoch, ReplicaRefused where it is another store, ReplicationRefused, EOFError, and OSError where
    nobody answers.
    """
    host = socket.gethostname()
    hello = Hello(host if is_replica_name(host) else "store", facts.id, facts.epoch, follows=False)
    with connect(address, credentials, seconds) as peer:
        return exchange(peer, address, credentials, hello)

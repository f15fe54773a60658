"""The door for replicas: who says nothing or goes away keeps nobody waiting, and leaves nothing."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.config import ReplicationConfig
from commitlog.replicas import wire
from commitlog.replicas.tls import Credentials
from commitlog.stages.replicating import replica_listener
from commitlog.stages.replicating.in_sync import InSync
from commitlog.stages.replicating.peer_connection import Throttle
from commitlog.stages.replicating.peers import Peers
from commitlog.stages.replicating.replica_listener import ReplicaListener
from commitlog.system.clock import SYSTEM_CLOCK
from tests.builders.idle_store import IdleStore, idle_store
from tests.ports import free_port
from tests.serving.asking import Certificates
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool") as made:
        yield made


@contextmanager
def listening(store: IdleStore, certificates: Certificates) -> Iterator[int]:
    """The port of a listener. Its greetings may take for ever."""
    certificate, key = certificates.make("store")
    port = free_port()
    config = ReplicationConfig(
        listen=f"127.0.0.1:{port}",
        certificate=str(certificate),
        key=str(key),
        authority=str(certificates.authority),
    )
    in_sync = InSync(store.control, 1, config, SYSTEM_CLOCK, lambda *_: None)
    peers = Peers(store.directory, store.facts, store.control, config, SYSTEM_CLOCK, in_sync, lambda _: None)
    listener = ReplicaListener(peers, {}, 1, config, SYSTEM_CLOCK, Throttle(0, SYSTEM_CLOCK))
    listener.serve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_listener, "GREETING_SECONDS", 1e6)
        patch.setattr(replica_listener, "_STRANGER_SECONDS", 1e6)
        try:
            yield port
        finally:
            listener.close()


def greetings() -> int:
    return sum(thread.name.startswith("greeting") for thread in threading.enumerate())


@pytest.mark.parametrize("certified", [True, False])
def test_who_says_nothing_does_not_hold_a_stop(store: IdleStore, tmp_path: Path, certified: bool) -> None:
    """Neither in the handshake nor behind it."""
    certificates = Certificates(tmp_path)
    context = Credentials(*certificates.make("copy"), certificates.authority).context(server_side=False)
    with ExitStack() as stack:
        with listening(store, certificates) as port:
            peer: socket.socket = socket.create_connection(("127.0.0.1", port))
            stack.enter_context(context.wrap_socket(peer, server_hostname="localhost") if certified else peer)
            wait_until(greetings, "it is greeted")
        assert not greetings()


def test_strangers_who_say_nothing_do_not_keep_a_replica_out(store: IdleStore, tmp_path: Path) -> None:
    """They hold all places, and never go by themselves: the oldest of them has to go."""
    certificates = Certificates(tmp_path)
    context = Credentials(*certificates.make("copy"), certificates.authority).context(server_side=False)
    with listening(store, certificates) as port, ExitStack() as stack:
        here = "127.0.0.1", port
        for _ in range(16):
            stack.enter_context(socket.create_connection(here, source_address=("127.0.0.2", 0)))
        wait_until(lambda: greetings() == 16, "all places are taken")
        with context.wrap_socket(socket.create_connection(here, 30), server_hostname="localhost") as tls:
            assert tls.version() == "TLSv1.3"


def test_a_refusal_that_nobody_takes_leaves_no_socket(
    store: IdleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer goes away between its greeting and the answer. A socket left open is a warning."""
    certificates, is_gone = Certificates(tmp_path), threading.Event()
    context = Credentials(*certificates.make("copy"), certificates.authority).context(server_side=False)
    real = wire.refusal

    def late(error: Any) -> bytes:
        is_gone.wait(60)
        return real(error)

    monkeypatch.setattr(replica_listener, "refusal", late)
    with listening(store, certificates) as port:
        peer: ssl.SSLSocket
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as peer:
            peer.sendall(struct.pack(">I", 2) + b"no")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        is_gone.set()
        wait_until(lambda: not greetings(), "the greeting is over")

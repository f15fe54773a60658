"""What a broker refuses for a while must not end a forwarder later."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server

import pytest
from confluent_kafka import KafkaException

from commitlog.errors import TargetRefused
from commitlog.forwarding import cluster as cluster_module
from commitlog.forwarding.cluster import Cluster
from commitlog.forwarding.forward_settings import settings_of
from tests.serving.asking import Certificates
from tests.waiting import wait_until


@contextmanager
def tls_broker(certificates: Certificates) -> Iterator[int]:
    """The port of a server whose certificate nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.make("broker"))

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer, suppress(OSError):
                    context.wrap_socket(peer, server_side=True).close()

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(2)
            thread.join()


def test_a_certificate_that_was_bad_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has done what it was asked since, by another broker: its refusal is forgotten."""
    monkeypatch.setattr(cluster_module, "_CONNECT_SECONDS", 1.0)
    with tls_broker(Certificates(tmp_path)) as port:
        url = f"kafka://127.0.0.1:{port}"
        cluster = Cluster(settings_of("x", url, wait=True, properties={"security.protocol": "SSL"}))

        def is_refused() -> bool:
            try:
                cluster.check_is_there()
            except TargetRefused as refusal:
                return "certificate" in str(refusal)
            except KafkaException:
                return False  # on a busy machine no handshake has ended in time
            return False

        wait_until(is_refused, "the broker's certificate to be refused")

    def has_heard_all() -> bool:
        cluster.note_success()
        return "SSL routines" not in cluster.last_error

    wait_until(has_heard_all, "a connection that fails for another reason")
    with pytest.raises(KafkaException):
        cluster.check_is_there()

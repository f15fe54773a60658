"""One process of a server: `python -m commitlog.serving.process`, started by server.py.

It reads lines of JSON from its parent, and writes such lines:

    parent: its settings                        process: {"port": 4433}, or {"refused": "…"}
    parent: {"ports": [4433, 4434]}             process: {"traffic": …}, whenever it has changed

It ends when its parent closes the pipe, or is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import orjson

from commitlog.errors import CommitLogError, ServingRefused
from commitlog.serving.access import Tokens
from commitlog.serving.connections import peers
from commitlog.serving.served_store import ServedStore
from commitlog.serving.settings import ServerSettings, read_pem

LOOK_SECONDS = 1.0
END_SECONDS = 5.0
"""How long running calls may take to end with the server."""


def main() -> None:
    """Serves until the parent closes standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends its processes
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settings = ServerSettings(**orjson.loads(sys.stdin.readline()))
    try:
        server, stores = _started(settings)
    except CommitLogError as error:
        _tell({"refused": str(error)})
        return
    _tell({"port": server.port})
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(server, stores, ended), name="watches")
    watcher.start()
    for line in sys.stdin:
        server.ports = tuple(orjson.loads(line)["ports"])
    ended.set()
    ending = threading.Thread(target=server.shutdown, daemon=True, name="ends")
    ending.start()
    ending.join(END_SECONDS)
    watcher.join()
    for store in stores.values():
        store.close()


def _started(settings: ServerSettings) -> tuple[Any, dict[str, ServedStore]]:
    import pyarrow as pa

    from commitlog.serving.flight_server import FlightServer

    stores = {name: ServedStore(name, Path(path)) for name, path in settings.stores.items()}
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    certificate = None
    if settings.certificate and settings.key:
        certificate = read_pem(settings.certificate), read_pem(settings.key)
    try:
        server = FlightServer(
            f"{'grpc+tls' if settings.tls else 'grpc'}://{host}:{settings.port}",
            stores,
            tokens=Tokens(Path(settings.tokens)) if settings.tokens else None,
            certificate=certificate,
            client_authority=read_pem(settings.client_authority) if settings.client_authority else None,
            writable=settings.writable,
        )
    except (pa.ArrowException, OSError) as error:
        raise ServingRefused(
            f"can't listen on {host}:{settings.port}: give an address of this machine and a free port, and a certificate "
            f"with its own key ({str(error).splitlines()[0][:200]})"
        ) from None
    return server, stores


def _watch(server: Any, stores: dict[str, ServedStore], ended: threading.Event) -> None:
    """Says what clients have used, and ends what they have left."""
    told = None
    while not ended.wait(LOOK_SECONDS):
        connected = peers()
        for store in stores.values():
            store.end_old_leases(connected)
        traffic = server.traffic.by_store()
        if traffic != told:
            told = traffic
            _tell({"traffic": traffic})


def _tell(facts: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(facts) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
    logging.shutdown()
    os._exit(0)  # a call that waits for its client would keep the interpreter from ending

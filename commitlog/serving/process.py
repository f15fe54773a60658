"""One process of a server: `python -m commitlog.serving.process_start`, by server_processes.py.

It reads lines of JSON from its parent, and writes such lines:

    parent: variables (process_start.py)
    parent: its settings                        process: {"port": 4433}, or {"refused": "…"}
    parent: {"ports": [4433, 4434]}             process: {"traffic": …}, whenever it has changed

It ends when its parent closes the pipe, or is gone.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import orjson

from commitlog.columns.process_memory import keep_memory
from commitlog.disk.file_channel import DISK
from commitlog.errors import CommitLogError, ServingRefused
from commitlog.serving.access import Tokens
from commitlog.serving.connections import descriptors
from commitlog.serving.memory_bounds import calls_that_fit, limit_memory
from commitlog.serving.served_store import ServedStore
from commitlog.serving.server_settings import ServerSettings, read_pem
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.system.process_title import set_process_title
from commitlog.system.threads import check_startable
from commitlog.text.lines import log_to

LOOK_SECONDS = 1.0
"""How often clients that are gone are looked for, and connections in any case."""
CONNECTIONS_SECONDS = 0.25
"""How often connections are looked at when there may be new ones; less often where that is slow."""
CONNECTIONS_SHARE = 300
"""At most this part of a core looks at connections: 0.3 %."""
DESCRIPTORS = 1 << 16
THREADS = 16
"""What a server starts at once, and some more. gRPC hangs, or ends the process, without them."""
END_SECONDS = 5.0
"""How long running calls may take to end with the server."""

log = logging.getLogger(__name__)


def main() -> None:
    """Serves until the parent closes standard input."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends its processes
        signal.signal(number, signal.SIG_IGN)
    log_to(sys.stderr, logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    _take_descriptors()
    _offer_to_die_first()
    settings = ServerSettings(**orjson.loads(sys.stdin.readline()))
    set_process_title("server", *settings.stores.values())
    limit_memory(settings.memory_bytes)
    try:
        server, stores = _started(settings)
    except CommitLogError as error:
        _tell({"refused": str(error)})
        return
    keep_memory()
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

    check_startable(THREADS, "a server")
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
            f"with its own key, which has no password ({str(error).splitlines()[0][:200]})"
        ) from None
    server.host = settings.advertise
    server.limits.lower(*calls_that_fit(settings.memory_bytes))
    return server, stores


def _take_descriptors() -> None:
    """Each connection needs a descriptor, and often no more than 1,024 are allowed at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _offer_to_die_first() -> None:
    """Where memory runs out, the kernel ends this process, and no stage and no producer."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError), DISK.opened(score, write=True) as fd:  # some containers forbid it
        DISK.pwrite(fd, b"800", 0)


def _watch(server: Any, stores: dict[str, ServedStore], ended: threading.Event) -> None:
    """Says what clients have used, and ends what they have left."""
    told, pause, next_ns, seen = None, CONNECTIONS_SECONDS, 0, None
    while not ended.wait(pause):
        try:
            began_ns, opened = SYSTEM_CLOCK.monotonic_ns(), descriptors()
            if began_ns < next_ns and opened == seen and not server.limits.has_unknown:
                continue
            seen = opened
            connected = server.limits.look()
            now = SYSTEM_CLOCK.monotonic_ns()
            pause = max(CONNECTIONS_SECONDS, CONNECTIONS_SHARE * (now - began_ns) / 1e9)
            if now < next_ns:
                continue
            next_ns = now + int(LOOK_SECONDS * 1e9)
            for store in stores.values():
                store.end_old_leases(connected)
        except (OSError, CommitLogError) as error:  # a disk is full, or no descriptor is left
            log.warning("clients that are gone are looked for again soon: %s", error)
            pause = LOOK_SECONDS
        except Exception:  # without this thread no lease and no stalled stream would ever end
            log.exception("a look at the clients has failed, and the next one comes soon")
            pause = LOOK_SECONDS
        traffic = server.traffic.by_store()
        if traffic != told:
            told = traffic
            _tell({"traffic": traffic})


def _tell(facts: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(facts) + b"\n")
    sys.stdout.buffer.flush()

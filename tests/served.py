"""A real server of any store, for tests that run twice: by path and by URL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from commitlog.planning.address import Address

ROOT = Path(__file__).parents[1]
SLASH = "~"
"""Stands for / in the names of stores: a name is a whole path."""

_base: str | None = None


def name_of(path: str | os.PathLike[str]) -> str:
    """The name by which the server knows the store at a path."""
    return os.fspath(path).replace("/", SLASH)


def place_of(path: str | os.PathLike[str]) -> str:
    """What a test gives as the path of a store: the path itself, or its URL."""
    return os.fspath(path) if _base is None else f"{_base}/{quote(name_of(path))}"


@contextmanager
def by_url(base: str | None) -> Iterator[None]:
    """Makes `place_of` give URLs that begin with `base`, or paths (None)."""
    global _base
    _base = base
    try:
        yield
    finally:
        _base = None


def is_by_url() -> bool:
    """Whether the test runs by URL."""
    return _base is not None


def forget_connection(address: Address) -> None:
    """Closes this process's connection, so that a test leaves none open."""
    from commitlog.remote import flight_connection

    found = flight_connection._connections.pop(replace(address, store=""), None)
    if found is not None:
        found.close()


@contextmanager
def any_store_server() -> Iterator[str]:
    """A server of this machine's stores, each by its path. Gives the beginning of their URLs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.served"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield f"commitlog://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _serve() -> None:
    from collections import OrderedDict

    from commitlog.reading import named_readers, topic_index
    from commitlog.serving.flight_server import FlightServer
    from commitlog.serving.served_store import ServedStore

    class AnyStore(OrderedDict[str, ServedStore]):
        """Serves a store when it is asked for, and the last few ones."""

        def get(self, name: str, default: object = None) -> ServedStore:
            del default
            if name not in self:
                if len(self) > 8:
                    self.popitem(last=False)[1].close()
                self[name] = ServedStore(name, Path(name.replace(SLASH, "/")))
            return self[name]

    topic_index.STOPPED_REREAD_NS = 0
    named_readers.PATIENCE_SECONDS = 0.05
    server = FlightServer("grpc://127.0.0.1:0", AnyStore(), writable=True)
    server.ports = (server.port,)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()

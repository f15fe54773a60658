"""A small HTTP server that no client can fill up: places for connections, and time for requests.

Whoever says nothing, or takes no answer, holds a place only for as long as nobody else needs it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Any

CONNECTIONS_MAX = 32
"""Connections at the same time, a thread each. Where all wait for an answer, more are closed."""
REQUEST_SECONDS = 20
"""How long a client may be silent while it asks, and while it takes an answer."""


class BoundedServer(ThreadingHTTPServer):
    """Takes CONNECTIONS_MAX connections. For one more, the one that is silent the longest ends.

    One is silent until it has asked something, and again as soon as its answer begins.
    """

    daemon_threads = True
    block_on_close = False  # a client that waits must not keep the end waiting

    def __init__(self, address: tuple[str, int], handler: type[BoundedHandler]) -> None:
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._silent: dict[Any, None] = {}
        """Connections whose request is not there yet, or whose answer is, the oldest first."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._take_place(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started now
            self._give_back(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._give_back(request)

    def _take_place(self, request: Any) -> bool:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._silent), None)
                if oldest is None:
                    return False
                del self._silent[oldest]
                self._open.discard(oldest)
                with suppress(OSError):  # it has gone by itself
                    oldest.shutdown(SHUT_RDWR)  # its thread reads the end
            self._open.add(request)
            self._silent[request] = None
            return True

    def _give_back(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            self._silent.pop(request, None)

    def answering(self, request: Any, *, ends: bool = False) -> None:
        """Says that a connection has asked something, or, with `ends`, that its answer is there."""
        with self._lock:
            self._silent.pop(request, None)
            if ends and request in self._open:
                self._silent[request] = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or is too slow, is no error of ours.

        Others keep their traceback.
        """
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class BoundedHandler(BaseHTTPRequestHandler):
    """Answers the requests of a connection, by `answer`."""

    server: BoundedServer
    timeout = REQUEST_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "commitlog", ""

    def do_GET(self) -> None:
        self.server.answering(self.connection)
        try:
            self.answer()
        finally:
            self.server.answering(self.connection, ends=True)

    def flush_headers(self) -> None:
        """Begins the answer. From now on it is for the client to go on."""
        self.server.answering(self.connection, ends=True)
        super().flush_headers()

    def answer(self) -> None:
        """Answers one request."""
        raise NotImplementedError

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing: clients ask every second."""

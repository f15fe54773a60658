"""The server of `commitlog metrics --listen` and of `ui`: no client keeps others waiting."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from commitlog.watching.bounded_server import CONNECTIONS_MAX, BoundedHandler, BoundedServer
from tests.waiting import wait_until

LARGE = b"x" * (16 << 20)
"""More than the buffers of a connection take."""


class _Answers(BoundedHandler):
    writing = 0
    """How many answers were begun."""

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(LARGE)))
        self.end_headers()
        _Answers.writing += 1
        self.wfile.write(LARGE)


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    with BoundedServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield "127.0.0.1", server.server_address[1]
        server.shutdown()
        thread.join()


def test_clients_that_read_no_answer_keep_nobody_waiting(place: tuple[str, int]) -> None:
    """Each holds a place only until another client needs it."""
    _Answers.writing = 0
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            stack.enter_context(socket.create_connection(place)).sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: _Answers.writing == CONNECTIONS_MAX, "all places are taken by answers that nobody reads")
        for _ in range(3):
            client = http.client.HTTPConnection(*place, timeout=60)
            client.request("GET", "/")
            assert len(client.getresponse().read()) == len(LARGE)
            client.close()
    wait_until(lambda: not [one for one in threading.enumerate() if "process_request" in one.name], "threads end")

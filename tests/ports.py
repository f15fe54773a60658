"""Ports of this machine that nobody has now."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def free_port() -> int:
    """A port that nobody listens on. A store that starts again comes back to its own."""
    return free_ports(1)[0]

"""Ports of this machine that nobody has now."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_OWN_BELOW = 32_768
"""The system gives no port below this one to others by itself, unless it is configured so."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on.

    They are bound some seconds later, so they are not of those that the system gives to other
    programs meanwhile.
    """
    first_given = int(_RANGE.read_text().split()[0])
    below = first_given if first_given > _OWN_BELOW // 2 else _OWN_BELOW
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(below // 2, below)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    """A port that nobody listens on. A store that starts again comes back to its own."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""The connections of this process, as the kernel knows them. gRPC does not tell."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from stat import S_ISSOCK
from urllib.parse import unquote

from commitlog.disk.file_channel import DISK

_DESCRIPTORS = "/proc/self/fd"
_RECEIVED = struct.Struct("128xQ")
"""Linux' struct tcp_info up to `tcpi_bytes_received`."""
_ESTABLISHED = 1
"""Its first byte where both ends are open: TCP_ESTABLISHED."""


def peer_of(flights: str) -> str:
    """`host:port` of a peer as Flight names it, such as `ipv4:127.0.0.1:4000`."""
    _, _, address = unquote(flights).partition(":")
    host, _, port = address.rpartition(":")
    return _peer(host.strip("[]"), port)


def _peer(host: str, port: str | int) -> str:
    """A link's name (`%eth0`) is left out, because not all tell it."""
    return f"{host.removeprefix('::ffff:').partition('%')[0]}:{port}"


def descriptors() -> list[str]:
    """The numbers of this process's open descriptors. A new connection changes them, as a rule.

    If no descriptor is free for this look, the result is every number that the process may have.
    """
    try:
        return DISK.list(_DESCRIPTORS)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return [str(number) for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]


def peers() -> set[str]:
    """`host:port` of all peers that are connected to this process.

    A peer that has closed its end does not count, although its socket stays open until gRPC
    notices.
    """
    return {peer for peer, _, connection in _connections() if _is_established(connection)}


def received(port: int) -> dict[str, int]:
    """`host:port` of all that are connected to a port here, and how many bytes came from there."""
    found = {}
    for peer, own_port, connection in _connections():
        if own_port != port:
            continue
        with suppress(OSError):
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
            found[peer] = _RECEIVED.unpack(facts)[0]
    return found


def _is_established(connection: socket.socket) -> bool:
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:  # closed meanwhile
        return False
    return state[0] == _ESTABLISHED


def end_connections(port: int, ended: set[str]) -> None:
    """Ends the connections of these peers to a port. gRPC sees it as if they had done so."""
    for peer, own_port, connection in _connections():
        if own_port == port and peer in ended:
            with suppress(OSError):  # the peer has ended it meanwhile
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[tuple[str, int, socket.socket]]:
    """Peer, own port and socket of each connection; the descriptors are gRPC's and stay open."""
    for name in descriptors():
        try:
            if not S_ISSOCK(os.fstat(int(name)).st_mode):  # most are none, and an error costs more
                continue
            connection = socket.socket(fileno=int(name))
        except OSError:  # closed meanwhile
            continue
        try:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
            host, port = connection.getpeername()[:2] if is_tcp else ("", 0)
            own_port = connection.getsockname()[1] if is_tcp else 0
        except OSError:  # it listens, or was ended meanwhile
            host = ""
        try:
            if host:
                yield _peer(host, port), own_port, connection
        finally:
            connection.detach()

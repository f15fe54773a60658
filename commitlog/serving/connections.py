"""The connections of this process, as the kernel knows them. gRPC does not tell."""

from __future__ import annotations

from urllib.parse import unquote

import psutil


def peer_of(flights: str) -> str:
    """`host:port` of a peer as Flight names it, such as `ipv4:127.0.0.1:4000`."""
    _, _, address = unquote(flights).partition(":")
    host, _, port = address.rpartition(":")
    return f"{host.strip('[]')}:{port}"


def peers() -> set[str]:
    """`host:port` of all that this process is connected to."""
    return {
        f"{found.raddr.ip.removeprefix('::ffff:')}:{found.raddr.port}"
        for found in psutil.Process().net_connections("tcp")
        if found.status == psutil.CONN_ESTABLISHED and found.raddr
    }

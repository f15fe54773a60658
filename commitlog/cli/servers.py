"""The servers of a store and their clients, as `stat` and `top` show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from commitlog.disk.server_files import ServerStatistics
from commitlog.text.quantities import counted

CLIENT_HEADS = ("client", "streams", "calls", "rows read", "MB read", "rows written", "MB written", "errors")


def as_json(server: ServerStatistics) -> dict[str, Any]:
    """A server in `stat --json`."""
    clients = [{"client": name, **asdict(use)} for name, use in sorted(server.clients.items())]
    return {"address": server.address, "pid": server.pid, "clients": clients}


def lines(servers: Iterable[ServerStatistics]) -> Iterator[str]:
    """A line for each server, and one for each of its clients."""
    for server in servers:
        yield f"server {server.address}: pid {server.pid}, {counted(len(server.clients), 'client')}"
        for name, use in sorted(server.clients.items()):
            yield (
                f"    {name}: {counted(use.streams, 'stream')} open, {counted(use.calls, 'call')}, "
                f"read {counted(use.rows_read, 'row')} ({use.bytes_read:,} bytes), "
                f"wrote {use.rows_written:,} ({use.bytes_written:,} bytes), {counted(use.errors, 'error')}"
            )


def client_rows(servers: Iterable[ServerStatistics]) -> Iterator[tuple[str, ...]]:
    """Cells for CLIENT_HEADS: a row for each client of each server."""
    for server in servers:
        for name, use in sorted(server.clients.items()):
            yield (
                name,
                f"{use.streams:,}",
                f"{use.calls:,}",
                f"{use.rows_read:,}",
                f"{use.bytes_read / 1e6:,.3f}",
                f"{use.rows_written:,}",
                f"{use.bytes_written / 1e6:,.3f}",
                f"{use.errors:,}",
            )

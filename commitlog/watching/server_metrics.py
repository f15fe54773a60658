"""The metrics of servers: what `commitlog serve` does for each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from commitlog.disk.server_files import ClientTraffic
from commitlog.watching.metric import Kind, Metric, Sample
from commitlog.watching.snapshot import StoreSnapshot


def _of_clients(name: str, kind: Kind, meaning: str, count: Callable[[ClientTraffic], int]) -> Metric:
    """A metric of each client of each server, by its URL of the store."""

    def samples(snapshot: StoreSnapshot) -> Iterable[Sample]:
        found: Counter[tuple[str, ...]] = Counter()
        for server in snapshot.servers:
            for client, use in server.clients.items():
                found[server.address, client] += count(use)
        return found.items()

    return Metric(name, kind, ("server", "client"), meaning, samples)


SERVER_METRICS = (
    _of_clients("commitlog_server_streams", "gauge", "Streams that are open now", lambda use: use.streams),
    _of_clients("commitlog_server_calls_total", "counter", "Calls", lambda use: use.calls),
    _of_clients("commitlog_server_read_rows_total", "counter", "Rows sent to the client", lambda use: use.rows_read),
    _of_clients("commitlog_server_read_bytes_total", "counter", "Bytes of these rows", lambda use: use.bytes_read),
    _of_clients(
        "commitlog_server_written_rows_total", "counter", "Rows taken from the client", lambda use: use.rows_written
    ),
    _of_clients(
        "commitlog_server_written_bytes_total", "counter", "Bytes of these rows", lambda use: use.bytes_written
    ),
    _of_clients("commitlog_server_errors_total", "counter", "Calls that ended in an error", lambda use: use.errors),
)

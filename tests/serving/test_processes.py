"""The processes of a server, as a client sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.planning.address import parse_address
from commitlog.serving.flight_server import FlightServer
from commitlog.serving.served_store import ServedStore
from commitlog.spark.source import CommitLogDataSource
from tests.builders.hand_made import HandMadeStore
from tests.served import forget_connection


@pytest.mark.usefixtures("no_segments_mapped")
def test_a_server_that_does_not_say_its_ports_loses_no_task(store: HandMadeStore) -> None:
    """A process that has just started may not know the ports of the others yet."""
    served = ServedStore("store", Path(store.path))
    server = FlightServer("grpc://127.0.0.1:0", {"store": served})
    server.ports = ()
    url = f"commitlog://127.0.0.1:{server.port}/store"
    try:
        source = CommitLogDataSource({"path": url, "subscribe": "orders"})
        reader = source.reader(source.schema())
        assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 200
    finally:
        forget_connection(parse_address(url))
        server.shutdown()
        served.close()

"""Reads the rows of a plan from a server, which reads them as a local task would."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import orjson
import pyarrow as pa

from commitlog.columns.read_plan import ReadPlan
from commitlog.errors import ServerError
from commitlog.planning.address import Address
from commitlog.remote import requests
from commitlog.remote.flight_connection import connection_of

log = logging.getLogger(__name__)


def ticket_of(plan: ReadPlan, schema: pa.Schema, store: str) -> bytes:
    """The ticket of a plan for these columns. It has no credential and no path."""
    return orjson.dumps(
        requests.RowsTicket(
            store,
            plan.store_id,
            requests.encode_schema(schema),
            tuple((piece.topic, piece.lane, piece.start, piece.end) for piece in plan.slices),
            plan.options,
            plan.epoch,
        )
    )


def read_remote(
    plan: ReadPlan, schema: pa.Schema, address: Address, port: int | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of the plan, as batches of the schema.

    `port` is one of the server's. What the server warns of is logged. Raises what reading the
    store's directory would raise, and ServerUnavailable, AccessDenied, CertificateRefused.
    """
    for batch, metadata in connection_of(address).read(ticket_of(plan, schema, address.store), port):
        if metadata:
            log.warning("%s: %s", address, metadata.decode(errors="replace"))
        if batch.num_rows:
            if not batch.schema.equals(schema):
                raise ServerError(f"{address}: the server sends other columns than it was asked for: {batch.schema}")
            yield batch

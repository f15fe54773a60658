"""Limits that pages name are those of the code."""

from __future__ import annotations

import re

from commitlog import store
from commitlog.appending import attachment
from commitlog.remote import flight_connection, requests
from commitlog.schemas import types
from commitlog.serving import append_streams, flights, limits, memory_bounds, served_store, server_processes
from commitlog.stages import supervisor
from tests.programs import DOCS


def mib(size: int) -> str:
    return f"{size >> 20} MiB"


def test_what_a_server_allows() -> None:
    """The numbers in the table of docs/serve.md, row by row."""
    wanted = [
        [f"{limits.CONNECTIONS_MAX:,}"],
        [f"{limits.STREAMS_MAX}", mib(memory_bounds.STREAM_BYTES)],
        [f"{limits.ACTIONS_MAX}"],
        [f"{limits.WAITS_MAX:,}"],
        [mib(limits.REQUEST_BYTES_MAX), mib(requests.BATCH_BYTES_MAX), mib(append_streams.METADATA_BYTES_MAX)],
        [f"{limits.NAMED_MAX:,}"],
        [f"{flights.ENDPOINTS_MAX:,}"],
        [f"{limits.COLUMNS_MAX:,}", f"{types.NESTING_MAX}"],
        [f"{served_store.NAMES_PER_CLIENT_MAX}"],
        [f"{limits.UNKNOWN_SECONDS:g} seconds", mib(limits.UNKNOWN_BYTES_MAX)],
        [f"{limits.STALLED_SECONDS / 60:g} minutes"],
        [f"{limits.SILENT_SECONDS / 3600:g} hour"],
        [mib(server_processes.LEAST_BYTES)],
        [f"{memory_bounds.ARROW_BYTES_MAX >> 30} GiB"],
    ]
    table = (DOCS / "serve.md").read_text().partition("| | most |\n| --- | --- |\n")[2].partition("\n\n")[0]
    rows = [row.split(" | ")[1] for row in table.splitlines()]
    assert [re.findall(r"\d+(?:,\d+)*(?: (?:[MG]iB|seconds|minutes|hour))?", row) for row in rows] == wanted


def test_how_many_descriptors_are_needed() -> None:
    producer, opened, client = (module._NEEDED_DESCRIPTORS for module in (attachment, store, flight_connection))
    said = f"a producer takes up to {producer}, a store {opened}, a client of a server {client}."
    page = (DOCS / "recover.md").read_text()
    assert said in page
    assert f"A stage needs {supervisor._DESCRIPTORS_LEAST}," in page

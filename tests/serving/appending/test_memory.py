"""Clients that send little, which unpacks to much: the server's memory does not follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

import commitlog
from commitlog.appending import message_rows
from commitlog.errors import IllegalArgument, PropertiesTooLarge, ServerBusy
from commitlog.remote.server_errors import from_bytes
from commitlog.serving import server_processes as servers
from commitlog.serving.access import Access, add_token
from commitlog.serving.server_processes import Server
from tests.builders.hand_made import small_store
from tests.nightly import with_nightly
from tests.serving.appending.shared_store import messages
from tests.serving.asking import address_of, client_of, server_of
from tests.waiting import wait_until

MIB = 1 << 20
MACHINE_BYTES = 640 * MIB
BOMB_BYTES = 330 * MIB
"""More than a process may take of such a machine, and much more than Arrow may."""
VALUES = pa.schema({"value": pa.binary()})
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module", autouse=True)
def _small_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "memory_limit", lambda: MACHINE_BYTES)
        yield


@pytest.fixture(scope="module")
def server(running: commitlog.Store, _small_machine: None) -> Iterator[Server]:
    """One for all tests: what one of them has made it take counts for the next one, too."""
    with server_of([running.path], writable=True) as made:
        yield made


def peak_bytes(server: Server) -> int:
    """The most memory that the server's process has had."""
    status = Path(f"/proc/{server.pids[0]}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def put(server: Server, schema: pa.Schema, compression: str | None = None, **fields: Any) -> Any:
    client = flight.connect(f"grpc://127.0.0.1:{server.ports[0]}")
    list(client.do_action(flight.Action("stores", b"{}")))  # strangers may not send much
    options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=compression))
    command = orjson.dumps({"store": "store", "topic": "rows" if fields.get("rows") else "t", **fields})
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(command), schema, options)
    return client, writer, answers


def refusal(writer: Any) -> commitlog.CommitLogError:
    """What the server says when the stream is closed."""
    with pytest.raises(flight.FlightError) as caught:
        writer.close()
    found = from_bytes(caught.value.extra_info)
    assert found is not None, caught.value
    return found


@pytest.mark.parametrize("compression", with_nightly(["lz4"], ["zstd"]))
def test_a_batch_that_unpacks_to_much(server: Server, store: commitlog.Store, compression: str) -> None:
    """It is refused, and the streams of others go on in the same process."""
    (pid,) = server.pids
    other, others, answers = put(server, VALUES)
    others.write_batch(pa.record_batch([[b"before"]], schema=VALUES))
    answers.read()
    zeros = pa.py_buffer(np.zeros(BOMB_BYTES, np.uint8))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, BOMB_BYTES], np.int32)), zeros])
    client, writer, _ = put(server, VALUES, compression)
    writer.write_batch(pa.record_batch([value], schema=VALUES))
    error = refusal(writer)
    assert isinstance(error, ServerBusy)
    assert "has no memory for a batch: send batches of at most 67,108,864 bytes" in str(error)
    assert peak_bytes(server) < BOMB_BYTES
    others.write_batch(pa.record_batch([[b"after"]], schema=VALUES))
    others.close()
    assert [message.value for message in messages(store)] == [b"before", b"after"]
    assert server.pids == (pid,)
    client.close()
    other.close()


@pytest.mark.nightly
def test_a_message_of_a_stranger_that_grpc_unpacks(tmp_path: Path) -> None:
    """It costs no more than one process of the server, which is started again. Others go on."""
    store, tokens = small_store(tmp_path / "store"), tmp_path / "tokens.json"
    token = add_token(tokens, Access("known"))
    with server_of([store.path], tokens=tokens, processes=2) as server:
        ended, other = server.pids
        assert psutil.Process(ended).rlimit(psutil.RLIMIT_DATA)[0] == MACHINE_BYTES // 2
        packing = [("grpc.default_compression_algorithm", 2), ("grpc.enable_retries", 0)]
        stranger = flight.FlightClient(f"grpc://127.0.0.1:{server.ports[0]}", generic_options=packing)
        beside = replace(address_of(server, token=token), hosts=(("127.0.0.1", server.ports[1]),))
        with client_of(address_of(server, token=token)) as known, client_of(beside) as neighbour, stranger:
            stream = neighbour.batches(known.ticket())
            assert next(stream).num_rows > 0
            with pytest.raises(flight.FlightError):
                list(stranger.do_action(flight.Action("look", pa.py_buffer(np.zeros(200 * MIB, np.uint8)))))
            assert sum(batch.num_rows for batch in stream) > 0
            assert sorted(known.rows(known.ticket())) == store.rows("orders")
            wait_until(lambda: ended not in server.pids, "the process is started again")
            assert server.pids[1] == other


@pytest.mark.parametrize("rows", with_nightly([True], [False]))
def test_dictionaries_are_refused(server: Server, store: commitlog.Store, rows: bool) -> None:
    """A stream may go on with them for ever, and Arrow keeps them all."""
    store.create_topic("rows", VALUES)
    _, writer, _ = put(server, pa.schema({"value": pa.dictionary(pa.int32(), pa.binary())}), rows=rows)
    error = refusal(writer)
    assert isinstance(error, IllegalArgument)
    assert "column value is dictionary" in str(error)


@pytest.mark.parametrize("rows", with_nightly([True], [False]))
def test_a_schema_of_very_many_columns(server: Server, store: commitlog.Store, rows: bool) -> None:
    store.create_topic("rows", VALUES)
    many = pa.schema([(f"c{number}", pa.binary()) for number in range(200_000)])
    client, writer, _ = put(server, many, rows=rows)
    assert isinstance(refusal(writer), IllegalArgument)
    assert peak_bytes(server) < BOMB_BYTES
    client.close()


def test_a_message_of_very_many_headers(server: Server, store: commitlog.Store) -> None:
    """As objects of Python they would take many times the memory of the batch."""
    count, kind = 2_000_000, HEADERS
    names = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(np.arange(count + 1, dtype=np.int32)), pa.py_buffer(b"h" * count)]
    )
    pairs = pa.StructArray.from_arrays([names, names.view(pa.binary())], fields=list(kind.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1, count], pa.int32()), pairs, type=kind)
    batch = pa.record_batch({"value": pa.array([b"good", b"bad"], pa.binary()), "headers": headers})
    client, writer, _ = put(server, batch.schema, "zstd")
    before = peak_bytes(server)
    writer.write_batch(batch)
    error = refusal(writer)
    assert isinstance(error, PropertiesTooLarge)
    assert "column headers: 1,999,999 headers of one message" in str(error)
    assert error.rows_sent == 1
    assert peak_bytes(server) - before < 120 * MIB
    client.close()


def test_large_metadata_is_refused(server: Server, store: commitlog.Store) -> None:
    """A stream has no use for it: neither that of a batch, nor that of the columns."""
    client, writer, _ = put(server, VALUES)
    writer.write_with_metadata(pa.record_batch([[b"x"]], schema=VALUES), bytes(2 * MIB))
    error = refusal(writer)
    assert isinstance(error, IllegalArgument)
    assert "metadata of 2,097,152 bytes; allowed are 1,048,576" in str(error)
    client.close()
    client, writer, _ = put(server, VALUES.with_metadata({"m": "x" * (2 * MIB)}))
    assert "metadata of 2,097,153 bytes" in str(refusal(writer))
    client.close()
    assert not messages(store)


def _pairs(headers: dict[str, bytes] | None) -> list[dict[str, str | bytes]] | None:
    return None if headers is None else [{"key": name, "value": value} for name, value in headers.items()]


def test_a_large_batch_is_taken_in_parts(store: commitlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows and by headers; each message has its own key and headers."""
    monkeypatch.setattr(message_rows, "PART_ROWS", 3)
    monkeypatch.setattr(message_rows, "PART_HEADERS", 4)
    headers = [
        None,
        {"a": b"1"},
        {},
        {"b": b"2", "c": b"3", "d": b"4"},
        {"e": b"5", "f": b"6"},
        None,
        {"g": b"7"},
        None,
    ]
    rows = [
        {"value": b"%d" % row, "key": f"k{row}" if row % 3 else None, "headers": _pairs(pairs)}
        for row, pairs in enumerate(headers)
    ]
    table = pa.Table.from_pylist(rows, pa.schema({"value": pa.binary(), "key": pa.string(), "headers": HEADERS})).slice(
        1
    )
    with commitlog.Producer(store.path) as producer:
        sink = message_rows.MessageRows(producer, "parts")
        for batch in table.to_batches():
            sink.append(batch)
        producer.flush()
        assert sink.sent == 7
    found = [(message.value, message.key, message.headers) for message in messages(store, "parts")]
    assert found == [
        (row["value"], row["key"], {name: value.decode() for name, value in pairs.items()})
        for row, pairs in zip(rows[1:], (pairs or {} for pairs in headers[1:]), strict=True)
    ]


@pytest.mark.nightly
def test_many_processes_on_a_small_machine_have_enough_to_work(
    store: commitlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "memory_limit", lambda: 256 * MIB)
    with server_of([store.path], processes=2) as server:
        assert len(server.ports) == 2
        for port in server.ports:
            with flight.connect(f"grpc://127.0.0.1:{port}") as client:
                assert list(client.do_action(flight.Action("stores", b"{}")))

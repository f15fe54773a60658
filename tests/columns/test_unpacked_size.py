"""Compressed messages: their packed bytes are few, so reading is bounded by what they unpack to."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import commitlog
from commitlog.errors import CorruptRecord
from commitlog.record.row_headers import COMPRESSION_HEADER, ROW_HEADERS
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly

pytestmark = pytest.mark.usefixtures("no_segments_mapped")
BATCH_BYTES = 128 << 20
ZLIB = 1 | 3 << 8
"""The system flag of a body that RocketMQ's clients compressed."""


def peak_bytes(store: HandMadeStore, topic: str, column: str, lengths: list[int]) -> int:
    """Reads a topic of long strings. Returns the most that Arrow held at a time, in bytes."""
    before, peak, found = pa.total_allocated_bytes(), 0, []
    for batch in commitlog.read_arrow(store.path, topic, columns=[column]):
        assert batch.nbytes <= BATCH_BYTES + (1 << 20)
        peak = max(peak, pa.total_allocated_bytes() - before)
        found += pc.binary_length(batch.column(0)).to_pylist()
    assert found == lengths
    return peak


@pytest.mark.parametrize("compression", with_nightly(["zstd"], ["lz4"]))
def test_rows_that_unpack_to_much(tmp_path: Path, compression: str) -> None:
    """Many messages of some KB, of 8 MB each when they are unpacked."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 22)
    schema = declare(store, "texts", "id INT, text STRING")
    text = "x" * (8 << 20)
    for number in range(40):
        append_rows(store.lane(0), schema, [{"id": number, "text": text}], compression)
    store.publish()
    assert peak_bytes(store, "texts", "text", [len(text)] * 40) < 3 * BATCH_BYTES


def test_values_that_unpack_to_much(tmp_path: Path) -> None:
    """The same for bodies that another client of RocketMQ's format compressed."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 22)
    body = zlib.compress(bytes(4 << 20))
    for _ in range(80):
        store.lane(0).append("texts", body, sys_flag=ZLIB)
    store.publish()
    assert peak_bytes(store, "texts", "value", [4 << 20] * 80) < 3 * BATCH_BYTES


def test_a_message_that_unpacks_to_too_much(tmp_path: Path) -> None:
    """What it says that it unpacks to is looked at before any of it is unpacked."""
    store = HandMadeStore(tmp_path / "store")
    lane, schema = store.lane(0), declare(store, "texts", "text STRING")
    good = append_rows(lane, schema, [{"text": "x" * 5_000}], "lz4")
    before, declared, behind = good.body.rpartition(struct.pack("<q", 5_000))  # of the text's buffer
    assert declared
    headers = {name: good.properties[name] for name in ROW_HEADERS}
    for size in (3 << 30, 1 << 62, -2):
        lane.append("texts", before + struct.pack("<q", size) + behind, properties=headers)
    del headers[COMPRESSION_HEADER]
    lane.append("texts", good.body, properties=headers)  # it hides that it is compressed
    append_rows(lane, schema, [{"text": "last"}], "lz4")
    store.publish()
    with pytest.raises(CorruptRecord, match=r"offset 1: its columns unpack to 3,221,2\d\d,\d{3} bytes.* 2,147,483,647"):
        commitlog.read_arrow(store.path, "texts").read_all()
    table = commitlog.read_arrow(store.path, "texts", ignore_corrupt=True).read_all()
    assert table["text"].to_pylist() == ["x" * 5_000, "last"]

"""The table in the docstring of record_layout.py says what the declaration of the fields says."""

from __future__ import annotations

import re
import struct

import pytest

from commitlog.record import record_layout
from commitlog.record.host import Host
from commitlog.record.record import RecordEncoder, decode
from commitlog.record.record_layout import HEAD_BYTES, SysFlag, head_dtype

ROWS = re.findall(
    r"^    ([A-Z][A-Z_, ]*?) +(i32|u32|i64|host|i32, n) +([\d+BS]+)", record_layout.__doc__ or "", re.MULTILINE
)
WIDTHS = {"i32": 4, "u32": 4, "i64": 8}
HOSTS = {False: Host.of("192.0.2.1", 1), True: Host.of("2001:db8::1", 2)}


def test_the_table_is_complete() -> None:
    assert [name for name, _, _ in ROWS] == [
        "TOTALSIZE", "MAGIC", "BODYCRC", "QUEUEID", "FLAG", "QUEUEOFFSET", "PHYSICALOFFSET", "SYSFLAG", "BORNTIMESTAMP",
        "BORNHOST", "STORETIMESTAMP", "STOREHOST", "RECONSUMETIMES", "PREPARED_TX_OFFSET", "BODYLEN, BODY",
    ]  # fmt: skip


@pytest.mark.parametrize("born_v6", [False, True])
@pytest.mark.parametrize("store_v6", [False, True])
def test_fields_are_where_the_table_says(born_v6: bool, store_v6: bool) -> None:
    born, store = (20 if v6 else 8 for v6 in (born_v6, store_v6))
    hosts = SysFlag.BORN_HOST_V6 * born_v6 | SysFlag.STORE_HOST_V6 * store_v6
    dtype = head_dtype(hosts)
    assert dtype.names is not None
    assert dtype.fields is not None
    widths = {"BORNHOST": born, "STOREHOST": store}
    for name, (row, kind, offset) in zip(dtype.names, ROWS, strict=True):
        where = sum({"B": born, "S": store}.get(part) or int(part) for part in offset.split("+"))
        assert dtype.fields[name][1] == where, row
        assert dtype.fields[name][0].itemsize == widths.get(row, WIDTHS.get(kind[:3])), row
    assert dtype.itemsize == HEAD_BYTES[hosts] == 72 + born + store


@pytest.mark.parametrize("born_v6", [False, True])
@pytest.mark.parametrize("store_v6", [False, True])
def test_a_record_by_the_table(born_v6: bool, store_v6: bool) -> None:
    """What the encoder makes, read with the offsets of the table, written out here once more."""
    born, store = HOSTS[born_v6], HOSTS[store_v6]
    data = RecordEncoder(3, born, store).encode(b"orders", b"body", b"", 5, 7_000, 11, 12)
    b, s = len(born.encode()), len(store.encode())
    assert struct.unpack_from(">iI", data) == (len(data), 0xDAA320A7)
    assert struct.unpack_from(">iiqqiq", data, 12) == (3, 0, 5, 7_000, 0x10 * born_v6 | 0x20 * store_v6, 11)
    assert data[48 : 48 + b] == born.encode()
    assert struct.unpack_from(">q", data, 48 + b) == (12,)
    assert data[56 + b : 56 + b + s] == store.encode()
    assert struct.unpack_from(">iqi", data, 56 + b + s) == (0, 0, 4)
    assert data[72 + b + s :].startswith(b"body\x06orders\x00\x14__CRC32#\x01")
    record = decode(data, physical_offset=7_000)
    assert (record.born_host, record.store_host, record.body) == (born, store, b"body")

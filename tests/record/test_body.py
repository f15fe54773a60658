"""Compressed bodies of RocketMQ's clients. That they unpack right is tested with the vectors."""

from __future__ import annotations

import sys
import zlib

import pytest

from commitlog.errors import CorruptRecord, MissingCodec
from commitlog.record.body_compression import plain_body
from commitlog.record.host import Host
from commitlog.record.record import Record, RecordEncoder, decode

KINDS = {"unnamed": 0x001, "ZLIB": 0x301, "LZ4": 0x101, "ZSTD": 0x201}


def packed(kind: str, plain: bytes) -> bytes:
    if kind == "LZ4":
        lz4 = pytest.importorskip("lz4.frame")
        return bytes(lz4.compress(plain))
    if kind == "ZSTD":
        return bytes(pytest.importorskip("zstandard").compress(plain))
    return zlib.compress(plain)


def record_of(body: bytes, sys_flag: int) -> Record:
    host = Host.of("127.0.0.1", 1)
    return decode(RecordEncoder(0, host, host).encode(b"t", body, b"", 0, 0, 1, 2, sys_flag=sys_flag))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [b"", b"x", b"plain body" * 1000])
def test_unpacks(kind: str, plain: bytes) -> None:
    assert plain_body(record_of(packed(kind, plain), KINDS[kind])) == plain


def test_uncompressed() -> None:
    """The kind's bits mean nothing without the compressed bit."""
    assert plain_body(record_of(b"as it is", 0x200)) == b"as it is"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused(kind: str) -> None:
    """A few bytes that unpack to more than any message may have."""
    record = record_of(packed(kind, bytes(1_000_000)), KINDS[kind])
    with pytest.raises(CorruptRecord, match="more than 65,536 bytes"):
        plain_body(record, limit=65_536)
    assert len(plain_body(record, limit=1_000_000)) == 1_000_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"rubbish that is no frame", bytes(40)])
def test_rubbish(kind: str, body: bytes) -> None:
    packed(kind, b"")  # skips where the library is missing
    with pytest.raises(CorruptRecord):
        plain_body(record_of(body, KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short(kind: str) -> None:
    body = packed(kind, bytes(range(256)) * 50)
    with pytest.raises(CorruptRecord):
        plain_body(record_of(body[: len(body) // 2], KINDS[kind]))


def test_unknown_kind() -> None:
    with pytest.raises(CorruptRecord, match="kind 7"):
        plain_body(record_of(b"x", 0x701))


@pytest.mark.parametrize(("kind", "module"), [("LZ4", "lz4.frame"), ("ZSTD", "zstandard")])
def test_missing_library(kind: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingCodec, match=r"commitlog\[rocketmq\]"):
        plain_body(record_of(b"x", KINDS[kind]))

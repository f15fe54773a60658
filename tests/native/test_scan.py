"""The native core finds what Python finds: the same tables, the same bytes, the same words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from commitlog.columns import arrays
from commitlog.native import core
from commitlog.record import scan as scan_module
from commitlog.record import table as table_module
from commitlog.record.host import Host
from commitlog.record.record import RecordEncoder, encode_blank
from commitlog.record.scan import scan
from commitlog.record.table import RecordGatherer, RecordTable, empty_columns
from tests.builders.vector_store import NAMES, load

if core is None:
    pytest.skip("there is no native core", allow_module_level=True)

BUFFER_START, LANE = 1 << 20, 3
HOSTS = [Host.of("127.0.0.1", 5), Host.of("2001:db8::1", 6)]

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=10_000, phases=[Phase.generate, Phase.shrink])


@contextmanager
def python() -> Iterator[None]:
    """Lets Python do it in place of the native core."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (scan_module, table_module, arrays):
            patch.setattr(module, "core", None)
        yield


def same(ours: RecordTable, theirs: RecordTable) -> None:
    for name in RecordTable.__slots__:
        left, right = getattr(ours, name), getattr(theirs, name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, name
            left, right = left.tolist(), right.tolist()
        assert left == right, name


# ---- logs ---------------------------------------------------------------------------------------

_WORDS = [b"TAGS", b"TAGS\x01", b"KEYS\x01k", b"\x01", b"\x02", b"\x02", b"a", "é".encode(), "😀".encode(), b"\xff"]
_WORDS += [b"\xed\xa0\x80", b"__CRC32#\x01", b"\0"]
PROPERTIES = st.lists(st.sampled_from(_WORDS), max_size=8).map(b"".join)
TOPICS = st.one_of(
    st.sampled_from([b"a", b"b", b"orders", b"t" * 127, b"t" * 128, b"u" * 255, "ü".encode()]),
    st.sampled_from([b".", b"..", b"a/b", b"a\0", b"\xff"]),
    st.binary(min_size=1, max_size=20),
)
RECORDS = st.lists(
    st.tuples(
        st.one_of(st.just(b"orders"), TOPICS),
        st.one_of(st.binary(max_size=30), st.integers(0, 2_000).map(bytes)),
        PROPERTIES,
        st.sampled_from(range(4)),  # hosts
        st.booleans(),  # whether it has the whole-record CRC
        st.sampled_from([0, 1, 4, 8, 12]),  # SYSFLAG
        st.integers(1, 30),  # how many of them in a row
    ),
    max_size=6,
)


def log_of(records: list[tuple[Any, ...]]) -> bytes:
    data = bytearray()
    for topic, body, properties, hosts, has_crc, sys_flag, times in records:
        encoder = RecordEncoder(LANE, HOSTS[hosts & 1], HOSTS[hosts >> 1], has_crc)
        for number in range(times):
            place = BUFFER_START + len(data)
            data += encoder.encode(topic, body, properties, number, place, -number, 7, flag=number, sys_flag=sys_flag)
    return bytes(data)


_NUMBERS = [0, 1, 91, 92, 127, 128, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xCBD43194, 0xDAA320A7, 0xDAA320AB]
HARM = st.tuples(
    st.sampled_from(["flip", "number", "cut", "zero", "insert"]),
    st.integers(0, 2_000),
    st.integers(0, 255),
    st.sampled_from(_NUMBERS),
)


def harmed(data: bytes, harms: list[tuple[str, int, int, int]]) -> bytes:
    made = bytearray(data)
    for kind, at, count, number in harms:
        at = at % (len(made) + 1)
        if kind == "flip" and at < len(made):
            made[at] ^= count
        elif kind == "number":
            made[at : at + 4] = number.to_bytes(4, "big")
        elif kind == "cut":
            del made[len(made) - at :]
        elif kind == "zero":
            made[at : at + count] = bytes(len(made[at : at + count]))
        elif kind == "insert":
            made[at:at] = bytes([number & 255]) * (count % 9)
    return bytes(made)


@st.composite
def buffers(draw: st.DrawFn) -> bytes:
    """A log, good or damaged, with its segment's end or noise behind it; or noise alone."""
    data = log_of(draw(RECORDS))
    if draw(st.booleans()):
        data = harmed(data, draw(st.lists(HARM, min_size=1, max_size=3)))
    rest = draw(st.sampled_from(["nothing", "zeros", "BLANK", "noise"]))
    if rest == "noise":
        return data + draw(st.binary(max_size=200))
    return data + {"nothing": b"", "zeros": bytes(100), "BLANK": encode_blank(100).ljust(100, b"\0")}[rest]


OPTIONS = st.fixed_dictionaries(
    {"check_crc": st.booleans()},
    optional={
        "require_crc": st.booleans(),
        "max_records": st.integers(0, 40),
        "max_bytes": st.integers(0, 5_000),
    },
)
LANES = st.sampled_from([LANE, LANE, None, LANE + 1])


def check_scan(data: bytes, lane: int | None, options: dict[str, Any], start: int, end: int, segment_end: bool) -> None:
    """Both find the same from any place, up to any place."""
    start, end = min(start, len(data)), len(data) + 100 - end
    if segment_end:
        options = {**options, "segment_end": len(data)}
    for begin in {0, start}:
        ours = scan(data, begin, end, BUFFER_START, lane, **options)
        with python():
            same(ours, scan(data, begin, end, BUFFER_START, lane, **options))


SCANS = (buffers(), LANES, OPTIONS, st.integers(0, 3_000), st.integers(0, 500), st.booleans())


@FEW
@given(*SCANS)
def test_scan(data: bytes, lane: int | None, options: dict[str, Any], start: int, end: int, segment_end: bool) -> None:
    check_scan(data, lane, options, start, end, segment_end)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@MANY
@given(*SCANS)
def test_scan_at_length(
    data: bytes, lane: int | None, options: dict[str, Any], start: int, end: int, segment_end: bool
) -> None:
    check_scan(data, lane, options, start, end, segment_end)


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_what_rocketmq_wrote(name: str, check_crc: bool) -> None:
    """Each segment of each vector, as one record after the other and in tables of seven."""
    for start, segment in load(name).segments.items():
        for most in (7, 8192):
            ours = scan(segment, 0, len(segment), start, None, check_crc=check_crc, max_records=most)
            with python():
                same(ours, scan(segment, 0, len(segment), start, None, check_crc=check_crc, max_records=most))


# ---- records at known places --------------------------------------------------------------------


def check_tabulate(data: bytes, lane: int | None, check_crc: bool, require_crc: bool, every: int) -> None:
    """All places that look like a record's, or some of them."""
    with python():
        found = scan(data, 0, len(data), BUFFER_START, None, check_crc=False)
    positions, sizes = found.positions[::every].copy(), found.sizes[::every].copy()
    gatherer = RecordGatherer(data, BUFFER_START, lane, check_crc, require_crc)
    same(gatherer.tabulate(positions, sizes), gatherer.tabulate_in_python(positions, sizes))
    gathered = b"".join(data[at : at + size] for at, size in zip(positions.tolist(), sizes.tolist(), strict=True))
    anywhere = RecordGatherer(gathered, None, lane, check_crc, require_crc)
    places = np.cumsum(sizes) - sizes
    table = anywhere.tabulate(places, sizes)
    same(table, anywhere.tabulate_in_python(places, sizes))
    assert len(table) == len(gatherer.tabulate(positions, sizes))


@FEW
@given(buffers(), LANES, st.booleans(), st.booleans(), st.integers(1, 3))
def test_tabulate(data: bytes, lane: int | None, check_crc: bool, require_crc: bool, every: int) -> None:
    check_tabulate(data, lane, check_crc, require_crc, every)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@MANY
@given(buffers(), LANES, st.booleans(), st.booleans(), st.integers(1, 3))
def test_tabulate_at_length(data: bytes, lane: int | None, check_crc: bool, require_crc: bool, every: int) -> None:
    check_tabulate(data, lane, check_crc, require_crc, every)


# ---- spans --------------------------------------------------------------------------------------


@FEW
@given(
    st.binary(min_size=1, max_size=400),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30),
    st.lists(st.integers(-1, 29), max_size=40),
    st.booleans(),
)
def test_take(data: bytes, gaps_and_lengths: list[tuple[int, int]], which: list[int], has_which: bool) -> None:
    """Spans of all lengths, some of them several times, and nulls."""
    ends = np.cumsum(np.array(gaps_and_lengths, np.int64).reshape(-1, 2).ravel())
    ends = np.minimum(ends, len(data))
    spans = arrays.Spans(ends[0::2].copy(), ends[1::2].copy())
    chosen = np.array([number for number in which if number < len(spans.start)], np.int64) if has_which else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "SMALL_BYTES", 0)
        ours = arrays.take_spans(pa.py_buffer(data), spans, pa.binary(), chosen)
    ours.validate(full=True)
    with python():
        assert ours.equals(arrays.take_spans(pa.py_buffer(data), spans, pa.binary(), chosen))


# ---- arguments that can't be --------------------------------------------------------------------


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("starts", "ends"),
    [(ints(0), ints(11)), (ints(-1), ints(2)), (ints(5), ints(4)), (ints(0, 0), ints(1)), (ints(0), ints(9))],
)
def test_spans_that_do_not_fit(starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
    """Beyond the buffer, negative, backwards, without an end, longer than the room."""
    with pytest.raises(ValueError, match="a span is not within"):
        core.take(bytes(10), starts, ends, bytearray(8), bytearray(8))


def test_columns_without_room() -> None:
    data, columns = log_of([(b"t", b"", b"", 0, True, 0, 20)]), empty_columns(1).view(np.uint8)
    demands = (BUFFER_START, LANE, True, False)
    with pytest.raises(ValueError, match="no room"):
        core.scan(data, 0, len(data), len(data), demands, 20, columns)
    with pytest.raises(ValueError, match="no room"):
        core.tabulate(data, np.arange(20), np.arange(20), demands, columns)


@pytest.mark.parametrize("place", [(-1, 100), (0, -100), (0, 91), (0, 1 << 40), (1 << 62, 1 << 62), (1, 100)])
def test_places_that_are_none(place: tuple[int, int]) -> None:
    """They are not within the buffer, too small, or not where a record begins. All have no rows."""
    data, columns = log_of([(b"t", b"", b"", 0, True, 0, 2)]), empty_columns(1).view(np.uint8)
    demands = (BUFFER_START, LANE, True, False)
    assert core.tabulate(data, ints(place[0]), ints(place[1]), demands, columns) == (0, [])

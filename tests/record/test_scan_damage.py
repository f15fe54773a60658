"""Random damage to a segment: what a scan calls good was written, byte for byte.

Nothing worse than a stop of the scan happens.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from commitlog.record.record import encode_blank
from commitlog.record.record_layout import CRC_PROPERTY_BYTES
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from tests.builders.made_log import BUFFER_START, LANE, facts, make_log, rows, walk

LOG = make_log(40, lambda n: n * 17 % 90, kinds=12, topics=3)
WITHOUT_CRC = make_log(40, lambda n: n * 17 % 90, kinds=12, topics=3, append_crc=False)
PLACES = st.integers(0, len(LOG.data))
LENGTHS = st.integers(1, 400)
Damage = tuple[Any, ...]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    kind = draw(st.sampled_from(["flip", "zero", "cut", "splice", "number"]))
    at = draw(st.one_of(PLACES, st.sampled_from(LOG.ends).map(lambda end: end + 4)))
    if kind == "flip":
        return kind, at, draw(st.integers(1, 255))
    if kind == "number":
        return (
            kind,
            at,
            draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 91, 92, 0xCBD43194, 0xDAA320A7])),
        )
    return kind, at, draw(LENGTHS), draw(PLACES)


def apply(data: bytes, damage: Damage) -> bytes:
    kind, at, *rest = damage
    made = bytearray(data)
    if kind == "flip" and at < len(made):
        made[at] ^= rest[0]
    elif kind == "number":
        made[at : at + 4] = rest[0].to_bytes(4, "big")
    elif kind == "zero":
        made[at : at + rest[0]] = bytes(rest[0])
    elif kind == "cut":
        del made[at : at + rest[0]]
    elif kind == "splice":
        made[at : at + rest[0]] = data[rest[1] : rest[1] + rest[0]]
    return bytes(made)


def check(harm: list[Damage]) -> None:
    data = LOG.data + encode_blank(60).ljust(60, b"\0")
    for damage in harm:
        data = apply(data, damage)
    written = {place: LOG.data[place:end] for place, end in zip(LOG.ends, LOG.ends[1:], strict=False)}
    good = 0
    for start in [0, *LOG.ends]:  # from every place at which a reader may begin again
        if start <= len(data):
            table = scan(data, start, len(data), BUFFER_START, LANE, check_crc=True, require_crc=True)
            for position, size in zip(table.positions.tolist(), table.sizes.tolist(), strict=True):
                assert data[position : position + size] == written[position]
            if start == 0:
                good = len(table)
                records, reason = walk(data, require_crc=True)
                assert rows(table, data) == [facts(record) for record in records]
                if table.stop is Stop.CORRUPT and "BLANK" not in table.reason:
                    assert table.reason == reason
    undamaged = min((damage[1] for damage in harm), default=len(data))
    assert good >= sum(end <= undamaged for end in LOG.ends[1:])


def check_without_crc(harm: list[Damage]) -> None:
    """Not all damage can be seen then, but a scan and `decode` see the same.

    This also holds if no CRC is checked.
    """
    data = WITHOUT_CRC.data
    for damage in harm:
        data = apply(data, damage)
    for check_crc in (True, False):
        table = scan(data, 0, len(data), BUFFER_START, LANE, check_crc=check_crc)
        records, _ = walk(data, check_crc=check_crc)
        assert rows(table, data) == [facts(record) for record in records]


FEW = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1_000, phases=[Phase.generate, Phase.shrink])
TEN_TIMES = pytest.mark.parametrize("turn", range(10))
HARM = st.lists(damages(), min_size=1, max_size=4)


@FEW
@given(HARM)
def test_damage(harm: list[Damage]) -> None:
    check(harm)


@FEW
@given(HARM)
def test_damage_without_crc(harm: list[Damage]) -> None:
    check_without_crc(harm)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@TEN_TIMES
@MANY
@given(HARM)
def test_damage_at_length(turn: int, harm: list[Damage]) -> None:
    check(harm)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@TEN_TIMES
@MANY
@given(HARM)
def test_damage_without_crc_at_length(turn: int, harm: list[Damage]) -> None:
    check_without_crc(harm)


@pytest.mark.parametrize("mask", [1, 0x80, 0xFF])
def test_every_byte_flipped(mask: int) -> None:
    """Every byte is damaged once.

    Its record is refused, the records before it are good, and those behind it can be read.
    """
    for number in (0, 1, 20):
        start, end = LOG.ends[number], LOG.ends[number + 1]
        for at in range(start, end):
            data = apply(LOG.data, ("flip", at, mask))
            table = scan(data, 0, LOG.ends[30], BUFFER_START, LANE, check_crc=True, require_crc=True)
            assert (len(table), table.stop_position) == (number, start)
            rest = scan(data, end, LOG.ends[30], BUFFER_START, LANE, check_crc=True, require_crc=True)
            assert (len(rest), rest.stop) == (29 - number, Stop.END)


def test_lost_crc_property() -> None:
    """Its name damaged, a record has no CRC to fail: only a log that always has it can tell."""
    data = apply(LOG.data, ("flip", LOG.ends[1] - CRC_PROPERTY_BYTES, 1))
    assert len(scan(data, 0, LOG.ends[1], BUFFER_START, LANE, check_crc=True)) == 1
    assert len(scan(data, 0, LOG.ends[1], BUFFER_START, LANE, check_crc=True, require_crc=True)) == 0


@pytest.mark.parametrize("lost", [1, 8, CRC_PROPERTY_BYTES])
def test_an_end_that_was_zeroed_is_damage(lost: int) -> None:
    """The last bytes of a record read as zeros: nothing else covers its headers."""
    data = LOG.data[: LOG.ends[1] - lost] + bytes(lost) + LOG.data[LOG.ends[1] :]
    table = scan(data, 0, len(data), BUFFER_START, LANE, check_crc=True)
    assert (len(table), table.stop) == (0, Stop.CORRUPT)
    assert walk(data) == ([], table.reason)

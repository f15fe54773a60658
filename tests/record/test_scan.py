"""A scan says of every record what `decode` says.

It stops where `decode` would, for the reason that `decode` gives.
"""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from commitlog.record.record import RecordEncoder, encode_blank
from commitlog.record.record_layout import Buffer
from commitlog.record.scan import MAX_RECORDS, scan
from commitlog.record.table import RecordTable, Stop
from tests.builders.made_log import BUFFER_START, HOSTS, LANE, RANDOM, facts, make_log, rows, walk


def scan_all(source: Buffer, end: int, **options: Any) -> list[RecordTable]:
    tables = [scan(source, 0, end, BUFFER_START, LANE, check_crc=True, **options)]
    while tables[-1].stop is Stop.FULL:
        tables.append(scan(source, tables[-1].stop_position, end, BUFFER_START, LANE, check_crc=True, **options))
    return tables


LOGS = {
    "nothing": make_log(0, lambda n: 0),
    "equal": make_log(20_000, lambda n: 20),
    "runs of equal ones": make_log(2_000, lambda n: n // 100 * 7),
    "runs of three": make_log(1_000, lambda n: n // 3 % 50),
    "mixed": make_log(3_000, lambda n: RANDOM.randrange(300)),
    "all kinds": make_log(3_000, lambda n: RANDOM.randrange(300), kinds=12, topics=5),
    "many topics": make_log(2_000, lambda n: 10, kinds=2, topics=500),
    "large bodies": make_log(130, lambda n: 3_000),
    "large": make_log(40, lambda n: RANDOM.randrange(100_000), kinds=4),
    "no CRC": make_log(2_000, lambda n: RANDOM.randrange(100), kinds=12, append_crc=False),
}


@pytest.mark.parametrize("name", LOGS)
def test_as_decode(name: str) -> None:
    """Every column of every record, in tables of the default size."""
    log = LOGS[name]
    records, reason = walk(log.data)
    assert (len(records), reason) == (log.count, "")
    tables = scan_all(log.data, len(log.data))
    assert [row for table in tables for row in rows(table, log.data)] == [facts(record) for record in records]
    assert (tables[-1].stop, tables[-1].stop_position, tables[-1].reason) == (Stop.END, len(log.data), "")


@pytest.mark.parametrize("options", [{"max_records": 1}, {"max_records": 17}, {"max_bytes": 1}, {"max_bytes": 5_000}])
def test_small_tables(options: dict[str, int]) -> None:
    """A table ends at its limits, with at least one record, and the next goes on behind it."""
    log = LOGS["runs of equal ones"]
    tables = scan_all(log.data, len(log.data), **options)
    assert [end for table in tables for end in (table.positions + table.sizes).tolist()] == log.ends[1:]
    assert all(0 < len(table) <= options.get("max_records", MAX_RECORDS) for table in tables)
    if "max_bytes" in options:
        begun = [int(table.positions[-1] - table.positions[0]) for table in tables]
        assert max(begun) < options["max_bytes"]


def mixed_crc_log() -> tuple[bytes, list[int]]:
    """Records with the whole-record CRC and without it, in turn; and where they begin."""
    data, starts = b"", []
    for number in range(60):
        encoder = RecordEncoder(LANE, HOSTS[0], HOSTS[0], append_crc=number % 3 > 0)
        starts.append(len(data))
        data += encoder.encode(
            b"t", RANDOM.randbytes(number + 1), b"K\x01V\x02", number, BUFFER_START + len(data), 1, 2
        )
    return data, starts


@pytest.mark.parametrize("field", ["body", "BODYCRC", "STORETIMESTAMP", "topic", "whole-record CRC"])
def test_records_with_and_without_the_whole_record_crc(field: str) -> None:
    """Each record is proven by the CRCs that it has.

    A flipped bit is found in both kinds by the CRC that covers it, as `decode` finds it.
    """
    data, starts = mixed_crc_log()
    assert len(starts) == 60
    for number, start in enumerate(starts):
        end = [*starts, len(data)][number + 1]
        at = {"body": 88, "BODYCRC": 9, "STORETIMESTAMP": 63, "topic": 90 + number}.get(field, end - start - 5)
        harmed = bytearray(data)
        harmed[start + at] ^= 1
        table = scan(harmed, 0, len(data), BUFFER_START, LANE, check_crc=True)
        records, reason = walk(bytes(harmed))
        assert rows(table, bytes(harmed)) == [facts(record) for record in records]
        assert table.reason == reason
        if number % 3 or field in ("body", "BODYCRC"):
            assert len(table) == number


def test_every_kind_of_buffer() -> None:
    """bytes, bytearray, memoryview and a mapping, which can be closed afterwards."""
    log = LOGS["all kinds"]
    expected = rows(scan(log.data, 0, len(log.data), BUFFER_START, LANE, check_crc=True), log.data)
    for source in (bytearray(log.data), memoryview(log.data), memoryview(bytearray(log.data))):
        assert rows(scan(source, 0, len(log.data), BUFFER_START, LANE, check_crc=True), log.data) == expected
    mapping = mmap.mmap(-1, len(log.data))
    mapping[:] = log.data
    table = scan(mapping, 0, len(log.data), BUFFER_START, LANE, check_crc=True)
    mapping[20] ^= 1
    assert scan(mapping, 0, len(log.data), BUFFER_START, LANE, check_crc=True).stop is Stop.CORRUPT
    mapping.close()
    assert rows(table, log.data) == expected


@pytest.mark.parametrize("name", ["all kinds", "equal"])
def test_end_in_the_middle(name: str) -> None:
    """What reaches beyond the end is not given out, wherever in a record the end is."""
    log = LOGS[name]
    start = log.ends[40]
    for end in range(start, log.ends[42]):
        table = scan(log.data, log.ends[30], end, BUFFER_START, LANE, check_crc=True)
        whole = sum(end >= place for place in log.ends[31:])
        assert len(table) == whole
        stop = Stop.END if end in log.ends else Stop.PARTIAL
        assert (table.stop, table.stop_position) == (stop, log.ends[30 + whole])


class TestStops:
    """Where no record follows."""

    log = make_log(50, lambda n: 30)
    end = log.ends[-1]

    def stop_of(self, data: bytes, **options: Any) -> RecordTable:
        table = scan(data, 0, len(data), BUFFER_START, LANE, check_crc=True, **options)
        assert table.positions.tolist() == self.log.ends[:-1]
        assert table.stop_position == self.end
        return table

    def test_zeros(self) -> None:
        assert self.stop_of(self.log.data + bytes(100)).stop is Stop.ZERO

    def test_blank(self) -> None:
        """What follows a BLANK is not looked at."""
        data = self.log.data + encode_blank(100) + b"stale".ljust(92)
        assert self.stop_of(data).stop is Stop.BLANK
        assert self.stop_of(data, segment_end=len(data)).stop is Stop.BLANK
        assert self.stop_of(self.log.data + encode_blank(8), segment_end=self.end + 8).stop is Stop.BLANK

    @pytest.mark.parametrize("remaining", [0, 7, 99, 101, -1, 2**31 - 1])
    def test_blank_that_does_not_end_with_the_segment(self, remaining: int) -> None:
        data = self.log.data + encode_blank(remaining).ljust(100, b"\0")
        table = self.stop_of(data, segment_end=len(data))
        assert table.stop is Stop.CORRUPT
        assert "BLANK" in table.reason

    def test_a_few_bytes(self) -> None:
        assert self.stop_of(self.log.data + b"1234567").stop is Stop.PARTIAL

    def test_rubbish(self) -> None:
        table = self.stop_of(self.log.data + b"rubbish " * 20)
        assert table.stop is Stop.CORRUPT
        assert "magic" in table.reason

    @pytest.mark.parametrize("number", [0, 1, 15, 16, 17, 49])
    def test_a_bad_record(self, number: int) -> None:
        """The records before it are good; the reason is decode's. A scan from behind it goes on."""
        data = bytearray(self.log.data)
        data[self.log.ends[number] + 50] ^= 1
        table = scan(data, 0, len(data), BUFFER_START, LANE, check_crc=True)
        assert (len(table), table.stop, table.stop_position) == (number, Stop.CORRUPT, self.log.ends[number])
        assert table.reason == walk(bytes(data))[1]
        rest = scan(data, self.log.ends[number + 1], len(data), BUFFER_START, LANE, check_crc=True)
        assert len(rest) == 49 - number

    def test_another_place(self) -> None:
        """A good record that was copied from elsewhere is none here."""
        data = self.log.data[: self.log.ends[2]] + self.log.data[: self.log.ends[1]]
        assert len(scan(data, 0, len(data), BUFFER_START, LANE, check_crc=True)) == 2
        assert len(scan(self.log.data, 0, self.end, BUFFER_START, LANE + 1, check_crc=True)) == 0
        assert len(scan(self.log.data, 0, self.end, BUFFER_START, None, check_crc=True)) == 50

    def test_required_crc(self) -> None:
        """Where it is required, a record without is not good."""
        without = make_log(3, lambda n: 5, append_crc=False)
        table = scan(without.data, 0, len(without.data), BUFFER_START, LANE, check_crc=True, require_crc=True)
        assert (len(table), table.reason) == (0, "the whole-record CRC is missing")

    def test_a_topic_that_is_no_directory(self) -> None:
        """It makes its own records bad and no others."""
        encoder = RecordEncoder(LANE, HOSTS[0], HOSTS[1])
        data = b""
        for topic in (b"a", b"b", b"../x", b"c"):
            data += encoder.encode(topic, b"", b"", 0, BUFFER_START + len(data), 1, 2)
        table = scan(data, 0, len(data), BUFFER_START, LANE, check_crc=True)
        assert (table.topics, table.stop) == (["a", "b"], Stop.CORRUPT)

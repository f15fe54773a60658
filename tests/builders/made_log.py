"""Makes logs of all kinds of records in memory; shows results of decode and scan in one form."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from commitlog.errors import CorruptRecord
from commitlog.record.host import Host
from commitlog.record.record import Record, RecordEncoder, decode
from commitlog.record.table import RecordTable

BUFFER_START = 1 << 20
LANE = 3
HOSTS = [Host.of("127.0.0.1", 5), Host.of("2001:db8::1", 6)]
RANDOM = random.Random(11)


@dataclass(frozen=True)
class MadeLog:
    """Records one after the other; `ends` are positions, the first of them 0."""

    data: bytes
    ends: list[int]

    @property
    def count(self) -> int:
        return len(self.ends) - 1


def make_log(
    count: int, sizes: Callable[[int], int], *, kinds: int = 1, topics: int = 1, append_crc: bool = True
) -> MadeLog:
    """A log with records of `kinds` in turn: hosts, long topics, properties, transactions."""
    encoders = [RecordEncoder(LANE, born, store, append_crc) for born in HOSTS for store in HOSTS]
    parts, ends = [], [0]
    for number in range(count):
        kind = RANDOM.randrange(kinds)
        topic = f"topic-{RANDOM.randrange(topics)}" if kind % 3 != 2 else "t" * (128 + RANDOM.randrange(3))
        properties = [b"", b"TAGS\x01a\x02", b"KEYS\x01%d\x02TAGS\x01tag%d\x02" % (number, number % 5), b"K\x01TAGS"][
            kind % 4
        ]
        parts.append(
            encoders[kind % 4].encode(
                topic.encode(),
                RANDOM.randbytes(sizes(number)),
                properties,
                number,
                BUFFER_START + ends[-1],
                1_000 + number,
                2_000 + number,
                flag=kind,
                sys_flag=(0, 4, 8, 12)[kind // 2 % 4],
            )
        )
        ends.append(ends[-1] + len(parts[-1]))
    return MadeLog(b"".join(parts), ends)


def walk(data: bytes, **checks: bool) -> tuple[list[Record], str]:
    """All records, by decode alone, and its reason for the end."""
    records: list[Record] = []
    position = 0
    while position < len(data):
        try:
            record = decode(data, position, physical_offset=BUFFER_START + position, queue_id=LANE, **checks)
        except CorruptRecord as error:
            return records, error.reason
        records.append(record)
        position += record.total_size
    return records, ""


def rows(table: RecordTable, data: bytes) -> list[tuple[object, ...]]:
    """A table in the form of `facts`."""
    columns = (
        table.physical_offsets, table.sizes, table.queue_ids, table.queue_offsets, table.flags, table.sys_flags,
        table.born_timestamps, table.store_timestamps, table.tags_codes, table.has_crc, table.in_queue,
    )  # fmt: skip
    found = []
    for index, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        body_at, properties_at = int(table.body_positions[index]), int(table.properties_positions[index])
        body = data[body_at : body_at + int(table.body_sizes[index])]
        properties = data[properties_at : properties_at + int(table.properties_sizes[index])]
        found.append((*row, table.topics[table.topic_index[index]], body, properties))
    return found


def facts(record: Record) -> tuple[object, ...]:
    return (
        record.physical_offset, record.total_size, record.queue_id, record.queue_offset, record.flag, record.sys_flag,
        record.born_timestamp, record.store_timestamp, record.tags_code, record.has_crc, not record.sys_flag & 4,
        record.topic, record.body, record.raw_properties,
    )  # fmt: skip

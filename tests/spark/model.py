"""What a read must give, in plain code.

A store is a list of records, and options are read as a person would read them.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from commitlog.errors import CommitLogError, DataLoss, OffsetOutOfRange, OptionError, UnknownTopic
from commitlog.record.properties import RESERVED_NAMES
from commitlog.record.record import Record
from tests.builders.hand_made import HandMadeStore

Options = Mapping[str, str]
Row = dict[str, Any]


def expected_row(record: Record) -> Row:
    """All columns of a record; times are milliseconds."""
    properties = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
    headers = [
        {"key": name, "value": value.encode()} for name, value in properties.items() if name not in RESERVED_NAMES
    ]
    key, sys_flag = properties.get("KEYS"), record.sys_flag
    return {
        "key": key.encode() if key else None,
        "value": zlib.decompress(record.body) if sys_flag & 1 else record.body,
        "topic": record.topic,
        "partition": record.queue_id,
        "offset": record.queue_offset,
        "timestamp": record.store_timestamp,
        "timestampType": 1,
        "headers": headers or None,
        "tags": properties.get("TAGS"),
        "bornTimestamp": record.born_timestamp,
        "properties": properties,
        "physicalOffset": record.physical_offset,
        "messageId": record.message_id,
        "size": record.total_size,
        "sysFlag": sys_flag,
    }


def plain_row(row: Row) -> Row:
    """A row of a RecordBatch's `to_pylist` with times in milliseconds."""
    times = {name: round(row[name].timestamp() * 1000) for name in ("timestamp", "bornTimestamp") if name in row}
    return row | times | ({"properties": dict(row["properties"])} if "properties" in row else {})


@dataclass(frozen=True)
class Queue:
    """A topic in a lane, with all its records.

    It also has the offset of its first kept message, and one past its last readable message.
    """

    first: int
    end: int
    records: list[Record]

    def at_time(self, ms: int) -> int | None:
        kept = self.records[self.first : self.end]
        return next((record.queue_offset for record in kept if record.store_timestamp >= ms), None)


class Model:
    """A store whose lanes may be read up to `limits[lane]` (bytes).

    Each lane has lost what is before `firsts[lane]`.
    """

    def __init__(self, store: HandMadeStore, limits: dict[int, int], firsts: dict[int, int]) -> None:
        self.queues: dict[tuple[str, int], Queue] = {}
        for number, lane in sorted(store.lanes.items()):
            for topic in sorted({record.topic for record in lane.records}):
                records = [r for r in lane.records if r.topic == topic and not r.sys_flag & 4]
                end = sum(record.physical_offset + record.total_size <= limits[number] for record in records)
                first = sum(record.physical_offset < firsts[number] for record in records)
                if end:
                    self.queues[topic, number] = Queue(min(first, end), end, records)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.queues})

    # ---- a batch --------------------------------------------------------------------------------

    def rows(self, options: Options) -> list[Record] | type[CommitLogError]:
        """The records of a batch in the order of topics and lanes, or the class of its error."""
        try:
            chosen = self.chosen(options)
            for side in ("starting", "ending"):
                _check_named(chosen, options, f"{side}Offsets")
                _check_complete(chosen, options, side)
            self._check_times(chosen, options)
            ranges = [(queue, *self._range(key, queue, options)) for key, queue in chosen.items()]
            careful = options.get("failOnDataLoss", "true") == "true"
            if careful and any(begin < end and begin < queue.first for queue, begin, end in ranges):
                return DataLoss
        except CommitLogError as error:
            return type(error)
        return [record for queue, begin, end in ranges for record in queue.records[max(begin, queue.first) : end]]

    def chosen(self, options: Options) -> dict[tuple[str, int], Queue]:
        """The queues that are subscribed to. Raises UnknownTopic."""
        if "subscribePattern" in options:
            return {key: q for key, q in self.queues.items() if re.fullmatch(options["subscribePattern"], key[0])}
        if "assign" in options:
            keys = {(topic, lane) for topic, lanes in json.loads(options["assign"]).items() for lane in lanes}
            if not keys <= self.queues.keys():
                raise UnknownTopic
            return {key: self.queues[key] for key in sorted(keys)}
        topics = options["subscribe"].split(",")
        if not set(topics) <= set(self.topics()):
            raise UnknownTopic
        return {key: queue for key, queue in self.queues.items() if key[0] in topics}

    def _range(self, key: tuple[str, int], queue: Queue, options: Options) -> tuple[int, int]:
        begin = self.begin(key, queue, options, default="earliest")
        end = _end(key, queue, options)
        if begin > end and ("startingOffsets" in options or "endingOffsets" in options):
            named = [options.get(name, "").startswith("{") for name in ("startingOffsets", "endingOffsets")]
            used = [_given(options, "starting") == "startingOffsets", _given(options, "ending") == "endingOffsets"]
            if any(is_json and is_used for is_json, is_used in zip(named, used, strict=True)):
                raise OffsetOutOfRange
        return begin, max(begin, end)

    def _check_times(self, chosen: Mapping[tuple[str, int], Queue], options: Options) -> None:
        """Raises OffsetOutOfRange if all queues begin with a time that none has a message for."""
        given = _given(options, "starting")
        if given not in ("startingTimestamp", "startingOffsetsByTimestamp") or not chosen:
            return
        found = [self.begin(key, queue, options, "") == queue.end for key, queue in chosen.items()]
        if all(found) and options.get("startingOffsetsByTimestampStrategy", "error") == "error":
            raise OffsetOutOfRange

    def begin(self, key: tuple[str, int], queue: Queue, options: Options, default: str) -> int:
        """Where a read of a queue begins. Raises OffsetOutOfRange."""
        given = _given(options, "starting")
        if given == "startingTimestamp":
            return _by_time(queue, int(options[given]))
        if given == "startingOffsetsByTimestamp":
            ms = _of_queue(options[given], key)
            return queue.first if ms is None else _by_time(queue, ms)
        text = options.get("startingOffsets", default)
        if text.startswith("{"):
            return _numbered(queue, _of_queue(text, key), -2)
        if text.startswith("last "):
            return max(queue.first, queue.end - int(text.split()[1]))
        if text in ("earliest", "latest"):
            return queue.first if text == "earliest" else queue.end
        if text.endswith("days ago"):  # more, or less, than the store's whole age
            return queue.first if int(text.split()[0]) > 1000 else queue.end
        return _by_time(queue, round(datetime.fromisoformat(text).timestamp() * 1000))


def _given(options: Options, side: str) -> str:
    """Which of the options of a side counts: Kafka's order."""
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    return next((name for name in names if name in options), "")


def _end(key: tuple[str, int], queue: Queue, options: Options) -> int:
    given = _given(options, "ending")
    if given == "endingTimestamp":
        return _by_time(queue, int(options[given]))
    if given == "endingOffsetsByTimestamp":
        ms = _of_queue(options[given], key)
        return queue.end if ms is None else _by_time(queue, ms)
    text = options.get("endingOffsets", "latest")
    return _numbered(queue, _of_queue(text, key), -1) if text.startswith("{") else queue.end


def _by_time(queue: Queue, ms: int) -> int:
    found = queue.at_time(ms)
    return queue.end if found is None else found


def _of_queue(text: str, key: tuple[str, int]) -> int | None:
    number: int | None = json.loads(text).get(key[0], {}).get(str(key[1]))
    return number


def _numbered(queue: Queue, number: int | None, default: int) -> int:
    number = default if number is None else number
    if number > queue.end:
        raise OffsetOutOfRange
    return {-1: queue.end, -2: queue.first}.get(number, number)


def _check_complete(chosen: Mapping[tuple[str, int], Queue], options: Options, side: str) -> None:
    given = _given(options, side)
    if given in (f"{side}Offsets", f"{side}OffsetsByTimestamp") and options[given].startswith("{"):
        named = {(topic, int(lane)) for topic, lanes in json.loads(options[given]).items() for lane in lanes}
        if not chosen.keys() <= named:
            raise OptionError


def _check_named(chosen: Mapping[tuple[str, int], Queue], options: Options, name: str) -> None:
    if _given(options, name.removesuffix("Offsets")) != name or not options[name].startswith("{"):
        return
    for topic, lanes in json.loads(options[name]).items():
        if any(number > 0 and (topic, int(lane)) not in chosen for lane, number in lanes.items()):
            raise OffsetOutOfRange

"""Every option of the source and the sink, read and checked when the DataFrame is made.

Spark gives the names in lower case. Errors show them in their documented spelling, with the value
and what is allowed. If Spark's Kafka source has the option too, its name, meaning and default are
the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote

from commitlog.columns.arrow_columns import COLUMN_TYPES, KAFKA_COLUMNS
from commitlog.columns.slice_reader import JsonMode, JsonOptions, Values
from commitlog.errors import BadStart, IllegalArgument, IllegalTopic, OptionError, ReaderError
from commitlog.planning.address import Address, Credentials, address_of
from commitlog.planning.session_zone import session_zone
from commitlog.reading.named_readers import PATTERN_LENGTH_MAX, check_name
from commitlog.reading.starting_point import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    Offsets,
    Start,
    offsets_by_queue,
    parse_start,
)
from commitlog.record.properties import check_topic

_READ_OPTIONS = """
    path subscribe subscribePattern assign startingOffsets endingOffsets startingTimestamp endingTimestamp
    startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy failOnDataLoss
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition
    includeHeaders columns isolation readerName ignoreCorruptRecords values metadata maxRowsPerTrigger
    mode columnNameOfCorruptRecord token tokenFile caFile certFile keyFile
"""
SPELLING = {name.lower(): name for name in _READ_OPTIONS.split()}
_WRITE_OPTIONS = """
    path topic includeHeaders ignorePartition maxLaneWait token tokenFile caFile certFile keyFile
"""
SINK_SPELLING = {name.lower(): name for name in _WRITE_OPTIONS.split()}
QUERY_OPTIONS = {"checkpointlocation": "checkpointLocation", "queryname": "queryName"}
"""A query's own options, which Spark also gives to the query's sink."""

_WHOSE = (
    (SPELLING, "a source (spark.read)"),
    (SINK_SPELLING, "a sink (df.write)"),
    (QUERY_OPTIONS, "a query (df.writeStream)"),
)

_NO_GROUP = "a query's position is kept in its checkpoint; option readerName also keeps it in the store"
_NO_FETCH = "offsets are read from the store's files, so nothing has to be tried again; remove it"
_KAFKA = {
    "kafka.bootstrap.servers": "give the store's directory as option path",
    "kafka.isolation.level": "use option isolation (flushed or committed)",
    "kafka.group.id": _NO_GROUP,
    "groupIdPrefix": _NO_GROUP,
    "kafkaConsumer.pollTimeoutMs": "there is no poll over a network; remove it",
    "fetchOffset.numRetries": _NO_FETCH,
    "fetchOffset.retryIntervalMs": _NO_FETCH,
    "kafka.acks": "a task of a sink is done when its rows are flushed; remove it",
}
_KAFKA_SPELLING = {name.lower(): name for name in _KAFKA}
_TABLE_PROPERTIES = {"provider", "owner"}
_DELAY_MS = {"ms": 1, "": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Bound:
    """Where a read begins or ends: a start for all queues, or offsets or times (ms) for some.

    Queues that `offsets` or `times` do not name get `start`. If it is `strict`, a time after the
    last message is an error.
    """

    option: str
    start: Start
    offsets: Offsets | None = None
    times: Offsets | None = None
    strict: bool = False


@dataclass(frozen=True)
class Subscription:
    """Which topics to read, and which lanes of them. Exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, tuple[int, ...]] | None = None

    def chosen(self, present: list[str]) -> list[str]:
        """The topics to read, sorted.

        These are the topics that match the pattern, or the named topics, whether they are present
        or not.
        """
        if self.pattern is not None:
            return sorted(topic for topic in present if re.fullmatch(self.pattern, topic))
        return sorted(self.assigned if self.assigned is not None else set(self.topics))

    def has_lane(self, topic: str, lane: int) -> bool:
        return self.assigned is None or lane in self.assigned.get(topic, ())


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read. None means "not given", where that makes a difference."""

    path: str
    """The directory, absolute, or the URL of a served store."""
    address: Address | None
    given: frozenset[str]
    subscription: Subscription
    starting: Bound | None
    ending: Bound | None
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    min_partitions: int | None
    max_records: int | None
    columns: tuple[str, ...]
    isolation: Literal["flushed", "committed"]
    reader_name: str | None
    ignore_corrupt: bool
    values: Values
    metadata: bool
    max_rows: int | None
    json_options: JsonOptions


def bad(option: str, value: object, allowed: str) -> OptionError:
    """The error for an option's value that is not allowed."""
    return OptionError(f"option {option}: {str(value)[:200]!r} is not allowed; {allowed}")


def check_names(options: Iterable[str], known: Mapping[str, str]) -> None:
    """Raises OptionError for an option that is not in `known` (lower-case name → spelling).

    For Kafka's options, the error says what we have instead.
    """
    for name in options:
        lower = name.lower()
        if lower in known:
            continue
        if lower.startswith("kafka.") or lower in _KAFKA_SPELLING:
            shown = _KAFKA_SPELLING.get(lower, name)
            hint = _KAFKA.get(shown, "remove it")
            raise OptionError(f"option {shown}: a store is on disk, with no broker; {hint}")
        if lower == "paths":
            raise OptionError("option path: one store at a time; read several and union them")
        allowed = f"allowed are {', '.join(known.values())}"
        for spelling, whose in _WHOSE:
            if lower in spelling:
                raise OptionError(f"option {spelling[lower]}: it is one of {whose} only; {allowed}")
        raise OptionError(f"option {name}: there is none of this name; {allowed}")


def check_table(options: Iterable[str]) -> None:
    """Raises OptionError for a table of Spark's catalog.

    Spark makes the source with the table's properties when it makes the table, and with nothing at
    all when it reads it.
    """
    names = {name.lower() for name in options}
    if names and not names >= _TABLE_PROPERTIES:
        return
    what = "CREATE TABLE" if names else "option path is missing, and all others too"
    raise OptionError(
        f"{what}: Spark reads a table of its catalog without the options it was made with; use CREATE TEMPORARY VIEW "
        f"orders USING commitlog OPTIONS (path 'data/events', subscribe 'orders')"
    )


def check_direction(options: Iterable[str]) -> None:
    """Raises OptionError for options of a source and of a sink together.

    It is not known yet which of the two will be made. A source always names its topics, so a source
    that was given an option of a sink is always found.
    """
    given = {name.lower() for name in options}
    reading, writing = (
        sorted(given & (SPELLING.keys() - SINK_SPELLING)),
        sorted(given & (SINK_SPELLING.keys() - SPELLING)),
    )
    if reading and writing:
        raise OptionError(
            f"option {SINK_SPELLING[writing[0]]} is one of a sink (df.write) and option {SPELLING[reading[0]]} one of a "
            f"source (spark.read): give those of one"
        )


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Reads the options of a source, whose names were checked before. Raises OptionError."""
    values = spelled(options)
    return options_of(*store_of(values), values)


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source by their documented names, without those of None."""
    values = {SPELLING[name.lower()]: value for name, value in options.items() if name.lower() in SPELLING}
    return {name: value for name, value in values.items() if value is not None}


def options_of(path: str, address: Address | None, values: Mapping[str, str]) -> SourceOptions:
    """Reads `spelled` options, for a store that is known already. Raises OptionError."""
    smallest, most = _number(values, "minOffsetsPerTrigger"), _number(values, "maxOffsetsPerTrigger")
    if smallest is not None and most is not None and smallest > most:
        raise bad("minOffsetsPerTrigger", smallest, f"it is at most maxOffsetsPerTrigger ({most})")
    return SourceOptions(
        path=path,
        address=address,
        given=frozenset(values),
        subscription=_subscription(values),
        starting=_starting(values),
        ending=_ending(values),
        fail_on_data_loss=boolean(values, "failOnDataLoss", True),
        max_offsets=most,
        min_offsets=smallest,
        max_delay_ms=duration_ms(values, "maxTriggerDelay", "15m"),
        min_partitions=_number(values, "minPartitions"),
        max_records=_number(values, "maxRecordsPerPartition"),
        columns=_columns(values),
        isolation=cast(Literal["flushed", "committed"], _choice(values, "isolation", ("flushed", "committed"))),
        reader_name=_reader_name(values),
        ignore_corrupt=boolean(values, "ignoreCorruptRecords", False),
        values=_values(values),
        metadata=boolean(values, "metadata", False),
        max_rows=_number(values, "maxRowsPerTrigger"),
        json_options=_json_options(values),
    )


_CREDENTIALS = {
    "token": "token", "token_file": "tokenFile", "ca_file": "caFile", "cert_file": "certFile", "key_file": "keyFile"
}  # fmt: skip
"""Field of Credentials → option."""


def store_of(values: Mapping[str, str]) -> tuple[str, Address | None]:
    """Option `path`: a directory, made absolute beside the driver, or the URL of a served store.

    Executors may have another working directory. Raises OptionError if it is missing or wrong.
    """
    path = values.get("path", "")
    if not path:
        raise OptionError("option path is missing; give the store's directory: .option('path', 'data/events')")
    credentials = Credentials(**{name: values.get(option) for name, option in _CREDENTIALS.items()})
    try:
        address = address_of(path, credentials, lambda name: f"option {_CREDENTIALS.get(name, name)}")
    except IllegalArgument as error:
        raise OptionError(str(error)) from None
    if address is None:
        return os.path.abspath(os.path.expanduser(_without_scheme(path))), None
    return str(address), address


def _without_scheme(path: str) -> str:
    """The path of a `file:` URI, or the path as it is. Raises OptionError for any other URI."""
    scheme, colon, rest = path.partition(":")
    if not colon or not rest.startswith("/") or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return path
    host, slash, below = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "/", rest[1:])
    if scheme.lower() != "file" or host not in ("", "localhost") or not slash:
        raise bad("path", path, "a store is a directory of this machine: give its path, or file:///its/path")
    return f"/{unquote(below)}"


def _number(values: Mapping[str, str], option: str) -> int | None:
    text = values.get(option)
    if text is None:
        return None
    if not re.fullmatch(r"\+?\d{1,18}", text.strip()) or int(text) < 1:
        raise bad(option, text, "give a whole number from 1 on")
    return int(text)


def boolean(values: Mapping[str, str], option: str, default: bool) -> bool:
    """An option that is true or false. Raises OptionError."""
    text = values.get(option, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise bad(option, values[option], "give true or false")
    return text == "true"


def _choice(values: Mapping[str, str], option: str, allowed: tuple[str, ...]) -> str:
    text = values.get(option, allowed[0]).strip().lower()
    if text not in allowed:
        raise bad(option, values[option], f"give {' or '.join(allowed)}")
    return text


def duration_ms(values: Mapping[str, str], option: str, default: str) -> int:
    """An option that is a length of time, in milliseconds. Raises OptionError."""
    text = values.get(option, default)
    found = re.fullmatch(r"\s*(\d{1,12})\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in _DELAY_MS:
        raise bad(option, text, "give a time such as 500ms, 30s, 15m, 1h")
    return int(found[1]) * _DELAY_MS[found[2]]


def _reader_name(values: Mapping[str, str]) -> str | None:
    name = values.get("readerName")
    if name is not None:
        try:
            check_name(name)
        except ReaderError as error:
            raise OptionError(f"option readerName: {error}") from None
    return name


_ONLY_WITH = {
    "includeHeaders": ("bytes",),
    "metadata": ("columns",),
    "maxRowsPerTrigger": ("columns",),
    "mode": ("json",),
    "columnNameOfCorruptRecord": ("json",),
}
"""Options that belong to some of the choices of option `values`."""


def _values(values: Mapping[str, str]) -> Values:
    found = _choice(values, "values", get_args(Values))
    for option, choices in _ONLY_WITH.items():
        if option in values and found not in choices:
            raise OptionError(f"option {option}: it is for option values={choices[0]}; here values={found}")
    return cast(Values, found)


def _json_options(values: Mapping[str, str]) -> JsonOptions:
    mode = values.get("mode", "PERMISSIVE").strip().upper()
    if mode not in get_args(JsonMode):
        raise bad("mode", values["mode"], f"give {' or '.join(get_args(JsonMode))}")
    default = JsonOptions()
    return JsonOptions(cast(JsonMode, mode), values.get("columnNameOfCorruptRecord", default.corrupt_column))


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    """The names in option `columns`, or the columns of messages. () stands for all of a schema."""
    headers = boolean(values, "includeHeaders", False)
    text = values.get("columns")
    if _values(values) != "bytes":
        names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
        if len(set(names)) != len(names):
            raise bad("columns", text, "give each column once")
        return names
    if text is None:
        return (*KAFKA_COLUMNS, "headers") if headers else tuple(KAFKA_COLUMNS)
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= set(COLUMN_TYPES) or len(set(names)) != len(names):
        raise bad("columns", text, f"give some of {', '.join(COLUMN_TYPES)}, each once")
    if headers and "headers" not in names:
        raise bad("includeHeaders", "true", "with option columns, name headers there")
    return names


# ---- which topics ------------------------------------------------------------------------------


def _subscription(values: Mapping[str, str]) -> Subscription:
    """Which topics to read.

    It is no error here if none are given: a sink has the same options and no subscription.
    """
    given = [option for option in ("subscribe", "subscribePattern", "assign") if option in values]
    if len(given) > 1:
        raise OptionError(f"options {' and '.join(given)}: give only one of subscribe, subscribePattern, assign")
    if "subscribe" in values:
        topics = [topic.strip() for topic in values["subscribe"].split(",") if topic.strip()]
        if not topics:
            raise bad("subscribe", values["subscribe"], "give topics separated by commas")
        return Subscription(topics=tuple(topic_name("subscribe", topic) for topic in topics))
    if "subscribePattern" in values:
        return Subscription(pattern=_pattern(values["subscribePattern"].strip()))
    if "assign" in values:
        shape = 'give JSON such as {"orders": [0, 1]}'
        parsed = _json("assign", values["assign"], shape)
        for lanes in parsed.values():
            if not isinstance(lanes, list) or not all(type(lane) is int and lane >= 0 for lane in lanes):
                raise bad("assign", values["assign"], shape)
        return Subscription(assigned={topic_name("assign", topic): tuple(lanes) for topic, lanes in parsed.items()})
    return Subscription()


def _pattern(text: str) -> str:
    if not text:
        raise bad("subscribePattern", text, "give a regular expression such as orders.*")
    if len(text) > PATTERN_LENGTH_MAX:
        raise bad("subscribePattern", text, f"give at most {PATTERN_LENGTH_MAX:,} letters")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        if re.match(r"bad escape \\[pP]\b", str(error)):
            raise bad(
                "subscribePattern", text, "Java's \\p{…} is not in Python's re: name letters, as in [a-z]"
            ) from None
        raise bad("subscribePattern", text, f"give a regular expression ({error})") from None
    return text


def topic_name(option: str, topic: str) -> str:
    """Checks a topic that an option names. Raises OptionError."""
    try:
        check_topic(topic)
    except IllegalTopic as error:
        raise bad(option, topic, str(error)) from None
    return topic


# ---- where to begin and end --------------------------------------------------------------------


def _starting(values: Mapping[str, str]) -> Bound | None:
    strategy = _choice(values, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    strict = strategy == "error"
    found = []  # the first one counts; all are read, so that a bad value of any is an error
    if "startingTimestamp" in values:
        found.append(Bound("startingTimestamp", _timestamp(values, "startingTimestamp"), strict=strict))
    if "startingOffsetsByTimestamp" in values:
        times = _by_queue(values, "startingOffsetsByTimestamp", smallest=0)
        found.append(Bound("startingOffsetsByTimestamp", EARLIEST, times=times, strict=strict))
    if "startingOffsets" in values:
        found.append(_start_or_json(values, "startingOffsets", EARLIEST))
    return found[0] if found else None


def _ending(values: Mapping[str, str]) -> Bound | None:
    found = []
    if "endingTimestamp" in values:
        found.append(Bound("endingTimestamp", _timestamp(values, "endingTimestamp")))
    if "endingOffsetsByTimestamp" in values:
        times = _by_queue(values, "endingOffsetsByTimestamp", smallest=0)
        found.append(Bound("endingOffsetsByTimestamp", LATEST, times=times))
    if "endingOffsets" in values:
        found.append(_start_or_json(values, "endingOffsets", LATEST))
    return found[0] if found else None


def _timestamp(values: Mapping[str, str], option: str) -> Start:
    text = values[option].strip()
    if not re.fullmatch(r"\d{1,15}", text):
        raise bad(option, text, "give milliseconds since 1970")
    return Start("time", int(text))


def _start_or_json(values: Mapping[str, str], option: str, default: Start) -> Bound:
    text = values[option].strip()
    if text.startswith("{"):
        return Bound(option, default, offsets=_by_queue(values, option, smallest=EARLIEST_OFFSET))
    try:
        return Bound(option, parse_start(text, offsets=False, zone=session_zone))
    except BadStart as error:
        raise OptionError(f"option {option}: {error}") from None


def _by_queue(values: Mapping[str, str], option: str, smallest: int) -> Offsets:
    example = '{"orders": {"0": 42, "1": -2}}' if smallest < 0 else '{"orders": {"0": 1700000000000}}'
    shape = f"give JSON such as {example}" + (" (−1 latest, −2 earliest)" if smallest < 0 else " (ms since 1970)")
    parsed = _json(option, values[option], shape)
    for topic in parsed:
        topic_name(option, topic)
    try:
        return offsets_by_queue(parsed, smallest)
    except BadStart:
        raise bad(option, values[option], shape) from None


def _json(option: str, text: str, shape: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad(option, text, f"{shape} ({error})") from None
    if not isinstance(parsed, dict) or not parsed:
        raise bad(option, text, shape)
    return parsed


# ---- batch or stream ---------------------------------------------------------------------------


def check_read(options: SourceOptions) -> None:
    """Checks what every read needs. Raises OptionError."""
    chosen = options.subscription
    if not chosen.topics and chosen.pattern is None and chosen.assigned is None:
        raise OptionError(
            "option subscribe is missing; give topics, or subscribePattern, or assign: .option('subscribe', 'orders')"
        )
    for bound in (options.starting, options.ending):
        named = (bound.offsets or bound.times) if bound else None
        strange = {topic for topic in named or () if not _subscribed(chosen, topic)}
        if bound and strange:
            raise bad(bound.option, ", ".join(sorted(strange)), "name only topics that are subscribed to")


def _subscribed(chosen: Subscription, topic: str) -> bool:
    return topic in chosen.chosen([topic])


def check_batch(options: SourceOptions) -> None:
    """Raises OptionError for what a batch can't have, and a stream can."""
    if options.reader_name is not None:
        raise OptionError("option readerName: a batch has no position to keep; use it with spark.readStream")
    starting, ending = options.starting, options.ending
    if starting and starting.start == LATEST:
        raise bad(starting.option, "latest", "a batch begins at earliest, at offsets, a time or 'last 100'")
    if ending and ending.start.kind in ("earliest", "last"):
        raise bad(ending.option, ending.start.kind, "a batch ends at latest, at offsets or a time")
    if starting and LATEST_OFFSET in _numbers(starting.offsets):
        raise bad(starting.option, LATEST_OFFSET, "a batch can't begin at latest (−1)")
    if ending and EARLIEST_OFFSET in _numbers(ending.offsets):
        raise bad(ending.option, EARLIEST_OFFSET, "a batch can't end at earliest (−2)")


def _numbers(offsets: Offsets | None) -> set[int]:
    return {number for lanes in (offsets or {}).values() for number in lanes.values()}


def check_stream(options: SourceOptions) -> None:
    """Raises OptionError for what a stream can't have, and a batch can."""
    if options.ending:
        raise OptionError(f"option {options.ending.option}: a stream has no end; use it with spark.read")
    if options.isolation != "flushed":
        raise bad("isolation", options.isolation, "a stream reads flushed data only; committed is for spark.read")


def check_rocketmq(options: SourceOptions) -> None:
    """Raises OptionError for what can't be used with a RocketMQ store root."""
    if "isolation" in options.given:
        raise OptionError(
            "option isolation: a RocketMQ store root is read up to the ends of its consume queues; leave it out"
        )

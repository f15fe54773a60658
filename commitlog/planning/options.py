"""The options of the source, read when the DataFrame is made.

Errors show the value of an option and what is allowed. If Spark's Kafka source has the option too,
its name, meaning and default are the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args
from urllib.parse import unquote

from commitlog.columns.arrow_columns import COLUMN_TYPES, KAFKA_COLUMNS
from commitlog.columns.read_plan import DEFAULTS, JsonMode, ReadOptions, Values
from commitlog.errors import IllegalArgument, OptionError, ReaderError, StoreNotFound
from commitlog.planning.address import OF_SPARK, Address, Credentials, address_of
from commitlog.planning.option_names import spelled
from commitlog.planning.option_values import bad, boolean, choice, duration_ms, json_object, topic_name, whole_number
from commitlog.planning.starting_offsets import Bound, ending_bound, starting_bound
from commitlog.reading.named_reader import PATTERN_LENGTH_MAX, check_name

Level = Literal["flushed", "committed", "accepted"]


@dataclass(frozen=True)
class Subscription:
    """The topics to read, and maybe only some of their lanes.

    Exactly one of the three fields is given.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, tuple[int, ...]] | None = None

    def chosen(self, present: list[str]) -> list[str]:
        """The topics to read, sorted.

        These are the present topics that match the pattern, or all named topics, even those that do
        not exist.
        """
        if self.pattern is not None:
            return sorted(topic for topic in present if re.fullmatch(self.pattern, topic))
        return sorted(self.assigned if self.assigned is not None else set(self.topics))

    def has_lane(self, topic: str, lane: int) -> bool:
        return self.assigned is None or lane in self.assigned.get(topic, ())


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read. None means "not given", if that makes a difference."""

    path: str
    """The directory, absolute, or the URL of a served store."""
    address: Address | None
    given: frozenset[str]
    subscription: Subscription
    starting: Bound | None
    ending: Bound | None
    read: ReadOptions
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    min_partitions: int | None
    max_records: int | None
    columns: tuple[str, ...]
    reader_name: str | None
    metadata: bool
    max_rows: int | None
    follows: Level
    """How far Real-Time Mode follows the log: option isolation."""
    hurry: bool
    """Whether a query in Real-Time Mode has each message flushed as if a receipt waited for it."""
    by_python: bool
    """Whether Python reads, even where the source in Java could."""

    @property
    def place(self) -> str | Address:
        """The directory, or the address of the served store."""
        return self.path if self.address is None else self.address


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Reads the options of a source, whose names were checked before. Raises OptionError."""
    values = spelled(options)
    return options_of(*store_of(values), values)


def options_of(path: str, address: Address | None, values: Mapping[str, str]) -> SourceOptions:
    """Reads options by their documented names (see `spelled`), for a store that is known already.

    Raises OptionError.
    """
    smallest, most = whole_number(values, "minOffsetsPerTrigger"), whole_number(values, "maxOffsetsPerTrigger")
    if smallest is not None and most is not None and smallest > most:
        raise bad("minOffsetsPerTrigger", smallest, f"it is at most maxOffsetsPerTrigger ({most})")
    return SourceOptions(
        path=path,
        address=address,
        given=frozenset(values),
        subscription=_subscription(values),
        starting=starting_bound(values),
        ending=ending_bound(values),
        read=_read_options(values),
        max_offsets=most,
        min_offsets=smallest,
        max_delay_ms=duration_ms(values, "maxTriggerDelay", "15m"),
        min_partitions=whole_number(values, "minPartitions"),
        max_records=whole_number(values, "maxRecordsPerPartition"),
        columns=_columns(values),
        reader_name=_reader_name(values),
        metadata=boolean(values, "metadata", False),
        max_rows=whole_number(values, "maxRowsPerTrigger"),
        follows=_follows(values),
        hurry=boolean(values, "hurry", True),
        by_python=choice(values, "reader", ("any", "python")) == "python",
    )


_CREDENTIALS = {
    "token": "token", "token_file": "tokenFile", "ca_file": "caFile", "cert_file": "certFile", "key_file": "keyFile"
}  # fmt: skip
"""Field of Credentials → option."""


def store_of(values: Mapping[str, str]) -> tuple[str, Address | None]:
    """Option `path`: a directory, made absolute beside the driver, or the URL of a served store.

    Executors may have another working directory, and a client of Spark Connect has one that the
    server does not know. Raises OptionError if it is missing or wrong, and StoreNotFound if it is
    relative and leads nowhere.
    """
    path = values.get("path", "")
    if not path:
        raise OptionError("option path is missing; give the store's directory: .option('path', 'data/events')")
    credentials = Credentials(**{name: values.get(option) for name, option in _CREDENTIALS.items()})
    try:
        address = address_of(path, credentials, OF_SPARK)
    except IllegalArgument as error:
        raise OptionError(str(error)) from None
    if address is None:
        given = os.path.expanduser(_without_scheme(path))
        absolute = os.path.abspath(given)
        if not given.startswith("/") and not os.path.lexists(absolute):
            raise StoreNotFound(
                f"option path: {path!r:.200} is relative, and Spark's driver has no {absolute}; with Spark Connect the "
                f"driver is the server, in its own directory: give an absolute path"
            )
        return absolute, None
    return str(address), address


def _without_scheme(path: str) -> str:
    """The path of a `file:` URI, or the path as it is. Raises OptionError for any other URI."""
    scheme, colon, rest = path.partition(":")
    if not colon or not rest.startswith("/") or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return path
    host, slash, below = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "/", rest[1:])
    if scheme.lower() != "file" or host not in ("", "localhost") or not slash:
        raise bad("path", path, "a store is a directory of this machine: give its path, or file:///its/path")
    plain = f"/{below}"  # so Spark's catalog gives a table's path, with one slash
    return plain if not rest.startswith("//") and os.path.lexists(plain) else f"/{unquote(below)}"


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
    found = choice(values, "values", get_args(Values))
    for option, choices in _ONLY_WITH.items():
        if option in values and found not in choices:
            raise OptionError(f"option {option}: it is for option values={choices[0]}; here values={found}")
    return cast(Values, found)


def _follows(values: Mapping[str, str]) -> Level:
    return cast(Level, choice(values, "isolation", get_args(Level)))


def _read_options(values: Mapping[str, str]) -> ReadOptions:
    mode = values.get("mode", DEFAULTS.mode).strip().upper()
    if mode not in get_args(JsonMode):
        raise bad("mode", values["mode"], f"give {' or '.join(get_args(JsonMode))}")
    return ReadOptions(
        isolation="flushed" if _follows(values) == "flushed" else "committed",
        fail_on_data_loss=boolean(values, "failOnDataLoss", DEFAULTS.fail_on_data_loss),
        ignore_corrupt=boolean(values, "ignoreCorruptRecords", DEFAULTS.ignore_corrupt),
        values=_values(values),
        mode=cast(JsonMode, mode),
        corrupt_column=values.get("columnNameOfCorruptRecord", DEFAULTS.corrupt_column),
    )


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

    If none are given, this is no error: a sink has the same options and no subscription.
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
        parsed = json_object("assign", values["assign"], shape)
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

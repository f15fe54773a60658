"""Flights: what any client of Arrow Flight can find and read, without our package.

A flight is named by a path, [store, topic], or by a command, which is a JSON object:

    {"store": "events", "subscribe": "orders", "startingOffsets": "last 100"}

It has the options of Spark's source, all as strings; `schema` has the fields for values=json, as
Spark writes them. Where one store is served, its name may be left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson
import pyarrow as pa
from pyarrow import flight

from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.columns.read_plan import ReadPlan
from commitlog.errors import CommitLogError, IllegalArgument, OptionError
from commitlog.planning.option_checks import check_batch, check_read, check_rocketmq
from commitlog.planning.option_names import SPELLING, check_names, spelled
from commitlog.planning.options import SourceOptions, options_of
from commitlog.planning.resolving import Resolver
from commitlog.planning.topic_columns import check_json_columns, columns_of, shared_schema, typed_columns
from commitlog.remote.remote_rows import ticket_of
from commitlog.schemas.ddl import parse_ddl
from commitlog.schemas.topic_schemas import TopicSchema
from commitlog.serving.access import Access
from commitlog.serving.answers import newest_schemas
from commitlog.serving.limits import NAMED_MAX, check_columns
from commitlog.serving.served_store import ServedStore, find_store

COMMAND_BYTES_MAX = 1 << 20
ENDPOINTS_MAX = 10_000
"""Endpoints of a flight. Each takes about 1 KB of the answer."""
_SHAPE = 'give a path [store, topic], or JSON such as {"store": "events", "subscribe": "orders"}'

_NOT_HERE = """
    path subscribePattern readerName maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay maxRowsPerTrigger
    token tokenFile caFile certFile keyFile
"""
_SPELLING = {name: option for name, option in SPELLING.items() if option not in _NOT_HERE.split()}
"""The options of a batch, without those that say where the store is."""

Stores = Mapping[str, ServedStore]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Wanted:
    """The request in a descriptor."""

    store: ServedStore
    options: SourceOptions
    schema: pa.Schema


def flight_info(
    stores: Stores, access: Access, descriptor: flight.FlightDescriptor, locations: list[flight.Location]
) -> flight.FlightInfo:
    """The rows of a descriptor, shared out among endpoints, each of which is a ticket.

    `locations` are those of the server's processes. A client of a server with one process has
    reached it already, so its endpoints have none.
    """
    wanted = _wanted(stores, access, descriptor)
    plans = _plans(wanted, access)
    endpoints = [
        flight.FlightEndpoint(
            ticket_of(plan, wanted.schema, wanted.store.name),
            [*locations[number % len(locations) :], *locations[: number % len(locations)]] if locations[1:] else [],
        )
        for number, plan in enumerate(plans)
    ]
    rows = -1 if wanted.options.read.values != "bytes" else sum(piece.rows for plan in plans for piece in plan.slices)
    return flight.FlightInfo(wanted.schema, descriptor, endpoints, rows, -1)


def flight_schema(stores: Stores, access: Access, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
    """The columns of a descriptor."""
    return flight.SchemaResult(_wanted(stores, access, descriptor).schema)


def flights(stores: Stores, access: Access, criteria: bytes) -> Iterator[flight.FlightInfo]:
    """The topics that the client may read, of all stores, or of the one that `criteria` names.

    They have no endpoints: `flight_info` plans those. No rows are read for it. A store that can't
    be read is left out, with a line in the log, unless it is the one that `criteria` names.
    """
    access.check_reads()
    if criteria:
        yield from _flights(_store(stores, _text(criteria)), access)
        return
    for store in stores.values():
        try:
            yield from list(_flights(store, access))
        except (CommitLogError, OSError) as error:
            log.warning("%s: left out of a list of flights: %s", store.name, error)


def _flights(store: ServedStore, access: Access) -> Iterator[flight.FlightInfo]:
    typed = newest_schemas(store, access)
    with store.index() as (index, _):
        topics = {topic for topic in index.topics() if access.covers(topic)}
        rows = {topic: sum(one.end - one.first for one in index.ranges(topic).sound.values()) for topic in topics}
    for topic in sorted(topics | set(typed)):
        schema = columns_of(topic, typed[topic].columns if topic in typed else None)
        descriptor = flight.FlightDescriptor.for_path(store.name, topic)
        yield flight.FlightInfo(schema, descriptor, [], -1 if topic in typed else rows[topic], -1)


# ---- what is asked for -------------------------------------------------------------------------


def _wanted(stores: Stores, access: Access, descriptor: flight.FlightDescriptor) -> _Wanted:
    """Raises OptionError, IllegalArgument, StoreNotFound, AccessDenied, NoSchema."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        *name, topic = [_text(part) for part in descriptor.path] or [""]
        if not topic or len(name) > 1 or "," in topic:
            raise IllegalArgument(f"descriptor: its path is not one of a topic; {_SHAPE}")
        given = {"subscribe": topic, **({"store": name[0]} if name else {})}
    else:
        given = _command(descriptor.command)
    store = _store(stores, given.pop("store", None))
    ddl = given.pop("schema", None)
    options, typed = _options(store, access, given)
    if ddl is not None and options.read.values != "json":
        raise OptionError(f"option schema: it is for option values=json; here values={options.read.values}")
    match options.read.values:
        case "bytes":
            schema = pa.schema([(name, COLUMN_TYPES[name]) for name in options.columns])
        case "columns":
            schema = typed_columns(options, shared_schema(options, typed))
        case "json":
            if ddl is None:
                raise OptionError('option values: json needs the fields: "schema": "id BIGINT, name STRING"')
            schema = parse_ddl(ddl)
            check_columns(schema)
            check_json_columns(schema, options)
    check_columns(schema)
    return _Wanted(store, options, schema)


def _options(store: ServedStore, access: Access, given: dict[str, str]) -> tuple[SourceOptions, dict[str, TopicSchema]]:
    """The options, and the schemas of the topics that they name.

    Topics that have the same schema are read as its columns where nothing else is said.
    """
    if "subscribepattern" in {name.lower() for name in given}:
        raise OptionError("option subscribePattern: name the topics in option subscribe; list_flights has their names")
    check_names(given, _SPELLING)
    values = spelled(given)
    topics = options_of(store.name, None, {name: values[name] for name in _TOPICS if name in values}).subscription
    if len(topics.chosen([])) > NAMED_MAX:
        raise OptionError(f"option subscribe: {len(topics.chosen([])):,} topics; allowed are {NAMED_MAX:,}")
    access.check_reads(topics.chosen([]))
    typed = newest_schemas(store, access, topics.chosen([]))
    columns = [typed[topic].columns for topic in topics.chosen([]) if topic in typed]
    are_typed = bool(columns) and len(columns) == len(topics.chosen([])) and all(map(columns[0].equals, columns))
    if are_typed and "values" not in values:
        values["values"] = "columns"
    options = options_of(store.name, None, values)
    check_read(options)
    check_batch(options)
    return options, typed


_TOPICS = ("subscribe", "assign")


def _command(data: bytes) -> dict[str, str]:
    if len(data) > COMMAND_BYTES_MAX:
        raise IllegalArgument(f"descriptor: {len(data):,} bytes are too many for a command; {_SHAPE}")
    try:
        given = orjson.loads(data)
    except ValueError as error:
        raise IllegalArgument(f"descriptor: its command is not JSON ({error}); {_SHAPE}") from None
    if not isinstance(given, dict):
        raise IllegalArgument(f"descriptor: its command is not a JSON object; {_SHAPE}")
    for name, value in given.items():
        if not isinstance(value, str):
            raise IllegalArgument(f"descriptor: {name[:80]}: give its value as a string; {_SHAPE}")
    return given


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise IllegalArgument(f"descriptor: {data[:80]!r} is not UTF-8; {_SHAPE}") from None


def _store(stores: Stores, name: str | None) -> ServedStore:
    if name is None:
        if len(stores) != 1:
            raise IllegalArgument(f"descriptor: it names no store; those served here are {', '.join(stores)}")
        (name,) = stores
    return find_store(stores, name)


# ---- its rows ----------------------------------------------------------------------------------


def _plans(wanted: _Wanted, access: Access) -> list[ReadPlan]:
    """Raises UnknownTopic, which lists no topic that the client may not see."""
    options = wanted.options
    with wanted.store.index(options.read.isolation, reads=True) as (index, _):
        if index.one_log:
            check_rocketmq(options)
        return Resolver(index, options, tasks_max=ENDPOINTS_MAX, is_visible=access.covers).batch_plans()

"""Stores over Arrow Flight: one process of a server.

What can be asked, and the answers, is in remote/requests.py. Each call runs in a thread of gRPC's.
So each stream has one batch in memory here, and waits as long as its client is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar, cast

import orjson
import pyarrow as pa
from pyarrow import flight
from pydantic import ConfigDict, TypeAdapter, ValidationError

from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.columns.read_plan import ReadPlan
from commitlog.columns.slice_reader import read_slices
from commitlog.columns.whole_records import RECORD_COLUMNS
from commitlog.disk.epochs import is_of_history
from commitlog.errors import DataLoss, IllegalArgument, OffsetOutOfRange, ServerBusy
from commitlog.reading.topic_index import STOPPED_REREAD_NS
from commitlog.remote import requests
from commitlog.schemas.types import stored_type
from commitlog.serving import answers, append_streams, flights
from commitlog.serving.abandoned_calls import call_of
from commitlog.serving.access import EVERYTHING, Access, Tokens
from commitlog.serving.connections import peer_of, peers
from commitlog.serving.flight_errors import Refused, told_to_client, without_paths
from commitlog.serving.limits import Limits, check_columns, check_named, reading
from commitlog.serving.served_store import ServedStore, find_store
from commitlog.serving.token_check import KnownClient, WhoAsks
from commitlog.serving.traffic import Traffic
from commitlog.system.clock import SYSTEM_CLOCK

_WHO = "who"
STRANGER = "(no token)"
"""The client of calls without a token that is known. No token has such a name."""
_STRICT = ConfigDict(extra="forbid", strict=True)

T = TypeVar("T")


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # PyArrow has no types
    """Answers the calls of clients. It runs as soon as it is made, until `shutdown`."""

    def __init__(
        self,
        location: str,
        stores: Mapping[str, ServedStore],
        *,
        tokens: Tokens | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        client_authority: bytes | None = None,
        writable: bool = False,
    ) -> None:
        self._stores, self._writable = stores, writable
        self.traffic, self.limits = Traffic(), Limits()
        self.host, self._tls = "localhost", certificate is not None
        super().__init__(
            location,
            tls_certificates=[certificate] if certificate else None,
            verify_client=client_authority is not None,
            root_certificates=client_authority,
            middleware={_WHO: WhoAsks(tokens, self.limits, self._count_refusal)},
        )
        self.ports: tuple[int, ...] = (self.port,)
        """The ports of all processes of the server."""
        self.limits.port = self.port

    def _count_refusal(self) -> None:
        """Counts a call without a token that is known, for all stores: it names none."""
        for store in self._stores:
            self.traffic.add(store, STRANGER, calls=1, errors=1)

    # ---- actions --------------------------------------------------------------------------------

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        answer, access = _ACTIONS.get(action.type), _access(context)
        with told_to_client(self._stores.values(), access), call_of(context):
            if answer is None:
                raise IllegalArgument(f"action {action.type[:80]!r}: there is none; those are {', '.join(_ACTIONS)}")
            kind, function = answer
            caller = Caller(access, peer_of(context.peer()))
            request: Any = self._asked(kind, action.body.to_pybytes() or b"{}", _client(access, caller.peer))
            with self._counted(getattr(request, "store", ""), access), self._place(caller, request) as allowed:
                found = function(self, caller, allowed)
        return [flight.Result(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS))]

    def _asked(self, kind: type[T], data: bytes, client: str) -> T:
        """A client's request, which needs the place of a call while it is read."""
        with self.limits.actions.taken(client):
            return _parsed(kind, data)

    @contextmanager
    def _place(self, caller: Caller, request: Any) -> Iterator[Any]:
        """A place for an action, and the request as it is allowed: it may not be able to wait."""
        client = _client(caller.access, caller.peer)
        if isinstance(request, requests.Look) and request.wait_ms:
            with ExitStack() as stack:
                try:
                    stack.enter_context(self.limits.waits.taken(client))
                except ServerBusy:
                    request = replace(request, wait_ms=0)
                yield request
        else:
            with self.limits.actions.taken(client):
                yield request

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        return [flight.ActionType(name, (kind.__doc__ or "").splitlines()[0]) for name, (kind, _) in _ACTIONS.items()]

    def store(self, name: str) -> ServedStore:
        """The store of a name. Raises StoreNotFound."""
        return find_store(self._stores, name)

    def names(self) -> list[str]:
        """The stores that are served."""
        return list(self._stores)

    # ---- flights --------------------------------------------------------------------------------

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._answering(context) as access:
            return iter(list(flights.flights(self._stores, access, criteria)))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with self._answering(context) as access:
            return flights.flight_info(self._stores, access, descriptor, self._locations())

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        try:
            with self._answering(context) as access:
                return flights.flight_schema(self._stores, access, descriptor)
        except flight.FlightError as error:
            raise Refused(str(error)) from None

    @contextmanager
    def _answering(self, context: flight.ServerCallContext) -> Iterator[Access]:
        access = _access(context)
        client = _client(access, peer_of(context.peer()))
        with (
            told_to_client(self._stores.values(), access),
            call_of(context),
            self._counted("", access),
            self.limits.actions.taken(client),
        ):
            yield access

    def _locations(self) -> list[flight.Location]:
        """Those of all processes of this server."""
        make = flight.Location.for_grpc_tls if self._tls else flight.Location.for_grpc_tcp
        return [make(self.host, port) for port in self.ports]

    # ---- rows -----------------------------------------------------------------------------------

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        access, peer = _access(context), peer_of(context.peer())
        client = _client(access, peer)
        with told_to_client(self._stores.values(), access), call_of(context):
            asked = self._asked(requests.RowsTicket, ticket.ticket, client)
            store = self.store(asked.store)
            with self._counted(store.name, access), self.limits.actions.taken(client):
                access.check_reads(topic for topic, _, _, _ in asked.slices)
                schema = _schema(asked)
                plan = _plan(store, asked)
        known: KnownClient = context.get_middleware(_WHO)
        return flight.GeneratorStream(schema, self._batches(store, known, plan, schema, peer))

    def _batches(
        self, store: ServedStore, known: KnownClient, plan: ReadPlan, schema: pa.Schema, peer: str
    ) -> Iterator[Any]:
        access = known.access
        warnings: list[str] = []
        add = partial(self.traffic.add, store.name, access.name)
        add(streams=1)
        try:
            with (
                told_to_client([store], access),
                self._counted(store.name, access, calls=0),
                self.limits.stream(_client(access, peer), peer) as moved,
            ):
                SEGMENTS.forget_gone()
                for batch in read_slices(plan, schema, SEGMENTS, warnings.append):
                    known.check()
                    add(rows_read=batch.num_rows, bytes_read=batch.nbytes)
                    yield batch
                    moved()
                for text in warnings:
                    yield pa.RecordBatch.from_pylist([], schema), without_paths(text, store).encode()
        finally:
            add(streams=-1)

    def do_put(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        access, peer = _access(context), peer_of(context.peer())
        known: KnownClient = context.get_middleware(_WHO)
        client = _client(access, peer)
        with told_to_client(self._stores.values(), access):
            asked = self._asked(requests.Append, descriptor.command or b"", client)
            store = self.writable_store(asked.store)
            place = self.limits.stream(client, peer, holds_lane=True)
            with self._counted(store.name, access), place as moved:

                def count(**counts: int) -> None:
                    moved()
                    self.traffic.add(store.name, access.name, **counts)

                append_streams.append_stream(store, access, asked, reader, writer, count, known.check)

    def do_exchange(
        self, context: flight.ServerCallContext, _descriptor: flight.FlightDescriptor, _reader: Any, _writer: Any
    ) -> None:
        with self._answering(context):
            raise IllegalArgument("there is no DoExchange here: read with DoGet, append with DoPut")

    def writable_store(self, name: str) -> ServedStore:
        """The store of a name. Raises StoreNotFound, and AccessDenied where nobody may append."""
        found = self.store(name)
        if not self._writable:
            raise append_streams.refuse_writing(found)
        return found

    @contextmanager
    def _counted(self, store: str, access: Access, calls: int = 1) -> Iterator[None]:
        """Counts a call for a store that is served, and its error."""
        known = store if store in self._stores else ""
        try:
            yield
        except Exception:
            self.traffic.add(known, access.name, calls=calls, errors=1)
            raise
        self.traffic.add(known, access.name, calls=calls)


@dataclass(frozen=True)
class Caller:
    """Who calls: what it may do, and the client's end of its connection."""

    access: Access
    peer: str


def _access(context: flight.ServerCallContext) -> Access:
    known: KnownClient = context.get_middleware(_WHO)
    known.limits.let_in(peer_of(context.peer()))
    return known.access


def _client(access: Access, peer: str) -> str:
    """Whom a limit counts for: who has the token, or the host where there are no tokens."""
    return peer.rpartition(":")[0] if access is EVERYTHING else access.name


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    kind.__pydantic_config__ = _STRICT  # a dataclass takes none from outside
    return TypeAdapter(kind)


def _parsed(kind: type[T], data: bytes) -> T:
    """The request that a client has sent. Raises IllegalArgument for anything else."""
    try:
        with reading(kind.__name__, data):
            found: T = _adapter(cast(Hashable, kind)).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise IllegalArgument(f"{kind.__name__}: {where}: {first['msg']}; is the client of another version?") from None
    check_named(kind.__name__, found)
    return found


def _schema(asked: requests.RowsTicket) -> pa.Schema:
    """The columns of a ticket. Raises IllegalArgument, SchemaError."""
    try:
        schema = requests.decode_schema(asked.schema)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise IllegalArgument(f"the ticket's columns can't be read: {error}") from None
    check_columns(schema)
    if asked.options.values == "records":
        if not schema.equals(RECORD_COLUMNS):
            raise IllegalArgument(f"the ticket's columns: {schema.names}; is the client of another version?")
        return schema
    if asked.options.values == "bytes":
        wrong = [field.name for field in schema if COLUMN_TYPES.get(field.name) != field.type]
        if wrong or len(set(schema.names)) != len(schema):
            raise IllegalArgument(f"the ticket's columns: {wrong or schema.names}; is the client of another version?")
        return schema
    for field in schema:
        if stored_type(field.type, field.name) != field.type:
            raise IllegalArgument(f"the ticket's column {field.name:.200} is {field.type}, which no read gives")
    return schema


def _plan(store: ServedStore, asked: requests.RowsTicket) -> ReadPlan:
    """Raises DataLoss if another store is at the path than the one that was planned for.

    It raises OffsetOutOfRange for an epoch that this store, or this copy of it, was never in.
    """
    with store.index(asked.options.isolation) as (index, _):
        if index.store_id != asked.store_id:
            raise DataLoss(f"{store.name} was deleted and made again since this read was planned; load it anew")
        epoch = index.epoch if asked.epoch is None else asked.epoch
        is_known = asked.options.values != "records" and is_of_history(index.epochs, epoch)
        if epoch != index.epoch and not is_known:
            raise OffsetOutOfRange(f"{store.name} is in epoch {index.epoch}, and the offsets are of {epoch}")
        try:
            slices = answers.slices_now(index, asked.slices)
        except OffsetOutOfRange:
            if index.live:
                raise
            SYSTEM_CLOCK.sleep(STOPPED_REREAD_NS / 1e9)  # another process may have looked a moment later
            index.refresh()
            slices = answers.slices_now(index, asked.slices)
        return replace(index.plan(slices, asked.options), epoch=epoch)


Answer = Callable[[FlightServer, Caller, Any], Any]


def _reading(function: Callable[[ServedStore, Access, Any], Any]) -> Answer:
    """An action on a store for those who may read."""

    def answer(server: FlightServer, caller: Caller, request: Any) -> Any:
        caller.access.check_reads()
        return function(server.store(request.store), caller.access, request)

    return answer


def _look(server: FlightServer, caller: Caller, request: requests.Look) -> requests.Looked:
    caller.access.check_reads()
    return answers.look(server.store(request.store), caller.access, request, server.ports)


def _hold_name(server: FlightServer, caller: Caller, request: requests.HoldName) -> str:
    caller.access.check_reads()
    store = server.store(request.store)
    store.end_old_leases(peers())  # a client that is gone may be starting again
    return store.hold_name(request.name, caller.access, caller.peer)


def _hold_reader(server: FlightServer, caller: Caller, request: requests.HoldReader) -> requests.HeldReader:
    caller.access.check_reads()
    store = server.store(request.store)
    store.end_old_leases(peers())
    return store.hold_reader(request.name, caller.access, caller.peer)


def _move_name(server: FlightServer, caller: Caller, request: requests.MoveName) -> bool:
    caller.access.check_reads()
    return server.store(request.store).move_name(request, caller.access, caller.peer)


def _check_append(server: FlightServer, caller: Caller, request: requests.CheckAppend) -> Any:
    return append_streams.check_append(server.writable_store(request.store), caller.access, request)


_ACTIONS: dict[str, tuple[type, Answer]] = {
    "look": (requests.Look, _look),
    "shared_ends": (requests.SharedEnds, _reading(answers.shared_ends)),
    "find_by_times": (requests.FindByTimes, _reading(answers.find_by_times)),
    "sizes": (requests.Sizes, _reading(answers.sizes)),
    "limit_rows": (requests.LimitRows, _reading(answers.limit_rows)),
    "schemas": (requests.Schemas, _reading(answers.schemas)),
    "topics": (requests.Topics, _reading(answers.topics)),
    "stat": (requests.Stat, _reading(answers.stat)),
    "hold_name": (requests.HoldName, _hold_name),
    "hold_reader": (requests.HoldReader, _hold_reader),
    "move_name": (requests.MoveName, _move_name),
    "check_append": (requests.CheckAppend, _check_append),
    "stores": (requests.Stores, lambda server, _caller, _request: server.names()),
}

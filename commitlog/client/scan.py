"""One door to the messages of a topic: `commitlog.read` gives a Scan, and that gives tables.

The offsets of a scan are fixed when `read` returns, and not when the first row is asked for. So a
wrong argument is an error in the line that has it, and the line is the moment that is read:
whoever hands a scan on, or asks it again after a cup of coffee, gets the messages of that moment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from commitlog.client.reader import Reader
from commitlog.columns.read_plan import ReadOptions
from commitlog.disk.store_directory import checked_path
from commitlog.errors import IllegalArgument, MissingPackage, OffsetOutOfRange, how_to_install
from commitlog.message import Message
from commitlog.planning.address import OF_READ_ARROW, Credentials, address_of
from commitlog.planning.topic_columns import columns_of
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.starting_point import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Offsets,
    parse_starts,
)
from commitlog.remote.topic_reading import TopicRange, WantedRange, as_reader, fix_range
from commitlog.text.notebook import html_table

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow as pa


def read(
    path: str | os.PathLike[str],
    topic: str,
    *,
    start: str | int | datetime | Mapping[str, Mapping[int, int]] = "earliest",
    end: str | int | datetime | Mapping[str, Mapping[int, int]] = "latest",
    columns: Collection[str] | None = None,
    lanes: Collection[int] | None = None,
    metadata: bool = False,
    values: Literal["bytes", "columns"] | None = None,
    isolation: Literal["flushed", "committed"] = "flushed",
    fail_on_data_loss: bool = True,
    ignore_corrupt: bool = False,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    cert_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> Scan:
    """Looks at a topic, here or far, and returns a Scan: what is there now, to be read as you like.

        orders = commitlog.read("data/events", "orders", start="10 minutes ago")
        orders.to_pandas()  # or to_polars(), to_arrow(), to_duckdb("orders"), batches(), messages()

    No message is read yet. What a scan gives is fixed when this function returns: the messages from
    `start` up to `end`, without `end` itself. So every call of its methods gives the same rows,
    while producers write on.

    - `path`: a store, a replica, or a RocketMQ store root; or the URL of a store that `commitlog
      serve` serves, as in `commitlog+tls://host:4433/events`.
    - `start`, `end`: each is "earliest", "latest", "last 100" (of each lane), "10 minutes ago", an
      ISO time or a datetime (in this machine's zone, if it names none), an offset of every lane, or
      offsets of single ones, as in `{"orders": {0: 42}}`. Where an `end` names single lanes,
      nothing of the others is read. An `end` before `start` gives no rows.
    - `columns`: the wanted ones in their order; only these are decoded. A topic with a schema has
      the schema's columns; `metadata` adds `_topic`, `_partition`, `_offset`, `_row`, `_timestamp`
      and `_key`. A topic without a schema has the columns of Spark's Kafka source: key, value,
      topic, partition, offset, timestamp, timestampType; and, where they are named, headers, tags,
      and others. With `values="bytes"` a topic with a schema has these columns too.
    - `lanes`: only these, as in `{0, 2}`.
    - `isolation`: "flushed" (survives power loss) or "committed".
    - `fail_on_data_loss=False`: goes on where retention has deleted messages, and logs how many.
    - `ignore_corrupt`: leaves damaged messages out, and logs how many.
    - `token`, or `token_file`, which holds nothing else: the text that `commitlog token add` has
      printed, for a URL. `ca_file`, `cert_file`, `key_file`: the authorities of the server's
      certificate, and the client's own certificate and its key, in PEM format.

    Raises StoreNotFound, UnknownTopic, IllegalTopic, NoSchema, BadStart, OffsetOutOfRange,
    OptionError (`lanes`), IllegalArgument (there is no such column), MissingPackage (PyArrow). With
    a URL, also ServerUnavailable, AccessDenied, CertificateRefused, ServerError.
    """
    credentials = Credentials.of(token, token_file, ca_file, cert_file, key_file)
    place = address_of(path, credentials, OF_READ_ARROW) or checked_path(path)
    options = ReadOptions(isolation, fail_on_data_loss, ignore_corrupt, reader="read")
    bounds = parse_starts(start), parse_starts(end)
    return Scan._of(  # noqa: SLF001
        fix_range(place, WantedRange(topic, *bounds, options, columns, metadata, values, LaneChoice.of(lanes, None)))
    )


class Scan:
    """The messages of a topic between fixed offsets. `commitlog.read` makes it.

    Each method reads anew and gives the same rows. A scan holds no file and no connection: it may
    be kept and pickled, and used after a fork. There only a scan by URL raises ServerError, if the
    parent had asked a server. It takes memory for rows only where a method says so.

    Lanes come one after the other, each in its order. PyArrow, Polars and DuckDB also take the scan
    itself, as a stream that is never in memory as a whole: `polars.from_arrow(scan)`,
    `duckdb.sql("SELECT … FROM scan")`.

    All methods that read raise:
    - DataLoss: retention, or a trim, has deleted messages of the scan; or another store, or a
      restored copy of this one, is at the path
    - CorruptRecord, DamagedFile: after the good rows of all other lanes, where rows come one batch
      after the other
    - StoreNotFound, OffsetOutOfRange: the store, or its end, is not there any more
    - ServerUnavailable, AccessDenied, CertificateRefused, ServerError: with a URL
    """

    _range: TopicRange

    def __init__(self, *_: object, **__: object) -> None:
        raise IllegalArgument("a scan is not made like this: call commitlog.read(path, topic)")

    @classmethod
    def _of(cls, found: TopicRange) -> Scan:
        scan = cls.__new__(cls)
        scan._range = found  # noqa: SLF001 - a scan is made here only
        return scan

    @property
    def path(self) -> str:
        """The store's path or URL."""
        return str(self._range.place)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._range.topic

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, as Arrow has them."""
        return self._range.schema

    @property
    def start_offsets(self) -> Offsets:
        """Where the scan begins, by topic and lane: `{"orders": {0: 42}}`.

        `commitlog.read` with this as `start` and `end_offsets` as `end` gives the same rows.
        """
        return self._offsets(0)

    @property
    def end_offsets(self) -> Offsets:
        """The offsets behind the last messages, by topic and lane.

        They are the `start` of a scan of what has come since. Of a topic without any lane yet it is
        −2 (the earliest) in lane 0.
        """
        return self._offsets(1)

    def _offsets(self, side: int) -> Offsets:
        found = {lane: bounds[side] for (_, lane), bounds in self._range.bounds.items()}
        return {self.topic: found or {0: EARLIEST_OFFSET}}

    def select(self, *columns: str) -> Scan:
        """Returns the same scan with other columns, in this order. Raises IllegalArgument."""
        return Scan._of(replace(self._range, schema=columns_of(self.topic, self._range.typed, columns)))

    # ---- as columns -----------------------------------------------------------------------------

    def batches(self) -> pa.RecordBatchReader:
        """Gives the rows as a stream of batches, each of which is read when it is asked for.

        It has at least one batch, which may be empty.
        """
        return as_reader(self._range.batches(self.schema), self.schema)

    def to_arrow(self) -> pa.Table:
        """Returns all rows, in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self._range.batches(self.schema), self.schema)

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Returns all rows, in memory. The options are those of `pyarrow.Table.to_pandas`.

        Raises MissingPackage.
        """
        _need("pandas", "to_pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """Returns all rows, in memory. Raises MissingPackage."""
        _need("polars", "to_polars")
        import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_duckdb(self, name: str, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyConnection:
        """Reads all rows into memory, and registers them as a view of this name.

        Returns the connection: the given one, or a new one of a database in memory. Raises
        MissingPackage, and IllegalArgument for what is no name.
        """
        _need("duckdb", "to_duckdb")
        if not isinstance(name, str) or not name:
            raise IllegalArgument(f"name is what DuckDB calls the view, such as 'orders', not {name!r:.80}")
        import duckdb

        rows = self.to_arrow()
        return (duckdb.connect() if connection is None else connection).register(name, rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's PyCapsule interface: the rows as a stream, for any library that speaks it."""
        return self.batches().__arrow_c_stream__(requested_schema)

    # ---- otherwise ------------------------------------------------------------------------------

    def count(self) -> int:
        """Returns how many rows there are, without reading their values.

        A topic without a schema has a row for each message, and the offsets say how many: nothing
        is read, unless damaged messages are to be left out.
        """
        typed, options = self._range.typed is not None, self._range.options
        if typed or options.ignore_corrupt:
            column = columns_of(self.topic, self._range.typed, ["_row" if typed else "offset"])
            return sum(batch.num_rows for batch in self._range.batches(column))
        with self._range.look() as (_, kept):
            return sum(end - begin for begin, end in kept.values())

    def messages(self) -> Iterator[Message]:
        """Gives the messages one by one, as a Reader does: whole, with lanes merged by time.

        `columns` and `values` don't matter. Where retention overtakes the iteration, it raises
        DataLoss in any case.
        """
        source, ends = self._begun()
        if source is None:
            return
        with source as messages:
            for message in messages:
                end = ends.get(message.partition, 0)
                if message.offset < end:
                    yield message
                if message.offset + 1 >= end > 0:
                    del ends[message.partition]
                    if not ends:
                        return

    def _begun(self) -> tuple[Reader | None, dict[int, int]]:
        """Messages from the scan's beginning on, and the end in each lane that has any.

        Where retention comes between the look and the reader, it looks again.
        """
        before = None
        while True:
            with self._range.look() as (_, kept):
                ends = {lane: end for (_, lane), (_, end) in kept.items()}
            if not ends:
                return None, ends
            begins = {key[1]: kept.get(key, (LATEST_OFFSET, 0))[0] for key in self._range.bounds}
            try:
                return self._source(begins, ends), ends
            except OffsetOutOfRange:
                if kept == before:
                    raise
                before = kept

    def _source(self, begins: dict[int, int], ends: dict[int, int]) -> Reader:
        place, topic, options = self._range.place, self.topic, self._range.options
        isolation, ignores = options.isolation, options.ignore_corrupt
        lanes = None if self._range.one_log else ends  # a queue id may be any number
        address_or_path = cast(str, place)  # a Reader takes an address, too, but no user has one
        return Reader(
            address_or_path, topic, start={topic: begins}, lanes=lanes, isolation=isolation, ignore_corrupt=ignores
        )

    def __repr__(self) -> str:
        bounds = self._range.bounds.values()
        counts = f"lanes={len(bounds)}, messages={sum(end - begin for begin, end in bounds)}"
        return f"Scan({self.path!r}, {self.topic!r}, {counts})"

    def _repr_html_(self) -> str:
        """Its lanes and columns, in a notebook. Nothing is read for it."""
        lanes = [(lane, begin, end, end - begin) for (_, lane), (begin, end) in self._range.bounds.items()]
        return "".join(
            (
                html_table(f"Topic {self.topic} of {self.path}", lanes, ("lane", "first offset", "end", "messages")),
                html_table("Columns", [(field.name, str(field.type)) for field in self.schema], ("column", "type")),
            )
        )


def _need(package: str, method: str) -> None:
    """Raises MissingPackage if the package is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingPackage(f"{method} needs {package}: {how_to_install(package, package)}")

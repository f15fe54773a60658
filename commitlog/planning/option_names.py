"""The names of options: of the source, the sink, a query; and what takes the place of Kafka's.

Spark gives the names in lower case. Errors show them in their documented spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from commitlog.errors import OptionError

_READ_OPTIONS = """
    path subscribe subscribePattern assign startingOffsets endingOffsets startingTimestamp endingTimestamp
    startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy failOnDataLoss
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition
    includeHeaders columns isolation hurry readerName ignoreCorruptRecords values metadata maxRowsPerTrigger
    mode columnNameOfCorruptRecord reader token tokenFile caFile certFile keyFile
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
                raise OptionError(
                    f"option {spelling[lower]}: it is one of {whose} only; {_OTHERS.get(lower, '')}{allowed}"
                )
        like = get_close_matches(lower, known, n=1)
        meant = f"did you mean {known[like[0]]}? " if like else ""
        raise OptionError(f"option {name}: there is none of this name; {meant}{allowed}")


def check_table(options: Iterable[str]) -> None:
    """Raises OptionError for a table of Spark's catalog that only the source in Python could read.

    When Spark creates the table, it makes the source with the table's properties. When it reads the
    table, it makes the source with no options at all. The source in Java has them.
    """
    names = {name.lower() for name in options}
    if names and not names >= _TABLE_PROPERTIES:
        return
    what = "CREATE TABLE" if names else "option path is missing, and all others too"
    raise OptionError(
        f"{what}: without our jar Spark reads a table of its catalog without the options it was made with; call "
        f"commitlog.spark.use(spark), or CREATE TEMPORARY VIEW orders USING commitlog OPTIONS (path 'data/events', "
        f"subscribe 'orders')"
    )


_OTHERS = {"topic": "a source takes subscribe; ", "subscribe": "a sink takes topic; "}
"""What a source has for an option of a sink, or the other way round."""


def check_direction(options: Iterable[str]) -> None:
    """Raises OptionError for options of a source and of a sink together.

    At this point nobody knows which of the two will be made. A source always names its topics, so
    options of a sink beside them are always found.
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


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source by their documented names. Those that are None are left out."""
    values = {SPELLING[name.lower()]: value for name, value in options.items() if name.lower() in SPELLING}
    return {name: value for name, value in values.items() if value is not None}

"""The headers of a message that has rows: they say how to read its value, an Arrow record batch."""

import re
from collections.abc import Mapping

from commitlog.errors import ValuesRefused

CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER = "content-type", "schema-version", "row-count"
COMPRESSION_HEADER = "content-encoding"
ROW_HEADERS = frozenset({CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER, COMPRESSION_HEADER})

CONTENT_TYPE = "application/x.arrow-record-batch"

_NUMBERS = re.compile("[0-9]{1,9} [0-9]{1,9}")


def version_of(headers: object) -> int | None:
    """The version of the schema whose rows a message with these headers says that it has.

    None: it does not say that its value is an Arrow record batch.
    """
    if type(headers) is not dict and not isinstance(headers, Mapping):
        return None
    version, rows = headers.get(SCHEMA_HEADER), headers.get(ROWS_HEADER)
    if not isinstance(version, str) or not isinstance(rows, str) or not _NUMBERS.fullmatch(f"{version} {rows}"):
        return None
    return int(version) if headers.get(CONTENT_TYPE_HEADER) == CONTENT_TYPE else None


def values_refused(topic: str, version: int | None = None) -> ValuesRefused:
    """The error where a typed topic is sent a value, which no reader of its rows could read."""
    if version is not None:
        return ValuesRefused(
            f"topic {topic} has no version {version} of its schema, which header {SCHEMA_HEADER} names: give the topic the "
            f"schema by store.create_topic, or use send_rows"
        )
    return ValuesRefused(
        f"topic {topic} has a schema, so it takes rows: use send_rows (`commitlog produce --rows`). A value that is an "
        f"Arrow record batch already has headers that say so: {CONTENT_TYPE_HEADER}={CONTENT_TYPE}, {SCHEMA_HEADER}, "
        f"{ROWS_HEADER}"
    )

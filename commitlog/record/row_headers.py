"""The headers of a message that has rows: they say how to read its value, an Arrow record batch."""

import re
from collections.abc import Mapping

from commitlog.errors import ValuesRefused

CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER = "content-type", "schema-version", "row-count"
COMPRESSION_HEADER = "content-encoding"
ROW_HEADERS = frozenset({CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER, COMPRESSION_HEADER})

CONTENT_TYPE = "application/x.arrow-record-batch"

_NUMBERS = re.compile("[0-9]{1,9} [0-9]{1,9}")


def has_rows(headers: object) -> bool:
    """Whether a message with these headers says that its value is an Arrow record batch."""
    if type(headers) is not dict and not isinstance(headers, Mapping):
        return False
    version, rows = headers.get(SCHEMA_HEADER), headers.get(ROWS_HEADER)
    are_numbers = isinstance(version, str) and isinstance(rows, str) and _NUMBERS.fullmatch(f"{version} {rows}")
    return bool(are_numbers) and headers.get(CONTENT_TYPE_HEADER) == CONTENT_TYPE


def values_refused(topic: str) -> ValuesRefused:
    """The error where a typed topic is sent a value, which no reader of its rows could read."""
    return ValuesRefused(
        f"topic {topic} has a schema, so it takes rows: use send_rows (`commitlog produce --rows`). A value that is an "
        f"Arrow record batch already has headers that say so: {CONTENT_TYPE_HEADER}={CONTENT_TYPE}, {SCHEMA_HEADER}, "
        f"{ROWS_HEADER}"
    )

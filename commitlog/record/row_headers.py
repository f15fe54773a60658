"""The headers of a message that has rows: they say how to read its value, an Arrow record batch."""

import re
from collections.abc import Mapping

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

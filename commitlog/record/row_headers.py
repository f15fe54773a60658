"""The headers of a message that has rows: they say how to read its value, an Arrow record batch."""

CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER = "content-type", "schema-version", "row-count"
COMPRESSION_HEADER = "content-encoding"
ROW_HEADERS = frozenset({CONTENT_TYPE_HEADER, SCHEMA_HEADER, ROWS_HEADER, COMPRESSION_HEADER})

CONTENT_TYPE = "application/x.arrow-record-batch"

"""How typed messages lie in memory, for the reader in Java (MessageLayout.java).

A message is an Arrow record batch: first metadata, then buffers. The metadata have numbers that
tell where each buffer lies. For one version of a schema, all other bytes of the metadata are the
same in every message. So Java is given one message's metadata and the places of the numbers. It
compares all other bytes.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from commitlog.disk.schema_versions import schema_versions
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreDamaged, StoreTooNew
from commitlog.schemas.row_batches import encode_batch
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas

_PREFIX_BYTES = 8  # a mark, and the size of the metadata
_MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 2, 3
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS = 0, 1, 2
"""Numbers of fields in Arrow's format (Message.fbs): of a message, and of its record batch."""

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}


def layouts(path: str | Path, topics: Iterable[str]) -> list[dict[str, Any]]:
    """The layouts of all versions of these topics' schemas.

    A version whose file is damaged is left out: Python reads its messages, and says so.
    """
    directory = StoreDirectory(path)
    schemas = TopicSchemas(directory)
    found = []
    for topic in sorted(topics):
        later: set[str] = set()
        for version in reversed(schema_versions(directory, topic, deleted=True)):
            try:
                schema = schemas.version(topic, version)
            except (StoreDamaged, StoreTooNew):
                continue
            found.append(_layout(schema) | {"added_later": sorted(later.difference(schema.columns.names))})
            later.update(schema.columns.names)
    return found


def _layout(schema: TopicSchema) -> dict[str, Any]:
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema.columns], schema=schema.columns)
    message = encode_batch(row)
    (size,) = struct.unpack_from("<i", message, 4)
    root = _target(message, _PREFIX_BYTES)
    batch = _target(message, _field(message, root, _MESSAGE_HEADER))
    return {
        "topic": schema.topic,
        "version": schema.version,
        "columns": json.dumps(spark_fields(schema.columns)),
        "header": base64.b64encode(message[: _PREFIX_BYTES + size]).decode(),
        "rows_at": _field(message, batch, _BATCH_LENGTH),
        "body_bytes_at": _field(message, root, _MESSAGE_BODY_LENGTH),
        "nodes_at": _target(message, _field(message, batch, _BATCH_NODES)) + 4,  # behind their number
        "buffers_at": _target(message, _field(message, batch, _BATCH_BUFFERS)) + 4,
    }


def _target(message: bytes, at: int) -> int:
    """Where a reference leads to: it is a distance from itself."""
    return at + int(struct.unpack_from("<i", message, at)[0])


def _field(message: bytes, table: int, number: int) -> int:
    """The place of a field of a table, which has a list of its fields' places."""
    places = table - int(struct.unpack_from("<i", message, table)[0])
    return table + int(struct.unpack_from("<H", message, places + 4 + 2 * number)[0])


def spark_fields(columns: Iterable[pa.Field]) -> dict[str, Any]:
    """The columns as a struct, in the JSON that Spark writes for its types."""
    fields = [
        {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": {}} for field in columns
    ]
    return {"type": "struct", "fields": fields}


def _type(kind: pa.DataType) -> dict[str, Any] | str:
    """Spark's JSON for the type of a column."""
    if pa.types.is_map(kind):
        sides = {"keyType": _type(kind.key_type), "valueType": _type(kind.item_type)}
        return {"type": "map", **sides, "valueContainsNull": kind.item_field.nullable}
    if pa.types.is_list(kind):
        return {
            "type": "array",
            "elementType": _type(kind.value_type),
            "containsNull": kind.value_field.nullable,
        }
    if pa.types.is_struct(kind):
        return spark_fields(kind.fields)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _TYPES[kind]

"""What the next version of a schema may be: it may only grow.

Columns that may be null are added, types become wider, and NOT NULL goes. All else is refused,
because readers could not show old messages any more.
"""

from __future__ import annotations

import pyarrow as pa

from commitlog.schemas.ddl import ddl_type
from commitlog.schemas.types import FLOATS, INTEGERS


def why_not_grown(old: pa.Schema, new: pa.Schema) -> str | None:
    """Why messages of the old schema could not be read as the new one; None if they can."""
    for field in old:
        index = new.get_field_index(field.name)
        if index < 0:
            return f"column {field.name} is missing in the new one, and a column can't go"
        later = new.field(index)
        if ddl_type(later.type) == ddl_type(field.type) and later.type != field.type:
            return f"column {field.name} can't change: nulls within it are allowed in one of them only"
        if not is_wider(later.type, field.type):
            return f"column {field.name} can't change from {ddl_type(field.type)} to {ddl_type(later.type)}"
        if field.nullable and not later.nullable:
            return f"column {field.name} may be null in old messages, so it can't become NOT NULL"
    for field in new:
        if old.get_field_index(field.name) < 0 and not field.nullable:
            return f"column {field.name} is new, so old messages have nulls there: it can't be NOT NULL"
    return None


def is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether every value of the old type is one of the new type, which Spark can widen it to."""
    if new == old:
        return True
    for family in (INTEGERS, FLOATS):
        if old in family and new in family:
            return family.index(new) > family.index(old)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return False

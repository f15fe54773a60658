"""Schemas as Spark writes them: `id BIGINT NOT NULL, tags ARRAY<STRING>, price DECIMAL(10, 2)`.

Spark parses such text in its JVM, which a producer does not have. Comments are passed over.
VARCHAR(n) and CHAR(n) are strings: the length is no limit here, and nothing is cut or filled up.
"""

from __future__ import annotations

import re

import pyarrow as pa

from commitlog.errors import SchemaError

_PLAIN = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(), "BYTE": pa.int8(),
    "SMALLINT": pa.int16(), "SHORT": pa.int16(),
    "INT": pa.int32(), "INTEGER": pa.int32(),
    "BIGINT": pa.int64(), "LONG": pa.int64(),
    "FLOAT": pa.float32(), "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"), "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}  # fmt: skip
_NAMES = {kind: name for name, kind in reversed(_PLAIN.items())}
_WITH_LENGTH = ("VARCHAR", "CHAR", "CHARACTER")
_WORD = re.compile(r"""\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[<>(),:]|$)""", re.DOTALL)
_SHOWN = 200


def parse_ddl(text: str) -> pa.Schema:
    """The schema that the text declares. Raises SchemaError, which says where it is wrong."""
    try:
        return pa.schema(_Parser(text).fields())
    except RecursionError:
        raise SchemaError(f"schema {text[:_SHOWN]!r}: its types are nested too deep") from None


def ddl_type(kind: pa.DataType) -> str:
    """Spark's name of a type that a schema can have."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{ddl_type(kind.key_type)},{ddl_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {_field_type(field)}' for field in kind.fields)}>"
    return _NAMES[kind]


def ddl(schema: pa.Schema) -> str:
    """The schema as text that `parse_ddl` and Spark read."""
    return ", ".join(f"{_quoted(field.name)} {_field_type(field)}" for field in schema)


def _field_type(field: pa.Field) -> str:
    return ddl_type(field.type) + ("" if field.nullable else " NOT NULL")


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return name
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


class _Parser:
    """Reads the text word by word. `_word` is the next one, "" at the end."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._word = text, 0, ""
        self._step()

    def _step(self) -> str:
        """The next word. Goes on to the one after it."""
        before, found = self._word, _WORD.match(self._text, self._at)
        if found is None:
            raise self._error("a name or a type")
        self._at, self._word = found.end(), found[1]
        return before

    def _error(self, wanted: str) -> SchemaError:
        rest = self._text[max(self._at - len(self._word), 0) :].strip()[:40] or "the end"
        return SchemaError(
            f"schema {self._text[:_SHOWN]!r}: {wanted} is missing before {rest!r}; write it as Spark does: "
            "'id BIGINT NOT NULL, name STRING'"
        )

    def _take(self, word: str) -> None:
        if self._word.upper() != word:
            raise self._error(f"{word!r}")
        self._step()

    def fields(self, end: str = "") -> list[pa.Field]:
        """The columns up to the word `end`; "" is the end of the text."""
        fields: list[pa.Field] = []
        while self._word != end:
            if fields:
                self._take(",")
            name = self._name()
            if self._word == ":":
                self._step()
            kind, nullable = self._type(), True
            if self._word.upper() == "NOT":
                self._step()
                self._take("NULL")
                nullable = False
            if self._word.upper() == "COMMENT":
                self._step()
                self._comment()
            fields.append(pa.field(name, kind, nullable))
        if not fields:
            raise self._error("a column")
        return fields

    def _comment(self) -> None:
        """Passes over it: a schema has nothing but columns."""
        if not self._word.startswith(("'", '"')):
            raise self._error("a text in quotes")
        while self._word.startswith(("'", '"')):
            self._step()

    def _name(self) -> str:
        if not re.match(r"[`\w]", self._word):
            raise self._error("a column's name")
        word = self._step()
        return word[1:-1].replace("``", "`") if word.startswith("`") else word

    def _type(self) -> pa.DataType:
        word = self._word.upper()
        if word in _PLAIN:
            self._step()
            return _PLAIN[word]
        if word in ("DECIMAL", "DEC", "NUMERIC"):
            self._step()
            return self._decimal()
        if word in _WITH_LENGTH:
            self._step()
            self._length()
            return pa.string()
        if word not in ("ARRAY", "MAP", "STRUCT"):
            raise self._error("a type")
        self._step()
        self._take("<")
        if word == "STRUCT":
            made = pa.struct(self.fields(">"))
        else:
            made = self._type()
            if word == "MAP":
                self._take(",")
                made = pa.map_(made, self._type())
            else:
                made = pa.list_(made)
        self._take(">")
        return made

    def _length(self) -> None:
        self._take("(")
        if self._number() < 1:
            raise self._error("a length from 1 on")
        self._take(")")

    def _decimal(self) -> pa.DataType:
        digits = [10, 0]
        if self._word == "(":
            self._step()
            digits[0] = self._number()
            if self._word == ",":
                self._step()
                digits[1] = self._number()
            self._take(")")
        if not 1 <= digits[0] <= 38 or digits[1] > digits[0]:
            raise self._error("a DECIMAL(digits, digits after the point) of at most 38 digits")
        return pa.decimal128(*digits)

    def _number(self) -> int:
        if not self._word.isdecimal():
            raise self._error("a number")
        return int(self._step())

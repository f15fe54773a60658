"""Messages of a topic for the page: from an offset or a time on, with a text, or as they come."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from commitlog.client.reader import Reader
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CorruptRecord, OffsetOutOfRange, StoreDamaged
from commitlog.message import Message
from commitlog.record.row_headers import ROW_HEADERS, version_of
from commitlog.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from commitlog.schemas.topic_schemas import TopicSchemas

COUNT_MAX = 200
"""Most messages of one answer, unless it follows."""
TEXT_BYTES_MAX = 4096
"""What an answer shows of a text or a column of a row, until all of it is asked for."""
ROWS_MAX = 20
"""What an answer shows of the rows of a message, until all of them are asked for."""
WHOLE_BYTES_MAX, WHOLE_ROWS_MAX = 8 << 20, 2000
"""What is shown where all is asked for. The rest is left to `commitlog cat`."""
BEAT_SECONDS = 0.5
"""Between two words about how far a question is, so that a client that has gone is noticed, too."""


@dataclass(frozen=True)
class Question:
    """What the page asks for. `partition` chooses one; None takes all.

    `start` is in the words of `Reader(start=)`. `search` is a text in key or value, whatever its
    case (of ASCII). With `follow` the answer never ends, and `count` does not count.
    """

    topic: str
    start: str = "earliest"
    partition: int | None = None
    count: int = COUNT_MAX
    search: str = ""
    follow: bool = False


def found_messages(
    path: str | os.PathLike[str], question: Question, ends: Callable[[], bool]
) -> Generator[dict[str, Any], None, None]:
    """The lines of the answer: `message` for each, and now and then `looked_at`, which counts.

    The last one has `end` and `found`. It goes on until `ends` says so. Raises what Reader raises.
    """
    lanes = None if question.partition is None else {question.partition}
    shown, wanted = _Shown(path), question.search.encode()
    looked_at = found = 0
    told = SYSTEM_CLOCK.monotonic_ns()
    with Reader(path, question.topic, start=question.start, lanes=lanes, follow=question.follow) as reader:
        count = min(question.count, COUNT_MAX)
        while (question.follow or found < count) and not ends():
            message = reader.poll(BEAT_SECONDS) if question.follow else next(reader, None)
            if message is not None:
                looked_at += 1
                line = shown.line(message, wanted)
                if line is not None:
                    found += 1
                    yield {"message": line}
            elif not question.follow:
                break
            if SYSTEM_CLOCK.monotonic_ns() - told > BEAT_SECONDS * 1e9:
                told = SYSTEM_CLOCK.monotonic_ns()
                yield {"looked_at": looked_at}
    yield {"looked_at": looked_at, "found": found, "end": True}


def whole_message(path: str | os.PathLike[str], topic: str, partition: int, offset: int, search: str) -> dict[str, Any]:
    """One message, with all of its value, or all of its rows. Raises what Reader raises."""
    with Reader(path, topic, start=offset, lanes={partition}) as reader:
        message = next(reader, None)
    shown = _Shown(path, WHOLE_BYTES_MAX, WHOLE_ROWS_MAX)
    line = None if message is None else shown.line(message, search.encode())
    if line is None:
        raise OffsetOutOfRange(f"topic {topic} has no such message at offset {offset} of partition {partition}")
    return line


class _Shown:
    """Makes lines of messages. `cut` of a line names what it shows only the beginning of."""

    def __init__(self, path: str | os.PathLike[str], most: int = TEXT_BYTES_MAX, rows: int = ROWS_MAX) -> None:
        self._path, self._most, self._rows_max = path, most, rows
        self._schemas: TopicSchemas | None = None

    def line(self, message: Message, wanted: bytes) -> dict[str, Any] | None:
        """The line of a message, or None where neither its key nor its value has the wanted text.

        Of a message with rows those are shown that have it, or all if the key has it.
        """
        cut: list[str] = []
        wanted = wanted.lower()  # of ASCII, as below
        of_all = wanted in (message.key or "").encode().lower()
        try:
            content = self._rows(message, b"" if of_all else wanted, cut)
        except _NoRows as error:
            if not of_all and wanted not in message.value.lower():
                return None
            content = {**self._value(message.value, cut), **({"no_rows": str(error)} if str(error) else {})}
        if content.get("row_count") == 0:
            return None
        headers = {
            name: text for name, text in message.headers.items() if "rows" not in content or name not in ROW_HEADERS
        }
        return {
            "partition": message.partition,
            "offset": message.offset,
            "timestamp": message.timestamp,
            "key": self._text("key", message.key, cut),
            "tags": self._text("tags", message.tags, cut),
            "headers": {name: self._text("headers", text, cut) for name, text in headers.items()},
            "bytes": len(message.value),
            **content,
            "cut": cut,
        }

    def _text(self, name: str, text: str | None, cut: list[str]) -> str | None:
        if text is not None and len(text) > self._most:
            cut.append(name)
            return text[: self._most]
        return text

    def _value(self, value: bytes, cut: list[str]) -> dict[str, Any]:
        part = value[: self._most]
        if len(part) < len(value):
            cut.append("value")
        try:
            return {"value": part.decode()}
        except UnicodeDecodeError as error:
            if len(part) < len(value) and error.start > len(part) - 4:  # cut off within a character
                return {"value": part[: error.start].decode()}
            return {"value_base64": base64.b64encode(part).decode()}

    def _rows(self, message: Message, wanted: bytes, cut: list[str]) -> dict[str, Any]:
        """Rows as JSON texts. Raises _NoRows, with a text where there should be some."""
        if version_of(message.headers) is None:
            raise _NoRows
        try:
            from commitlog.columns.typed_rows import rows_of
            from commitlog.schemas.row_lines import lines_of
            from commitlog.schemas.topic_schemas import TopicSchemas
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise _NoRows("columns need the extra arrow:") from error
        self._schemas = self._schemas or TopicSchemas(StoreDirectory(self._path))
        try:
            rows = rows_of(message, self._schemas)
        except (CorruptRecord, StoreDamaged) as error:
            raise _NoRows(f"{error}:") from error
        lines = [line for line in lines_of(rows) if wanted in line.lower()]
        first = [self._row(number, line, cut) for number, line in enumerate(lines[: self._rows_max])]
        return {"rows": first, "row_count": len(lines)}

    def _row(self, number: int, line: bytes, cut: list[str]) -> str:
        if len(line) > self._most:
            columns = orjson.loads(line)
            for name, value in columns.items():
                text = value if isinstance(value, str) else orjson.dumps(value).decode()
                if len(text) > self._most:
                    columns[name] = text[: self._most]
                    cut.append(f"{number} {name}")
            line = orjson.dumps(columns)
        return line.decode().rstrip()


class _NoRows(Exception):
    """A message is shown by its value."""

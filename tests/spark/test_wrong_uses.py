"""Each wrong use of wrong_uses.toml ends with the error that stands there, in one line.

No JVM is needed, because Spark makes the source in a process of Python's and does the same there.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from commitlog.errors import CommitLogError
from commitlog.planning.option_names import SINK_SPELLING, SPELLING
from commitlog.spark.columns import ALL_COLUMNS, allowed_columns
from commitlog.spark.source import CommitLogDataSource
from tests.builders.hand_made import HandMadeStore, small_store
from tests.nightly import by_url_nightly
from tests.served import is_by_url, place_of

LISTS = {
    "{options of both}": ", ".join((SPELLING | SINK_SPELLING).values()),
    "{options of a source}": ", ".join(SPELLING.values()),
    "{columns}": ", ".join(ALL_COLUMNS),
    "{columns and types}": allowed_columns(),
}
"""What an error lists. The file has a name for each list, which grows."""
TYPES: dict[str, DataType] = {"string": StringType(), "binary": BinaryType(), "bigint": LongType()}
USES = tomllib.loads(Path(__file__).with_name("wrong_uses.toml").read_text())["use"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    return small_store(tmp_path_factory.mktemp("wrong") / "store", rows=10)


def run(kind: str, options: dict[str, str], columns: str | None) -> None:
    """Does what Spark does with a read or a write, up to the planning of the first tasks."""
    source = CommitLogDataSource({name.lower(): value for name, value in options.items()})
    fields = [column.split() for column in columns.split(", ")] if columns else []
    schema = StructType([StructField(name, TYPES[type_]) for name, type_ in fields])
    if kind == "batch":
        source.reader(schema if columns else source.schema()).partitions()
    elif kind == "stream":
        reader = source.streamReader(schema if columns else source.schema())
        try:
            reader.initialOffset()
        finally:
            reader.stop()
    elif kind == "write stream":
        source.streamWriter(schema, overwrite=False)
    else:
        source.writer(schema, overwrite=kind == "overwrite")


def _name(use: dict[str, Any]) -> str:
    return f"{use['as']} {next(reversed(use['options']), 'nothing')}"


@pytest.mark.parametrize("use", USES, ids=_name)
@by_url_nightly
@pytest.mark.usefixtures("both_ways", "look_each_time")
def test_a_wrong_use(use: dict[str, Any], store: HandMadeStore) -> None:
    options = {name: value.replace("{store}", place_of(store.path)) for name, value in use["options"].items()}
    with pytest.raises(CommitLogError) as raised:
        run(use["as"], options, use.get("columns"))
    said = f"{type(raised.value).__name__}: {raised.value}".replace(place_of(store.path), "{store}")
    for name, text in LISTS.items():
        said = said.replace(text, name)
    wanted = use.get("error_by_url", use["error"]) if is_by_url() else use["error"]
    assert said == wanted
    assert "\n" not in said

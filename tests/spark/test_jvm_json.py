"""Spark's JVM reads `values=json`: the rows of Spark's own from_json, whatever the values are."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.builders.hand_made import HandMadeStore
from tests.builders.json_values import ALIKE, SCHEMA, SHAPES, SHAPES_SCHEMA, STRICTER, TIMES
from tests.nightly import with_nightly
from tests.spark.jvm_frames import BY_JVM, children, failure, harm, load, plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "a INT, s STRING, l ARRAY<INT>"
TIMES_SCHEMA = "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, _corrupt_record STRING"
OF_TIMES = [json.dumps({"t": time, "n": time, "d": time}).encode() for time in TIMES]
STRANGE = [
    *(b'{"s":"\xff\xfe","a":1}', b'\xef\xbb\xbf{"a":1}', b'{"s":"\\udc00\\ud800"}', b'{"a":01,"b":true}', b"\x00"),
    *(b'{"m":{"k":1,"k":2},"f":-0,"i8":-0}', b'{"s":12345678.9,"f":.5}', b'{"s":1e400}', b'{"s":NaN}', b"'a'"),
    *(b'{"l":[1,"x",{"a":5}],"a":1}', b'{"t":"10:00:00"}', b'{"t":"2024-01-05 10:00:00 PST"}', b'{"a":1}]'),
    *(b'{"deep":' + b"[" * deep + b"]" * deep + b',"a":1}' for deep in (500, 998, 1000, 3000)),
]


def store_of(path: Path, values: list[bytes]) -> HandMadeStore:
    store = HandMadeStore(path)
    for number, value in enumerate(values):
        store.lane(0).append("orders", value, key=f"k{number}")
    store.publish()
    return store


def load_json(spark: SparkSession, store: HandMadeStore, schema: str, **options: object) -> DataFrame:
    reader = spark.read.format("commitlog").schema(schema)
    for name, value in ({"subscribe": "orders", "values": "json"} | options).items():
        reader = reader.option(name, str(value))
    return reader.load(str(store.path))


def by_from_json(spark: SparkSession, store: HandMadeStore, schema: str, **options: object) -> DataFrame:
    from pyspark.sql.functions import col, from_json

    parsed = from_json(col("value").cast("string"), schema, {"columnNameOfCorruptRecord": "_corrupt_record"})
    return load(spark, store.path, **options).select(parsed.alias("parsed"), col("offset")).select("parsed.*", "offset")


def texts(frame: DataFrame, offset: str) -> dict[int, tuple[str, str]]:
    """Offset → all columns of a row, as two texts: one shows nulls, and one shows numbers."""
    columns = ", ".join(f"`{name}`" for name in frame.columns if name != offset)
    row = f"struct({columns})"
    shown = frame.selectExpr(
        offset,
        f"hex(CAST(to_json({row}, map('ignoreNullFields', 'false')) AS BINARY))",
        f"hex(CAST(CAST({row} AS STRING) AS BINARY))",
    )
    return {found[0]: (found[1], found[2]) for found in shown.collect()}


def check_rows(spark: SparkSession, store: HandMadeStore, schema: str, **options: object) -> None:
    ours = load_json(spark, store, f"{schema}, _offset BIGINT", **options)
    assert BY_JVM in plan_of(ours)
    assert texts(ours, "_offset") == texts(by_from_json(spark, store, schema, **options), "offset")


@pytest.mark.parametrize("zone", with_nightly(["Asia/Kolkata"], ["UTC"]))
@pytest.mark.parametrize(
    ("schema", "values"),
    [(SCHEMA, [*ALIKE, *STRICTER, *STRANGE]), (TIMES_SCHEMA, OF_TIMES), (SHAPES_SCHEMA, SHAPES)],
    ids=["values", "times", "shapes"],
)
def test_rows_are_those_of_from_json(
    spark: SparkSession, tmp_path: Path, schema: str, values: list[bytes], zone: str
) -> None:
    """All of them: times without a zone are in the session's, and broken texts are repaired."""
    store = store_of(tmp_path / "store", values)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        check_rows(spark, store, schema)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


_NAMES = st.sampled_from(["a", "b", "A", "é", "a b", "x.y", "_corrupt_record", "_offset"])
_TYPES = st.recursive(
    st.sampled_from(
        [
            "INT",
            "BIGINT",
            "STRING",
            "DOUBLE",
            "FLOAT",
            "BOOLEAN",
            "DECIMAL(9,2)",
            "DATE",
            "TIMESTAMP",
            "BINARY",
            "TINYINT",
        ]
    ),
    lambda inner: st.one_of(
        st.builds("ARRAY<{}>".format, inner),
        st.builds("MAP<STRING, {}>".format, inner),
        st.builds("STRUCT<a: {}, b: {} NOT NULL>".format, inner, inner),
    ),
    max_leaves=3,
)
_SCHEMAS = st.dictionaries(st.sampled_from(["a", "b", "é", "a b", "x.y"]), _TYPES, min_size=1, max_size=4)
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.sampled_from(TIMES)
)
_OBJECTS = st.dictionaries(
    _NAMES,
    st.recursive(
        _LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@st.composite
def _values(draw: st.DrawFn) -> bytes:
    """JSON, of which one byte may be another one, or the end may be missing."""
    text = bytearray(json.dumps(draw(_OBJECTS), ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass"))
    if draw(st.integers(0, 3)) == 0:
        text[draw(st.integers(0, len(text) - 1))] = draw(st.sampled_from(list(b'{}[]",:01-ex\\\xff\x00 ')))
    return bytes(text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 5)) == 0 else text)


FEW = settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)


def check_any(spark: SparkSession, path: Path, columns: dict[str, str], values: list[bytes]) -> None:
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items()) + ", _corrupt_record STRING"
    with TemporaryDirectory(dir=path) as place:
        check_rows(spark, store_of(Path(place) / "store", values), schema)


@pytest.mark.nightly
@settings(FEW)
@given(columns=_SCHEMAS, values=st.lists(_values(), min_size=20, max_size=60))
@example(
    columns={"a": "STRUCT<a: INT NOT NULL, b: STRING>"}, values=[b'{"a":{}}', b'{"a":{"a":"x"}}', b'{"a":{"a":1}}']
)
def test_any_values(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, columns: dict[str, str], values: list[bytes]
) -> None:
    """Values and schemas of all types, at every depth."""
    check_any(spark, tmp_path_factory.getbasetemp(), columns, values)


@pytest.mark.nightly
@settings(FEW, max_examples=300)
@given(columns=_SCHEMAS, values=st.lists(_values(), min_size=50, max_size=200))
def test_any_values_many(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, columns: dict[str, str], values: list[bytes]
) -> None:
    check_any(spark, tmp_path_factory.getbasetemp(), columns, values)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """Of its twelve values those of offsets 4, 5 and 9 are malformed. No test changes it."""
    values = [b'{"a":%d,"s":"x","t":"2024-01-05 10:00:00"}' % number for number in range(12)]
    values[4], values[5] = b'{"a":01,"s":"y"}', b"it's\nno JSON"
    values[9] = b'{"l":[1,"x",{"s":"in"}],"s":"y"}'
    return store_of(tmp_path_factory.mktemp("json") / "store", values)


def test_a_field_does_not_depend_on_the_query(spark: SparkSession, store: HandMadeStore) -> None:
    """A query of one field gets what a query of all gets, also from a malformed value."""
    whole = load_json(spark, store, FIELDS)
    assert [row.s for row in whole.select("s").collect()] == [row.s for row in whole.collect()]
    assert whole.count() == 12
    assert whole.where("a IS NULL").count() == 3


@pytest.mark.nightly
def test_modes(spark: SparkSession, store: HandMadeStore) -> None:
    """Whichever columns a query wants, and in the words of the Python source."""
    fields = f"{FIELDS}, _offset BIGINT"
    good = {*range(12)} - {4, 5, 9}
    dropped = load_json(spark, store, fields, mode="DROPMALFORMED")
    assert {row[0] for row in dropped.select("_offset").collect()} == good
    assert dropped.count() == len(dropped.limit(9).collect()) == 9
    for query in ("a", "_offset", "1"):
        refused = [
            load_json(spark, store, fields, mode="FAILFAST", reader=reader).selectExpr(query)
            for reader in ("any", "python")
        ]
        said = [failure(frame.where("1 = 1").collect) for frame in refused]
        assert said[0] == said[1], query
        assert said[0].startswith(
            'MalformedValue: topic orders, lane 0, offset 4: b\'{"a":01,"s":"y"}\' is no JSON object'
        )
    strict = load_json(spark, store, fields, mode="FAILFAST")
    assert strict.where("_offset NOT IN (4, 5, 9)").count() == 9
    assert r"offset 5: b'it\'s\x0ano JSON' is no" in failure(strict.where("_offset = 5").collect)


@pytest.mark.nightly
def test_metadata_and_pushdown(spark: SparkSession, store: HandMadeStore) -> None:
    schema = (
        "_key BINARY, _row INT, a INT, _topic STRING, _timestamp TIMESTAMP, _partition INT, _offset BIGINT, bad STRING"
    )
    frames = [
        load_json(spark, store, schema, reader=reader, columnNameOfCorruptRecord="bad").where(
            "_offset IN (1, 5, 6) AND _timestamp > '2000-01-01'"
        )
        for reader in ("any", "python")
    ]
    found, expected = (sorted(map(str, frame.collect())) for frame in frames)
    assert found == expected
    assert len(found) == 3
    assert re.search(r"PushedFilters: \[.*_offset IN \(1, 5, 6\).*\] Times: \[9466848000", plan_of(frames[0]))
    assert "Limit: 2" in plan_of(load_json(spark, store, schema).limit(2))
    assert load_json(spark, store, "_offset BIGINT").count() == 12
    assert sum(row[0] for row in load_json(spark, store, "a INT, _offset BIGINT").select("_offset").collect()) == 66


@pytest.mark.nightly
def test_rows_that_python_has_to_read(spark: SparkSession, tmp_path: Path) -> None:
    """What the JVM can't read of a log, it parses all the same: a query has one parser."""
    text = b'{"t":"2024-01-05 10:00:00","s":12345678.9}'
    store = store_of(tmp_path / "store", [text] * 40)
    store.lane(0).append("orders", zlib.compress(text), sys_flag=1)
    store.publish()
    store.directory.lane_directory(0).quarantine.mkdir()
    (store.directory.lane_directory(0).quarantine / "corrupt-").touch()
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        frame = load_json(spark, store, "t TIMESTAMP, s STRING, _offset BIGINT")
        assert frame.selectExpr("CAST(t AS STRING)", "s").distinct().collect() == [
            ("2024-01-05 10:00:00", "1.23456789E7")
        ]
        assert frame.count() == 41
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.nightly
def test_damage_has_the_same_error(spark: SparkSession, tmp_path: Path) -> None:
    """With ignoreCorruptRecords each query leaves out the same record."""
    made = HandMadeStore(tmp_path / "store")
    for number in range(9):
        made.lane(3).append("orders", b'{"a":%d}' % number)
    made.publish()
    harm(made, 4, 2)
    frames = [load_json(spark, made, "a INT, _offset BIGINT", reader=reader) for reader in ("any", "python")]
    assert failure(frames[0].collect) == failure(frames[1].collect)
    assert [row[0] for row in frames[0].where("_offset <> 4").select("a").collect()] == [0, 1, 2, 3, 5, 6, 7, 8]
    frame = load_json(spark, made, "a INT, _offset BIGINT", ignoreCorruptRecords="true")
    assert frame.count() == frame.select("_offset").distinct().count() == len(frame.collect()) == 8


def test_no_python_worker_parses(spark: SparkSession, store: HandMadeStore) -> None:
    frame = load_json(spark, store, "a INT, t TIMESTAMP")
    assert "Python" not in plan_of(frame)
    before = children(spark)
    assert frame.where("a > 5").count() == 5
    assert children(spark) <= before


def test_a_read_without_fields_is_the_same_error(spark: SparkSession, store: HandMadeStore) -> None:
    reader = spark.read.format("commitlog").option("subscribe", "orders").option("values", "json")
    said = failure(lambda: reader.load(str(store.path)))
    assert said.startswith("OptionError: option values: json needs the fields: .schema('id BIGINT, name STRING')")
    wrong = load_json(spark, store, "a INT NOT NULL, b INTERVAL DAY TO SECOND")
    assert failure(wrong.collect).startswith("OptionError: schema: column 'a' can't be NOT NULL")


@pytest.mark.nightly
def test_a_stream(spark: SparkSession, store: HandMadeStore, tmp_path: Path) -> None:
    """It has the rows of a batch, limit by limit."""
    schema = f"{FIELDS}, t TIMESTAMP, _offset BIGINT, _corrupt_record STRING"
    reader = spark.readStream.format("commitlog").schema(schema)
    for name, value in {"subscribe": "orders", "values": "json", "startingOffsets": "earliest"}.items():
        reader = reader.option(name, value)
    rows = reader.option("maxOffsetsPerTrigger", 5).load(str(store.path))
    writer = rows.writeStream.format("memory").queryName("json_rows").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        assert query.awaitTermination(120)
        assert [progress.numInputRows for progress in query.recentProgress] == [5, 5, 2]
        plan = query._jsq.explainInternal(False)
        assert "(read by the JVM)" in plan
        assert texts(spark.table("json_rows"), "_offset") == texts(load_json(spark, store, schema), "_offset")
    finally:
        query.stop()
        spark.catalog.dropTempView("json_rows")

"""Tables of Spark's own catalog, and a store as a catalog whose tables are its topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, UnsupportedOperationException

import commitlog
from tests.builders.hand_made import HandMadeStore, small_store
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly
from tests.spark.jvm_frames import BY_JVM, failure, plan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "spark.sql.catalog"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HandMadeStore:
    """Messages 0 to 9 of `orders` and of `other` in each of two lanes, and two rows of `sales`."""
    made = small_store(tmp_path_factory.mktemp("tables") / "store", rows=10)
    sales = declare(made, "sales", "id BIGINT NOT NULL, fruit STRING")
    append_rows(made.lane(0), sales, [{"id": 1, "fruit": "apple"}, {"id": 2, "fruit": None}])
    made.lane(0).dispatch()
    made.lane(0).publish()
    return made


@pytest.fixture(autouse=True)
def no_tables_left(spark: SparkSession) -> Iterator[None]:
    """Drops what a test creates."""
    yield
    spark.sql("USE spark_catalog")
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def use_catalog(spark: SparkSession, name: str, **options: object) -> None:
    """Spark keeps a catalog as long as its session: each test has one of its own name."""
    spark.conf.set(f"{CATALOG}.{name}", "commitlog.spark.Catalog")
    for option, value in options.items():
        spark.conf.set(f"{CATALOG}.{name}.{option}", str(value))


# ---- tables of Spark's own catalog ---------------------------------------------------------------


@pytest.mark.parametrize("clause", with_nightly(["OPTIONS ({1}) LOCATION '{0}'"], ["OPTIONS (path '{}', {})"]))
def test_a_created_table_has_its_options(spark: SparkSession, store: HandMadeStore, clause: str) -> None:
    """Also beside properties and a comment, which are none of its options."""
    subscribe = "subscribe 'orders', Isolation 'committed'"
    more = "COMMENT 'fruit' TBLPROPERTIES ('owner.mail' = 'a@b')"
    spark.sql(f"CREATE TABLE few USING commitlog {clause.format(store.path, subscribe)} {more}")
    assert BY_JVM in plan_of(spark.table("few"))
    assert spark.sql("SELECT count(*), count(DISTINCT topic) FROM few").first() == (20, 1)
    described = {row.col_name: row.data_type for row in spark.sql("DESCRIBE EXTENDED few").collect()}
    assert described["Location"] == f"file:{store.path}"
    assert described["value"] == "binary"
    spark.sql("DROP TABLE few")
    assert store.directory.file.exists()


@pytest.mark.nightly
def test_a_table_reads_the_store_whose_path_has_a_percent_sign(spark: SparkSession, tmp_path: Path) -> None:
    """Not the one whose path that would stand for in a URI."""
    small_store(tmp_path / "per cent", rows=2)
    path = small_store(tmp_path / "per%20cent", rows=5).path
    for clause in (f"OPTIONS (path '{path}', subscribe 'orders')", f"OPTIONS (subscribe 'orders') LOCATION '{path}'"):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shown USING commitlog OPTIONS (path '{path}', subscribe 'orders')")
        spark.sql(f"CREATE TABLE few USING commitlog {clause}")
        assert (spark.table("few").count(), spark.table("shown").count()) == (10, 10)
        spark.sql("DROP TABLE few")


def test_a_query_adds_options_of_its_own(spark: SparkSession, store: HandMadeStore) -> None:
    """They take the place of the table's, for this query only, and are checked as all are."""
    spark.sql(f"CREATE TABLE few USING commitlog OPTIONS (path '{store.path}', subscribe 'orders')")
    assert spark.read.option("endingOffsets", '{"orders": {"0": 3, "1": 0}}').table("few").count() == 3
    assert spark.sql("SELECT * FROM few WITH ('endingTimestamp' = '1')").count() == 0
    assert spark.table("few").count() == 20
    assert "there is none of this name; did you mean isolation?" in failure(
        lambda: spark.read.option("isolatoin", "committed").table("few").collect()
    )


@pytest.mark.nightly
def test_what_python_reads_is_a_table_too(spark: SparkSession, store: HandMadeStore) -> None:
    """Spark alone would give the Python source no options."""
    options = f"path '{store.path}', subscribe 'sales', values 'columns', reader 'python'"
    spark.sql(f"CREATE TABLE sold USING commitlog OPTIONS ({options})")
    assert spark.sql("SELECT id, fruit FROM sold ORDER BY id").collect() == [(1, "apple"), (2, None)]
    stream = spark.readStream.option("startingOffsets", "earliest").table("sold")
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert spark.table("seen").count() == 2


def test_a_table_names_its_store(spark: SparkSession, tmp_path: Path) -> None:
    """Without a path it would be a directory of Spark's own, which `DROP TABLE` deletes."""
    created = "USING commitlog OPTIONS (subscribe 'orders')"
    assert "OptionError: option path is missing" in failure(lambda: spark.sql(f"CREATE TABLE few {created}"))
    spark.sql(f"CREATE TABLE few (value BINARY) {created}")
    assert "OptionError: option path is missing" in failure(lambda: spark.table("few").collect())


# ---- a store as a catalog ------------------------------------------------------------------------


def test_topics_are_tables(spark: SparkSession, store: HandMadeStore) -> None:
    use_catalog(spark, "shop", path=store.path)
    shown = spark.sql("SHOW TABLES IN shop").collect()
    assert [row.tableName for row in shown] == ["orders", "other", "sales"]
    assert spark.sql("SELECT count(*), max(topic) FROM shop.orders").first() == (20, "orders")
    assert spark.sql("SELECT id, fruit FROM shop.sales ORDER BY id").collect() == [(1, "apple"), (2, None)]
    assert [row.col_name for row in spark.sql("DESCRIBE shop.sales").collect()] == ["id", "fruit"]
    spark.sql("USE shop")
    joined = "SELECT * FROM orders JOIN sales ON offset = id"
    assert spark.sql(joined).count() == 4
    assert "shop.orders (read by the JVM)" in plan_of(spark.sql(joined))


def test_a_catalog_s_options_are_those_of_all_its_reads(spark: SparkSession, store: HandMadeStore) -> None:
    use_catalog(spark, "wide", path=store.path, includeHeaders="true", endingOffsets='{"orders": {"0": 3, "1": 0}}')
    assert spark.table("wide.orders").select("headers").count() == 3


def test_a_catalog_names_what_is_wrong(spark: SparkSession, store: HandMadeStore, tmp_path: Path) -> None:
    use_catalog(spark, "nowhere")
    assert "OptionError: option path is missing" in failure(lambda: spark.sql("SHOW TABLES IN nowhere"))
    use_catalog(spark, "absent", path=tmp_path / "absent")
    assert "StoreNotFound: " in failure(lambda: spark.table("absent.orders"))
    use_catalog(spark, "misspelt", path=store.path, isolatoin="committed")
    assert "did you mean isolation?" in failure(lambda: spark.sql("SHOW TABLES IN misspelt"))
    use_catalog(spark, "here", path=store.path)
    for missing in ("here.fruit", "here.orders.orders"):
        with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.table(missing)
    with pytest.raises(PySparkException, match="does not support append"):
        spark.sql("INSERT INTO here.sales VALUES (3, 'pear')")


@pytest.mark.parametrize(
    ("statement", "instead"),
    [
        ("CREATE TABLE fixed.fruit (id INT)", "`commitlog topics --create`"),
        ("DROP TABLE fixed.orders", "`commitlog topics --delete`"),
        ("ALTER TABLE fixed.sales ADD COLUMN price DOUBLE", "`Store.create_topic`"),
        ("ALTER TABLE fixed.orders RENAME TO fixed.fruit", "a topic keeps its name"),
    ],
)
def test_a_catalog_makes_and_deletes_no_topic(
    spark: SparkSession, store: HandMadeStore, statement: str, instead: str
) -> None:
    use_catalog(spark, "fixed", path=store.path)
    with pytest.raises(UnsupportedOperationException, match=instead):
        spark.sql(statement)


def test_rows_go_from_table_to_table(spark: SparkSession, tmp_path: Path) -> None:
    """By `INSERT INTO` a topic and a created table, by a frame, and by a stream."""
    config: dict[str, Any] = {"store": {"segment_bytes": 1 << 20}}
    with commitlog.Store.open(tmp_path / "live", config) as live, live.producer() as producer:
        for topic in ("orders", "copied"):
            producer.send(topic, b"0")
        producer.flush()
        use_catalog(spark, "live", path=live.path)
        spark.sql("INSERT INTO live.orders SELECT 'k' AS key, '1' AS value")
        spark.sql("SELECT '2' AS value").writeTo("live.orders").append()
        spark.sql(f"CREATE TABLE more (value STRING) USING commitlog OPTIONS (path '{live.path}', topic 'orders')")
        spark.sql("INSERT INTO more VALUES ('3')")
        stream = spark.readStream.option("startingOffsets", "earliest").table("live.orders").select("key", "value")
        writer = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "offsets"))
        query = writer.toTable("live.copied")
        assert query.awaitTermination(60)
        copied = spark.table("live.copied").selectExpr("CAST(value AS STRING)").collect()
        assert sorted(row.value for row in copied) == ["0", "0", "1", "2", "3"]

"""A client of Spark Connect reads and writes by URL: its Spark runs in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import commitlog
from commitlog.serving.access import Access, add_token
from tests.ports import free_port
from tests.serving.asking import Certificates, address_of, server_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

SPARK = """
import sys, commitlog.spark
config = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.local.dir": "local",
    "spark.sql.warehouse.dir": "warehouse",
    "spark.ui.enabled": False,
}
spark = commitlog.spark.session("spark", "local[2]", config)
print("it runs", flush=True)
sys.stdin.read()
spark.stop()
"""

CLIENT = """
import sys, commitlog.spark
remote, path, url, authority, home = sys.argv[1:]
spark = commitlog.spark.session(config={"spark.remote": remote})
spark.addArtifacts("secret-token", file=True)
credentials = {"tokenFile": "secret-token", "caFile": authority}


def rows(place, topic, **options):
    return spark.read.format("commitlog").options(subscribe=topic, **options).load(place)


frame = rows(url, "orders", **credentials)
print(type(spark).__module__, frame.count(), frame.exceptAll(rows(path, "orders")).count())
stream = spark.readStream.format("commitlog").options(subscribe="orders", startingOffsets="earliest", **credentials)
writer = stream.load(url).writeStream.format("parquet").option("checkpointLocation", f"{home}/checkpoint")
for _ in range(2):
    writer.trigger(availableNow=True).start(f"{home}/rows").awaitTermination()
print(spark.read.parquet(f"{home}/rows").select("partition", "offset").distinct().count())
typed = rows(url, "numbers", values="columns", **credentials)
print(typed.columns, typed.count())
copy = frame.select("value").write.format("commitlog").options(topic="copy", **credentials).mode("append")
copy.save(url)
print(rows(path, "copy").select("value").exceptAll(rows(path, "orders").select("value")).count(), rows(path, "copy").count())
try:
    rows("store", "orders").count()
except Exception as error:
    print("StoreNotFound: option path: 'store' is relative" in str(error))
spark.stop()
"""


@pytest.fixture
def spark_connect(tmp_path: Path, quick_java: None) -> Iterator[str]:
    """The address of a Spark with Connect."""
    del quick_java
    (tmp_path / "spark").mkdir()
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", SPARK, str(port)],
        cwd=tmp_path / "spark",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Java says there which options it has picked up
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "it runs\n"
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            process.wait(60)


def test_a_client_of_spark_connect(tmp_path: Path, certificates: Certificates, spark_connect: str) -> None:
    """Batches, streams and the sink; the client gives Spark the token's file.

    A relative path, which is there for the client, is not for the server, and the error says so.
    """
    certificate, key = certificates.make("server")
    tokens = tmp_path / "tokens.json"
    (tmp_path / "secret-token").write_text(add_token(tokens, Access("spark", ("*",), read=True, write=True)))
    secured = partial(server_of, certificate=certificate, key=key, tokens=tokens, writable=True)
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 20}}) as store:
        store.create_topic("numbers", schema="number BIGINT")
        with store.producer() as producer:
            producer.send_batch("orders", [b"%d" % number for number in range(1000)])
            producer.send_rows("numbers", [{"number": 1}])
            producer.flush(timeout=60)
        with secured([store.path]) as server:
            places = [str(store.path), str(address_of(server)), str(certificates.authority), str(tmp_path)]
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", CLIENT, spark_connect, *places],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=200,
            )
    said = ["pyspark.sql.connect.session 1000 0", "1000", "['number'] 1", "0 1000", "True"]
    assert done.stdout.splitlines() == said, done.stderr

"""The context of a span travels with a message: to readers, and into Spark's `headers`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider

import commitlog
import commitlog.tracing
from tests.builders.hand_made import HandMadeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def tracer() -> Iterator[trace.Tracer]:
    """A tracer of its own, which nothing else in this process sees."""
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider.get_tracer("tests")
    provider.shutdown()


def test_a_reader_goes_on_with_the_trace(tracer: trace.Tracer, tmp_path: Path) -> None:
    """Its span is a child of the sender's, with the sender's baggage; other headers stay."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        with store.producer() as producer, tracer.start_as_current_span("send") as sending:
            token = context.attach(baggage.set_baggage("user", "a b,ö"))
            producer.send("t", b"x", headers={"own": "1", **commitlog.tracing.headers()})
            context.detach(token)
            producer.flush(timeout=60)
        (message,) = commitlog.Reader(store.path, topic="t", start="earliest")
    found = commitlog.tracing.context(message)
    assert message.headers["own"] == "1"
    assert baggage.get_baggage("user", found) == "a b,ö"
    child = tracer.start_span("read", found)
    child.end()
    assert child.get_span_context().trace_id == sending.get_span_context().trace_id
    assert child.parent.span_id == sending.get_span_context().span_id  # type: ignore[attr-defined]


def test_without_a_span_there_are_no_headers(tmp_path: Path) -> None:
    """And a message without a context gives an empty one."""
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("t", b"x", properties={"traceparent": "nonsense"})
    store.publish()
    (message,) = commitlog.Reader(store.path, topic="t", start="earliest")
    assert commitlog.tracing.headers() == {}
    assert not trace.get_current_span(commitlog.tracing.context(message)).get_span_context().is_valid


def test_spark_sees_the_trace(tracer: trace.Tracer, spark: SparkSession, tmp_path: Path) -> None:
    """In the column `headers`, by the expression that docs/tracing.md gives."""
    store = HandMadeStore(tmp_path / "store")
    with tracer.start_as_current_span("send") as sending:
        store.lane(0).append("t", b"x", properties=commitlog.tracing.headers())
    store.publish()
    page = (Path(__file__).parents[2] / "docs/tracing.md").read_text()
    expression = page.partition("```sql\nSELECT ")[2].partition("\n```")[0]
    frame = spark.read.format("commitlog").options(subscribe="t", includeHeaders=True).load(str(store.path))
    ((found,),) = frame.selectExpr(expression).collect()
    assert found == trace.format_trace_id(sending.get_span_context().trace_id)


def test_without_opentelemetry() -> None:
    """The error says what to install, and all else works."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import commitlog\n"
        "try: commitlog.tracing\n"
        "except commitlog.errors.MissingPackage as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "pip install opentelemetry-api" in done.stdout

"""Hands the rows of a streaming query to a Python function, or to a topic, as they come.

`foreachBatch` waits for a micro-batch, and PySpark's `foreach` for a full buffer. Here Spark's JVM
hands rows on at once (spark/java/RowsToPython.java), to a Python process of each task. Both also
work in Real-Time Mode.

Rows are handed over at least once. Spark notes a position when the function has had all rows up to
it. If a task fails, or its process is killed, the rows since that position come again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from commitlog.errors import JarNotUsable, OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_CLASS = "commitlog.spark.RowsToPython"
_TIMES_IN_JVM = 6
"""A function of so many bytes takes this many times as much of the JVM's heap: it comes as text."""


def foreach(stream: DataFrame, function: Callable[[pa.RecordBatch], object]) -> DataStreamWriter:
    """Has a function called with the rows of a stream, as a batch of Arrow.

    While the function runs, rows gather: the next call has all of them. Each task has a Python
    process of its own, with its own copy of the function, which stays for the tasks of the next
    batches; each start of the query has new ones. If the function has a method `flush`, that is
    called before Spark notes a position; a method `close` is called when the process ends. What it
    prints is in the executor's terminal.

    Returns the writer of the stream: give it a checkpoint and a trigger, and start it. An error of
    the function ends the query as FunctionFailed. Rows come at least once. Raises JarNotUsable, and
    OptionError for a session of Spark Connect, and for a function that brings more with it than
    Spark's JVM has room for.

        query = commitlog.spark.foreach(rows, lambda batch: print(batch.to_pylist()))
        query.option("checkpointLocation", "checkpoint").start()
    """
    if not stream.isStreaming:
        raise OptionError("foreach takes a stream: make it with spark.readStream")
    session: Any = stream.sparkSession
    if type(session).__module__.startswith("pyspark.sql.connect."):
        raise OptionError("foreach needs a session of this process's own JVM: Spark Connect has none")
    from pyspark.serializers import CloudPickleSerializer

    from commitlog.spark.launching.jvm_reader import use

    use(session)
    jvm = session._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_CLASS):
        raise JarNotUsable("the JVM of this session has the jar of another version: start a new one")
    serializer: Any = CloudPickleSerializer()
    packed = json.dumps(sys.path).encode() + b"\n" + serializer.dumps(function)
    heap = jvm.java.lang.Runtime.getRuntime().maxMemory()
    if len(packed) * _TIMES_IN_JVM > heap:
        raise OptionError(
            f"the function of foreach, with all that it refers to, has {len(packed) >> 20} MiB: too much for Spark's JVM, "
            f"which has {heap >> 20} MiB (spark.driver.memory); let the function load large things itself, at its first call"
        )
    frame: Any = stream
    zone = session.conf.get("spark.sql.session.timeZone")
    writer: Any = stream.writeStream
    writer._jwrite.foreach(getattr(jvm, _CLASS)(packed, frame._jdf.schema(), zone))
    return writer  # type: ignore[no-any-return]


def write_real_time(stream: DataFrame, path: str, topic: str | None = None, **options: str) -> DataStreamWriter:
    """Appends the rows of a stream to a topic of a running store, as they come.

    The columns and the other options are those of the sink (docs/spark.md, "Write"), and `path` may
    be a URL. A row is in the log some milliseconds after it was read. It is flushed before Spark
    notes a position. Each task leases a lane for as long as it has rows.

    Returns the writer of the stream: give it a checkpoint and a trigger, and start it. Rows are
    written at least once. Raises OptionError, StoreNotFound, JarNotUsable; for a URL also
    AccessDenied and the errors of a call to a server.
    """
    from commitlog.spark.sink import TopicWriter, parse_sink_options

    named = {"path": path} if topic is None else {"path": path, "topic": topic}
    return foreach(stream, TopicWriter(parse_sink_options(options | named), stream.schema))

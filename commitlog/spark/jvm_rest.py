"""Reads what the source in Java does not read of a task: the rest of it, from some row on.

Java reads good records only. At anything else it starts this process, which knows damage, holes,
loss and replaced stores, and has the words for them. A line of JSON on standard input says what to
read. Standard output gets a stream of Arrow batches, and then a line: {} or the error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from commitlog.columns.read_plan import ReadOptions, ReadPlan, Slice
from commitlog.errors import CommitLogError
from commitlog.spark.task_reading import Task, read_task
from commitlog.system.process_title import set_process_title


def main() -> None:
    """Reads what the one line of the input says."""
    set_process_title("task_rest")  # of no store yet
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the task ends it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody wants the rows any more
    question = json.loads(sys.stdin.buffer.readline())  # UTF-8, whatever text is here
    plan = replace(_plan(json.loads(question["plan"])), slices=tuple(Slice(*piece) for piece in question["slices"]))
    set_process_title("task_rest", plan.path)
    schema = to_arrow_schema(StructType.fromJson(json.loads(question["schema"])), timezone="UTC")
    outcome: dict[str, str] = {}
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        with pa.ipc.new_stream(out, schema) as stream:
            try:
                for batch in read_task(Task(plan), schema):
                    stream.write_batch(batch)
            except CommitLogError as error:
                outcome = {"error": type(error).__name__, "words": str(error)}
        out.write(json.dumps(outcome).encode())


def _plan(values: dict[str, Any]) -> ReadPlan:
    return ReadPlan(**values | {"options": ReadOptions(**values["options"])})


if __name__ == "__main__":
    main()

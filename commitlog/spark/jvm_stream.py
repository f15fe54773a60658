"""Plans one stream of the source in Java (LogStream.java), by the reader of the Python source.

So what a stream reads, its limits, its offsets and its errors have one home. A process plans one
stream only: the reader has a state, and may hold a name. All offsets are texts, as they stand in
the checkpoint: Spark compares them letter by letter.

    ask "open"           make the reader               → {}
    ask "limit"          messages a batch, at most     → {"rows": number or null}
    ask "initial"        where the query begins        → {"offset": …}
    ask "latest"         where the next batch ends     → {"latest": the store's end, "offset": …, or
                                                          "words": what an idle query looks at}
    ask "available_now"  where a query has to end      → {"target": the end of each queue}
    ask "tasks"          plan the batch [start, end)   → what ReadPlan.java and Slice.java take
    ask "follow"         plan one of Real-Time Mode    → the same, and what FollowingTask.java takes
    ask "merge"          where has that one ended?     → {"offset": …, "latest": the store's end}

A process that takes the place of one that died is opened with the target of the query, if it has
one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import LocalIndex
from commitlog.shm.layout import Lane
from commitlog.spark.checkpoint_offsets import parsed
from commitlog.spark.jvm_plans import tasks_answer
from commitlog.spark.real_time_plans import RealTimePlans, lane_words
from commitlog.spark.source import CommitLogDataSource, StreamReader
from commitlog.spark.task_reading import Task

Answer = dict[str, Any]


class PlannedStream:
    """The stream that this process plans."""

    def __init__(self, options: dict[str, str], question: dict[str, Any]) -> None:
        source = CommitLogDataSource({name.lower(): value for name, value in options.items()})
        schema = StructType.fromJson(json.loads(question["schema"]))
        self._reader = source.streamReader(schema, is_real_time="real_time" in question)
        self._real_time = RealTimePlans(self._reader)
        if (target := question.get("target")) is not None:
            self._reader.target = _queues(target)

    def answer(self, question: dict[str, Any]) -> Answer:
        """Answers any question but "open". Raises what the reader raises."""
        reader = self._reader
        match question["ask"]:
            case "limit":
                limit = reader.getDefaultReadLimit()
                return {"rows": limit.max_rows if isinstance(limit, ReadMaxRows) else None}
            case "initial":
                return {"offset": json.dumps(reader.initialOffset())}
            case "latest":
                return self._latest(question)
            case "available_now":
                reader.prepareForTriggerAvailableNow()
                return {"target": _json(reader.target or {})}
            case "tasks":
                return self._tasks(question)
            case "follow":
                return self._real_time.plan(question["start"], question["parallelism"])
            case ask:
                assert ask == "merge"
                return self._real_time.merge(question)

    def _latest(self, question: dict[str, Any]) -> Answer:
        start, rows = parsed(question["start"]), question.get("rows")
        end = self._reader.latestOffset(start, ReadAllAvailable() if rows is None else ReadMaxRows(rows))
        answer = {"latest": json.dumps(self._reader.reportLatestOffset())}
        return answer | ({"words": _flushed_words(self._reader)} if end == start else {"offset": json.dumps(end)})

    def _tasks(self, question: dict[str, Any]) -> Answer:
        made = self._reader.partitions(parsed(question["start"]), parsed(question["end"]))
        plans = [task.plan for task in made if isinstance(task, Task)]
        return tasks_answer(plans, replace(plans[0], slices=())) if plans else {"tasks": []}

    def stop(self) -> None:
        """Writes the position of the reader's name, and gives the name back."""
        self._reader.stop()


def _flushed_words(reader: StreamReader) -> Answer | None:
    """While these words stay as they are, there is nothing new. None if nobody runs the store."""
    return lane_words(reader.index, Lane.FLUSHED) if isinstance(reader.index, LocalIndex) else None


def _queues(target: dict[str, dict[str, int]]) -> dict[QueueKey, int]:
    return {(topic, int(lane)): end for topic, lanes in target.items() for lane, end in lanes.items()}


def _json(target: dict[QueueKey, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, lane), end in target.items():
        found.setdefault(topic, {})[str(lane)] = end
    return found

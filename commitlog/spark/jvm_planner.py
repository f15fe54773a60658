"""Plans reads for the source in Java (commitlog/spark/java), as a child of Spark's driver.

A question is a line of JSON on standard input, and its answer one on standard output. The process
ends with its input. All planning is that of the Python source; only the form of the answers is new.

    about "reading"  may the JVM read this?  → {"schema": …} or {"by_python": the reason}
    about "batch"    plan its tasks          → what ReadPlan.java and Slice.java take
    about "times"    where are they?         → {"store_id": …, "epoch": …, "ranges": by queue}
    about "topics"   which topics are there? → {"topics": their names}
    about "topic"    is this one there?      → what Catalog.java takes; {} if not
    about "stream"   all questions of a stream: see jvm_stream.py

A question has the options as Spark gives them. One about a reading also has the user's own schema,
if there is one, and one about a topic its name. An error of the project is {"error": its name,
"words": its text}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from commitlog.columns.arrow_columns import COLUMN_TYPES
from commitlog.columns.read_plan import DEFAULTS, ReadOptions
from commitlog.errors import CommitLogError, DataLoss, JarNotUsable, ReadingWarning
from commitlog.planning.option_checks import check_batch, check_read
from commitlog.planning.option_names import (
    SINK_SPELLING,
    SPELLING,
    check_direction,
    check_names,
    check_table,
    spelled,
)
from commitlog.planning.options import SourceOptions, parse_options, store_of
from commitlog.planning.resolving import Resolver
from commitlog.planning.store_index import LocalIndex
from commitlog.planning.topic_columns import shared_schema, typed_columns
from commitlog.reading.known_topics import known_topics
from commitlog.reading.view import is_rocketmq_root
from commitlog.remote.path_or_url import Place, newest_schemas, open_index
from commitlog.spark.jvm_plans import tasks_answer
from commitlog.spark.launching.java_sources import checksum
from commitlog.spark.message_layouts import spark_fields
from commitlog.system.process_title import set_process_title

if TYPE_CHECKING:
    from commitlog.spark.jvm_stream import PlannedStream

Question = dict[str, Any]
Answer = dict[str, Any]


def main() -> None:
    """Answers until the end of the input."""
    set_process_title("planner")  # of no store yet
    warnings.simplefilter("always", ReadingWarning)  # a process that lives long would say each but once
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, and the planner ends with it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sources = checksum()
    with _answers() as answers:
        for line in sys.stdin.buffer:  # UTF-8, whatever text is here
            question = json.loads(line)
            try:
                _check_jar(question, sources)
                _show_what_is_planned(question)
                answer = _ABOUT[question["about"]](question)
            except CommitLogError as error:
                answer = {"error": type(error).__name__, "words": str(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    for planned in _streams:
        planned.stop()


def _show_what_is_planned(question: Question) -> None:
    """Has `ps` show the store that this process was asked about last."""
    given = {name.lower(): value for name, value in question.get("options", {}).items()}
    if given.get("path"):
        set_process_title("planner", given["path"])


def _check_jar(question: Question, sources: str) -> None:
    """Raises JarNotUsable if the jar is of another version: its questions may mean other things."""
    if question.get("sources") != sources:
        raise JarNotUsable(
            f"the jar that Spark has is of another version of commitlog than {sys.executable} has: give Spark the one "
            "whose path `python -m commitlog.spark.launching.jvm_reader` prints"
        )


@contextmanager
def _answers() -> Iterator[TextIO]:
    """Standard output for answers alone: whatever else is printed goes to standard error."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


def reading(question: Question) -> Answer:
    """Whether the JVM may read this. Raises OptionError: the Python source then says it too."""
    options = _options(question)
    if reason := _why_by_python(options):
        return {"by_python": reason}
    values, given = options.read.values, question.get("schema")
    if given is not None:
        _check_given(given, options)
    elif values == "json":
        return {"by_python": "no schema"}  # where it is an error
    elif values == "columns":
        topic = shared_schema(options, newest_schemas(options.place))
        given = json.dumps(spark_fields(typed_columns(options, topic)))
    else:
        given = json.dumps(spark_fields(pa.schema([(name, COLUMN_TYPES[name]) for name in options.columns])))
    answer: Answer = {"schema": given}
    if values == "columns":
        answer["typed"] = True
    if values == "json":
        answer["json"] = _json(options.read)
    if options.read.ignore_corrupt:
        answer["whole"] = True  # each query leaves out the same rows
    return answer


def _json(options: ReadOptions) -> Answer:
    """What JsonValues.java takes."""
    from commitlog.columns.json_rows import MALFORMED  # with it comes Arrow's parser

    return {"mode": options.mode, "corrupt_column": options.corrupt_column, "malformed": MALFORMED}


def _check_given(given: str, options: SourceOptions) -> None:
    """Checks a user's own schema. Raises OptionError, NoSchema."""
    from pyspark.sql.types import StructType  # costs as much as the rest: most reads give no schema

    from commitlog.spark.columns import check_given, check_schema
    from commitlog.spark.typed_topics import check_json_schema, check_typed_schema

    schema = StructType.fromJson(json.loads(given))
    check_given(schema, options)
    match options.read.values:
        case "bytes":
            check_schema(schema)
        case "columns":
            check_typed_schema(schema, options)
        case "json":
            check_json_schema(schema, options)


def _given(question: Question) -> dict[str, str]:
    """The options of a question. One of None is not given."""
    return {name: value for name, value in question["options"].items() if value is not None}


def _options(question: Question) -> SourceOptions:
    """The checked options of a question. Raises OptionError."""
    given = _given(question)
    check_table(given)
    check_names(given, SPELLING)
    check_direction(given)
    options = parse_options(given)
    check_read(options)
    return options


_OBEYED_BY_JVM = ("values", "isolation", "fail_on_data_loss", "ignore_corrupt", "mode", "corrupt_column")
"""The options of a read that the source in Java obeys. A read with any other option is Python's."""


def _why_by_python(options: SourceOptions) -> str:
    """Why the JVM can't read this; "" if it can."""
    if options.by_python:
        return "option reader=python"
    if options.address is not None:
        return "the path is a URL"
    for name, value in asdict(options.read).items():
        if name not in _OBEYED_BY_JVM and value != getattr(DEFAULTS, name):
            return f"the source in Java does not know {name}={value}"
    return "a RocketMQ store root" if is_rocketmq_root(options.path) else ""


def batch(question: Question) -> Answer:
    """Plans the tasks of a batch. Raises what BatchReader.partitions raises."""
    options = _options(question)
    check_batch(options)
    index = LocalIndex(options.path, options.read.isolation)
    try:
        index.refresh()
        if index.one_log:
            raise DataLoss(f"{options.path} was a store of ours and is a RocketMQ store root now; load it anew")
        plans = Resolver(index, options).batch_plans()
        common = index.plan((), options.read)
    finally:
        index.close()
    return tasks_answer(plans, common) | ({"complete": True} if _is_complete(options.read) else {})


def _is_complete(options: ReadOptions) -> bool:
    """Whether each planned offset gives one row, or the read ends with an error."""
    is_one_row = options.values == "bytes" or (options.values == "json" and options.mode != "DROPMALFORMED")
    return is_one_row and options.fail_on_data_loss and not options.ignore_corrupt


def times(question: Question) -> Answer:
    """Queue offsets [first, behind) that have all messages of the wanted times (ms, both included).

    There is a pair for each of the question's queues [topic, lane]; `behind` is null for "all".
    Raises what looking at the store raises.
    """
    options = _options(question)
    with closing(LocalIndex(options.path, options.read.isolation)) as index:
        index.refresh()
        wanted = question["since"], question["until"]
        ranges = [index.stored_between((topic, lane), *wanted) for topic, lane in question["queues"]]
        return {"store_id": index.store_id, "epoch": index.epoch, "ranges": ranges}


def topics(question: Question) -> Answer:
    """The tables of a catalog: the topics of its store, with messages or a schema.

    Raises OptionError, and what looking at the store raises.
    """
    return {"topics": _known_topics(_place(question))}


def topic(question: Question) -> Answer:
    """How a topic of a catalog's store is read and written: all options.

    A typed topic is not written by Spark. The answer is empty if the topic has neither messages nor
    a schema.
    """
    place, name, given = _place(question), question["topic"], spelled(question["options"])
    if name not in _known_topics(place):
        return {}
    is_typed = bool(newest_schemas(place, (name,)))
    reading = given | {"subscribe": name}
    if is_typed:
        return {"read": {"values": "columns"} | reading}
    writing = {option: value for option, value in given.items() if option.lower() in SINK_SPELLING}
    return {"read": reading, "write": writing | {"topic": name}}


def _place(question: Question) -> Place:
    """The store of a catalog. Raises OptionError."""
    given = _given(question)
    check_names(given, SPELLING)
    path, address = store_of(spelled(given))
    return path if address is None else address


def _known_topics(place: Place) -> list[str]:
    with closing(open_index(place, "committed")) as index:
        index.refresh()
        return known_topics(index)


def stream(question: Question) -> Answer:
    """Answers a question about the stream that this process plans.

    The first one opens it. Raises what the reader of a stream raises.
    """
    from commitlog.spark.jvm_stream import PlannedStream  # costs as much as the rest: a batch needs none of it

    if question["ask"] != "open":
        return _streams[0].answer(question)
    _streams.append(PlannedStream(_given(question), question))
    return {}


_streams: list[PlannedStream] = []
_ABOUT: dict[str, Callable[[Question], Answer]] = {
    "reading": reading,
    "batch": batch,
    "times": times,
    "topics": topics,
    "topic": topic,
    "stream": stream,
}

if __name__ == "__main__":
    main()

"""A JVM without Spark that reads damaged stores (FuzzedReads.java), beside the Python source.

A query of Spark takes a tenth of a second, and a Python process that reads its rest half of one.
So the JVM reads by the same classes here, up to where it hands over. What Python would be asked to
read then is read in this process.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.columns.read_plan import ReadOptions, ReadPlan, Slice
from commitlog.errors import CommitLogError
from commitlog.spark.jvm_planner import batch, reading
from commitlog.spark.jvm_stream import PlannedStream
from commitlog.spark.launching.format_jar import compile_java
from commitlog.spark.launching.java import find_java
from commitlog.spark.launching.jvm_reader import jar_of_this_machine
from commitlog.spark.launching.spark_home import spark_home
from commitlog.spark.task_reading import Task, read_task
from tests.builders.hand_made import HandMadeStore
from tests.builders.random_damage import Damage, damage

Options = dict[str, str]
_OPENS = ("java.nio", "sun.nio.ch", "java.lang", "java.util")
_KINDS = ("flip", "cut", "zero", "splice", "insert", "remove", "lengthen", "garbage")
NUMBERS = (-(1 << 63), -1, 0, 1, 3, 8, 92, 201, 0x7FFF, 0x8000, 1 << 31, 1 << 32, (1 << 63) - 1)


class JavaReads:
    """The JVM. It ends with the block of `java_reads`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question. An exception that is no sign of damage is an AssertionError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM has ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        assert "broke" not in answer, answer["broke"]
        return answer


@contextmanager
def java_reads(directory: Path) -> Iterator[JavaReads]:
    """Starts the JVM, whose classes are put into `directory`."""
    java, home, jar = find_java(), spark_home(), jar_of_this_machine()
    compile_java(java.runtime, home, [Path(__file__).with_name("FuzzedReads.java")], directory, jars=[jar])
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENS]
    opens += ["-Dio.netty.noUnsafe=false"]  # Spark says this to its own; from Java 24 on it is not the default
    command = [str(java.runtime / "bin/java"), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens]
    with subprocess.Popen(
        [*command, "-cp", f"{directory}:{jar}:{home}/jars/*", "commitlog.spark.FuzzedReads"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield JavaReads(process)


@dataclass(frozen=True)
class Damaged:
    """A kind of store to damage, and how it is read."""

    store: HandMadeStore
    options: Options

    @property
    def lane(self) -> Path:
        return self.store.path / "lanes" / "0"


class Undamaged:
    """The files of a lane, as they were before any damage."""

    def __init__(self, lane: Path) -> None:
        self._files = {path: path.read_bytes() for path in lane.rglob("0*") if path.is_file()}
        self._stamps = {path: _stamp(path) for path in self._files}

    def restore(self) -> None:
        SEGMENTS.clear()
        for path, content in self._files.items():
            if _stamp(path) != self._stamps[path]:
                path.write_bytes(content)
                self._stamps[path] = _stamp(path)


def _stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_ino


def random_damages(chance: random.Random) -> list[Damage]:
    return [
        (chance.choice(_KINDS), chance.random(), chance.random(), chance.randbytes(chance.randint(1, 64)))
        for _ in range(chance.randint(1, 3))
    ]


def put_wrong_numbers(damaged: Damaged, chance: random.Random) -> None:
    """Replaces numbers of one or two records: of their heads, or of Arrow in their values."""
    lane = damaged.store.lane(0)
    for _ in range(chance.randint(1, 2)):
        record = chance.choice(lane.records)
        start = record.physical_offset // damaged.store.segment_bytes * damaged.store.segment_bytes
        path = damaged.store.directory.lane_directory(0).segment_path(start)
        data = bytearray(path.read_bytes())
        order, size = chance.choice(((">", 4), (">", 2), (">", 8), ("<", 8), ("<", 4)))
        at = record.physical_offset - start + chance.randrange(max(record.total_size - size, 1))
        number = chance.choice(NUMBERS) & ((1 << 8 * size) - 1)
        kind = {2: "H", 4: "I", 8: "Q"}[size]
        if at + size <= len(data):
            struct.pack_into(order + kind, data, at, number)
            path.write_bytes(data)


def harm(damaged: Damaged, chance: random.Random) -> str:
    """Damages the store at random. Returns how."""
    if chance.random() < 0.5:
        put_wrong_numbers(damaged, chance)
        return "wrong numbers"
    which = chance.choice(("commitlog", "commitlog", "consumequeue"))
    damage(damaged.lane, random_damages(chance), which)
    return which


@dataclass
class Counts:
    """What cases ended as."""

    whole: int = 0
    """The JVM has read all, and so has Python."""
    handed_over: int = 0
    errors: int = 0
    read_apart: int = 0
    """Python finds more if it reads all at once."""
    refused: int = 0
    """The plan was an error: neither reads."""
    rows: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in vars(self).items())


def plan_of(values: str, slices: list[list[Any]]) -> ReadPlan:
    fields = json.loads(values)
    plan = ReadPlan(**fields | {"options": ReadOptions(**fields["options"])})
    return replace(plan, slices=tuple(Slice(*piece) for piece in slices))


def rows_by_python(plan: ReadPlan, schema: pa.Schema) -> tuple[str, str]:
    """The rows as a stream of Arrow in base64, and the error that ended them, or ""."""
    out, said = pa.BufferOutputStream(), ""
    with pa.ipc.new_stream(out, schema) as stream:
        try:
            for made in read_task(Task(plan), schema):
                stream.write_batch(made)
        except CommitLogError as error:
            said = f"{type(error).__name__}: {error}"
    return base64.b64encode(out.getvalue()).decode(), said


_OF_SLICE = ("topic", "lane", "start", "end", "walk_from", "limit")


def check_read(java: JavaReads, damaged: Damaged, counts: Counts, _: random.Random) -> None:
    """Java, and Python for what Java leaves, give the rows and the error of the Python source."""
    try:
        question = {"options": damaged.options | {"path": str(damaged.store.path)}}
        schema, plan = reading(question)["schema"], batch(question)
    except CommitLogError:
        counts.refused += 1
        return
    arrow = to_arrow_schema(StructType.fromJson(json.loads(schema)), timezone="UTC")
    tasks = [[[piece[name] for name in _OF_SLICE] for piece in task] for task in plan["tasks"]]
    by_python = [rows_by_python(plan_of(plan["for_python"], slices), arrow) for slices in tasks]
    parts = java.ask({"plan": plan, "schema": schema, "whole": [whole for whole, _ in by_python]})["parts"]
    for number, (part, slices, (whole, error)) in enumerate(zip(parts, tasks, by_python, strict=True)):
        said, difference = "", "" if "left" in part else _difference(part)
        if "left" in part:
            rest, said = rows_by_python(plan_of(plan["for_python"], part["left"]), arrow)
            difference = difference_of(java, number, schema, whole, rest)
        if difference := difference or ("" if said == error else f"{said}; not {error}"):
            # Python looks at CRCs only of records that it reads together with a damaged one.
            assert "left" in part, difference
            assert bool(said) == bool(error), difference
            done, said = rows_by_python(plan_of(plan["for_python"], done_of(slices, part["left"])), arrow)
            difference = said or difference_of(java, number, schema, done)
            assert not difference, difference
            counts.read_apart += 1
        counts.rows += part["rows"]
        counts.errors += bool(error)
        counts.handed_over += "left" in part
        counts.whole += "left" not in part


def done_of(slices: list[list[Any]], left: list[list[Any]]) -> list[list[Any]]:
    """What of the slices is not left."""
    begins = {(topic, lane, end): start for topic, lane, start, end, *_ in left}
    done = []
    for topic, lane, start, end, *walk in slices:
        upto = begins.get((topic, lane, end), end)
        if start < upto:
            done.append([topic, lane, start, upto, *walk])
    return done


def difference_of(java: JavaReads, part: int, schema: str, whole: str, rest: str = "") -> str:
    """What differs between `whole` and the rows of a part and then `rest`; "" if nothing does."""
    found = java.ask({"part": part, "schema": schema, "whole": whole, "rest": rest})
    return _difference(found)


def _difference(found: dict[str, Any]) -> str:
    return "" if found["same"] == found["ours"] == found["theirs"] else str(found)


@dataclass(frozen=True)
class Followed(Damaged):
    """A store whose second half came when a batch of Real-Time Mode was planned."""

    schema: str
    plan: dict[str, Any]


def followed(store: HandMadeStore, options: Options) -> Followed:
    """Plans the batch."""
    lane = store.lane(0)
    lane.publish(flushed=lane.records[len(lane.records) // 2].physical_offset)
    of_store = options | {"path": str(store.path)}
    schema = reading({"options": of_store})["schema"]
    stream = PlannedStream(of_store | {"startingOffsets": "earliest"}, {"schema": schema, "real_time": True})
    begin = stream.answer({"ask": "initial"})["offset"]
    plan = stream.answer({"ask": "follow", "start": begin, "parallelism": 1})
    lane.dispatch()
    lane.publish()
    return Followed(store, options, schema, plan)


def check_follow(java: JavaReads, damaged: Damaged, counts: Counts, chance: random.Random) -> None:
    """The rows that come while a lane grows are the Python source's, up to where they end."""
    assert isinstance(damaged, Followed)
    lane = damaged.store.lane(0)
    growing = Growing(damaged.schema, damaged.plan, lane.end, lane.next_offsets["orders"])
    check_growing(java, growing, growing.by_java(java, chance), counts)


@dataclass(frozen=True)
class Growing:
    """A lane that has grown since its batch was planned: to `end`, and to `of_all` messages."""

    schema: str
    plan: dict[str, Any]
    end: int
    of_all: int

    @property
    def begin(self) -> int:
        return int(self.plan["lanes"][0][0]["from"])

    def by_java(self, java: JavaReads, chance: random.Random) -> dict[str, Any]:
        """What Java finds, in some steps."""
        steps = sorted(chance.randrange(self.begin, self.end) for _ in range(chance.randint(0, 4)))
        (part,) = java.ask({"plan": self.plan, "schema": self.schema, "steps": [*steps, self.end]})["parts"]
        return dict(part)

    def by_python(self, slices: list[list[Any]]) -> tuple[str, str]:
        arrow = to_arrow_schema(StructType.fromJson(json.loads(self.schema)), timezone="UTC")
        return rows_by_python(plan_of(self.plan["for_python"], slices), arrow)


def check_growing(java: JavaReads, lane: Growing, part: dict[str, Any], counts: Counts) -> None:
    """Java has found what Python finds in the files, and ends early for a reason only."""

    def by_python(upto: int) -> tuple[str, str]:
        return lane.by_python([["orders", 0, first, upto, lane.begin, lane.end]])

    first, reached = lane.plan["lanes"][0][0]["next"]["orders"], part["reached"]["orders"]
    found, said = by_python(reached)
    if said or difference_of(java, 0, lane.schema, found):
        # Python looks at CRCs only of records that it reads together with a damaged one.
        alone = [["orders", 0, offset, offset + 1, -1, lane.end] for offset in range(first, reached)]
        found, said = lane.by_python(alone)
        difference = said or difference_of(java, 0, lane.schema, found)
        assert not difference, difference
        counts.read_apart += 1
    error = by_python(lane.of_all)[1]
    assert reached == lane.of_all or "reason" in part or error, part  # Python may walk past another topic's record
    counts.rows += part["rows"]
    counts.errors += bool(error)
    counts.handed_over += "reason" in part
    counts.whole += reached == lane.of_all


def run(
    java: JavaReads,
    kinds: list[Damaged],
    check: Callable[[JavaReads, Damaged, Counts, random.Random], None],
    cases: int,
    seed: int,
) -> Counts:
    """Tries so many cases. An AssertionError says which one it was."""
    counts = Counts()
    undamaged = {kind.lane: Undamaged(kind.lane) for kind in kinds}
    for case in range(cases):
        chance = random.Random(f"{seed} {case}")
        kind = chance.choice(kinds)
        how = harm(kind, chance)
        try:
            check(java, kind, counts, chance)
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {case}, {how}, {kind.options}: {error}") from error
        finally:
            undamaged[kind.lane].restore()
    return counts

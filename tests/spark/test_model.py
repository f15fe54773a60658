"""Random options are compared with a plain model of the same store.

Batches, and streams with restarts, go through planning and decoding.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from commitlog.columns.arrow_columns import KAFKA_COLUMNS
from commitlog.errors import CommitLogError
from commitlog.spark.columns import ALL_COLUMNS
from commitlog.spark.source import CommitLogDataSource, StreamReader
from commitlog.spark.task_reading import RemoteTask, Task
from tests.builders.hand_made import BEGIN_MS, HandMadeStore
from tests.nightly import by_url_nightly, with_nightly
from tests.served import place_of
from tests.spark.model import Model, expected_row, plain_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("a", "ab", "b")
LANES = (0, 1, 7, 10)
ROWS = 60
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=2_000)
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("look_each_time", "both_ways")


@dataclass
class Made:
    store: HandMadeStore
    model: Model


_made: dict[str, Made] = {}
"""Not handed to the tests themselves: hypothesis would print all of it."""


@pytest.fixture(scope="module", autouse=True)
def _stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes three stores for the tests.

    One is whole. Of one, retention has removed a part. In one, some messages are not dispatched,
    and some are not flushed.
    """
    for kind in ("whole", "cut", "unfinished"):
        _made[kind] = make_store(tmp_path_factory.mktemp(kind) / "store", kind)
    yield
    _made.clear()


def make_store(path: Path, kind: str) -> Made:
    rng, store = random.Random(kind), HandMadeStore(path, 1 << 12)
    limits, firsts = {}, {}
    for number in LANES:
        lane = store.lane(number)
        for row in range(ROWS):
            topic = rng.choice(TOPICS if number else TOPICS[:2])
            lane.append(topic, rng.randbytes(rng.randrange(150)), key=rng.choice([None, f"k{row}"]), tags="t")
        unfinished = kind == "unfinished" and number != 7
        last = lane.records[-8 if unfinished else -1]
        limits[number] = last.physical_offset + last.total_size
        firsts[number] = (number % 3) << 12 if kind == "cut" else 0
        lane.dispatch(ROWS // 2 if unfinished else None)
        lane.publish(flushed=limits[number])
        if firsts[number]:
            lane.forget_before(firsts[number] >> 12)
    return Made(store, Model(store, limits, firsts))


# ---- batches -----------------------------------------------------------------------------------

times = st.integers(BEGIN_MS - 2000, BEGIN_MS + 1000 * (ROWS + 2))
starts = st.one_of(
    st.just("earliest"),
    st.integers(0, 40).map(lambda count: f"last {count}"),
    times.map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC).isoformat()),
    st.sampled_from(["20 days ago", "99999 days ago"]),
)


Lanes = dict[str, tuple[int, ...]]
"""topic → lanes."""


SOME = st.sets(st.sampled_from([str(lane) for lane in (*LANES, 3)]), min_size=1)


@st.composite
def by_queue(draw: st.DrawFn, lanes: Lanes, numbers: st.SearchStrategy[int]) -> str:
    """Kafka's JSON for all of these lanes, or, less often, for some and such as are not there."""
    if draw(st.integers(0, 2)):
        named = {topic: [str(lane) for lane in found] for topic, found in lanes.items()}
    else:
        named = {topic: sorted(draw(SOME)) for topic in draw(st.sets(st.sampled_from(sorted(lanes)), min_size=1))}
    return json.dumps({topic: {lane: draw(numbers) for lane in found} for topic, found in sorted(named.items())})


@st.composite
def subscriptions(draw: st.DrawFn) -> tuple[dict[str, str], Lanes]:
    """An option, and the lanes that are there of its topics."""
    present = {topic: LANES if topic != "b" else LANES[1:] for topic in (*TOPICS, "missing")}
    kind = draw(st.sampled_from(["subscribe", "subscribePattern", "assign"]))
    if kind == "subscribe":
        rare = st.sampled_from([*TOPICS, *TOPICS, *TOPICS, "missing"])
        topics = sorted(set(draw(st.lists(rare, min_size=1, max_size=3))))
        return {"subscribe": ",".join(topics)}, {topic: present[topic] for topic in topics}
    if kind == "subscribePattern":
        pattern, topics = draw(st.sampled_from([("a.*", ["a", "ab"]), ("b", ["b"]), ("[ab]+", list(TOPICS))]))
        return {"subscribePattern": pattern}, {topic: present[topic] for topic in topics}
    lanes = st.lists(st.sampled_from([*LANES, *LANES, 3]), min_size=1, max_size=3, unique=True)
    chosen = draw(st.dictionaries(st.sampled_from(TOPICS), lanes, min_size=1))
    return {"assign": json.dumps(chosen)}, {topic: tuple(found) for topic, found in chosen.items()}


@st.composite
def batch_options(draw: st.DrawFn) -> dict[str, str]:
    options, lanes = draw(subscriptions())
    few = st.integers(0, 9) | st.integers(0, 25)
    possible: dict[str, st.SearchStrategy[str]] = {
        "startingOffsets": by_queue(lanes, few | st.just(-2)) if draw(st.booleans()) else starts,
        "startingTimestamp": times.map(str),
        "startingOffsetsByTimestamp": by_queue(lanes, times),
        "endingOffsets": st.just("latest") | by_queue(lanes, few | st.just(-1)),
        "endingTimestamp": times.map(str),
        "endingOffsetsByTimestamp": by_queue(lanes, times),
        "startingOffsetsByTimestampStrategy": st.sampled_from(["error", "latest"]),
        "failOnDataLoss": st.sampled_from(["true", "false"]),
        "minPartitions": st.integers(1, 40).map(str),
        "maxRecordsPerPartition": st.integers(1, 40).map(str),
        "isolation": st.sampled_from(["flushed", "committed"]),
        "columns": st.lists(st.sampled_from(list(ALL_COLUMNS)), min_size=1, unique=True).map(",".join),
        "includeHeaders": st.sampled_from(["true", "false"]),
    }
    wanted = draw(st.lists(st.sampled_from([*possible, "startingOffsets", "startingOffsets"]), max_size=6, unique=True))
    options |= {name: draw(possible[name]) for name in wanted}
    assume(options.get("includeHeaders") != "true" or "headers" in options.get("columns", "headers"))
    return options


def source(path: Path, options: dict[str, str]) -> CommitLogDataSource:
    return CommitLogDataSource({"path": place_of(path)} | {name.lower(): value for name, value in options.items()})


def check_batch(kind: str, options: dict[str, str]) -> None:
    made = _made[kind]
    wanted = made.model.rows(options)
    of = source(made.store.path, options)
    reader = of.reader(of.schema())
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            reader.partitions()
        return
    tasks = reader.partitions()
    found = []
    for task in tasks:
        rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
        assert (
            len(rows) == sum(piece.rows for piece in task.plan.slices)
            if isinstance(task, Task | RemoteTask)
            else not rows
        )
        assert len(rows) <= int(options.get("maxRecordsPerPartition", 1 << 30))
        found += rows
    assert len(tasks) >= min(int(options.get("minPartitions", 1)), len(wanted))
    default = [*KAFKA_COLUMNS, "headers"] if options.get("includeHeaders") == "true" else list(KAFKA_COLUMNS)
    names = options["columns"].split(",") if "columns" in options else default
    expected = [{name: expected_row(record)[name] for name in names} for record in wanted]
    assert [list(row) for row in found] == [names] * len(found)
    assert sorted(map(plain_row, found), key=repr) == sorted(expected, key=repr)


kinds = st.sampled_from(["whole", "cut", "unfinished"])


@FEW
@given(kind=kinds, options=batch_options())
def test_batches(kind: str, options: dict[str, str]) -> None:
    """Rows, columns and tasks; or the error that the model expects."""
    check_batch(kind, options)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@MANY
@given(kind=kinds, options=batch_options())
def test_many_batches(kind: str, options: dict[str, str]) -> None:
    check_batch(kind, options)


@pytest.mark.nightly
@by_url_nightly
@pytest.mark.parametrize("count", with_nightly([6], [60]))
def test_batches_in_a_session(spark: SparkSession, count: int) -> None:
    """Some of them through Spark itself."""
    cases: list[tuple[str, dict[str, str]]] = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(kind=kinds, options=batch_options())
    def collect(kind: str, options: dict[str, str]) -> None:
        cases.append((kind, options))

    collect()
    assert len(cases) == count
    for kind, options in cases:
        made = _made[kind]
        wanted = made.model.rows(options)
        frame = spark.read.format("commitlog").options(**options)
        if isinstance(wanted, type):
            with pytest.raises(Exception, match=wanted.__name__):
                frame.load(place_of(made.store.path)).collect()
            continue
        names = [name for name in options.get("columns", "topic,partition,offset,value").split(",") if name in SIMPLE]
        found = [row.asDict() for row in frame.load(place_of(made.store.path)).select(*names).collect()]
        expected = [{name: expected_row(record)[name] for name in names} for record in wanted]
        assert sorted(map(repr, map(_as_bytes, found))) == sorted(map(repr, expected)), options


SIMPLE = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestampType",
    "tags",
    "physicalOffset",
    "messageId",
    "size",
)


def _as_bytes(row: Json) -> Json:
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}


# ---- streams -----------------------------------------------------------------------------------


@st.composite
def stream_cases(draw: st.DrawFn) -> tuple[dict[str, str], list[str | int]]:
    """Options and a list of events.

    An event is a message appended to a lane (its number), `batch`, `crash` (before the batch was
    done) or `restart` (after it).
    """
    options = draw(
        st.sampled_from([{"subscribe": "a,ab"}, {"subscribePattern": "a.*"}, {"assign": '{"a": [0, 2], "ab": [2]}'}])
    )
    starting = st.sampled_from(["earliest", "latest", "last 3", '{"a": {"0": 2, "1": -1}}', '{"ab": {"2": -2}}'])
    possible = {"startingOffsets": starting, "maxOffsetsPerTrigger": st.integers(1, 30).map(str)}
    possible["maxRecordsPerPartition"] = possible["minPartitions"] = st.integers(1, 9).map(str)
    wanted = draw(st.lists(st.sampled_from(list(possible)), max_size=4, unique=True))
    options = options | {name: draw(possible[name]) for name in wanted}
    step = st.sampled_from(["batch", "batch", "crash", "restart"]) | st.sampled_from([0, 1, 2, 10])
    return options, draw(st.lists(step, min_size=2, max_size=14))


class Query:
    """A query as Spark runs it: offsets are logged before a batch; it counts once it is done."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        self.path, self.options = path, options
        self.log: list[Json] = []
        self.done = 0
        self.rows: dict[int, list[tuple[str, int, int, bytes]]] = {}
        self.reader = self._new()

    def _new(self) -> StreamReader:
        of = source(self.path, self.options | {"columns": "topic,partition,offset,value"})
        return of.streamReader(of.schema())

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self._new()
        if self.done < len(self.log):  # the logged batch is run again, before anything else
            self._run()

    def batch(self, *, crash: bool = False) -> bool:
        """Plans a batch and runs it, unless it dies before. False if there was nothing to read."""
        start = self.log[-1] if self.log else self.reader.initialOffset()
        most = self.options.get("maxOffsetsPerTrigger")
        limit: ReadLimit = ReadMaxRows(int(most)) if most else ReadAllAvailable()
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        if json.dumps(end) == json.dumps(start) and self.log:
            return False
        self.log.append(end)
        if not crash:
            self._run()
        return True

    def _run(self) -> None:
        start = self.log[self.done - 1] if self.done else self.reader.initialOffset()
        end = self.log[self.done]
        tasks = self.reader.partitions(start, end)
        found = [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]
        self.rows[self.done] = [(r["topic"], r["partition"], r["offset"], r["value"]) for r in found]
        self.done += 1


def check_stream(options: dict[str, str], steps: list[str | int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = HandMadeStore(Path(directory, "store"), 1 << 12)
        for lane in (0, 2):
            for row in range(6):
                store.lane(lane).append("a" if row % 2 else "ab", b"before %d" % row)
        store.publish()
        query = Query(store.path, options)
        begins: dict[tuple[str, int], int] = {}
        for step in [*steps, "restart", "batch"]:
            if isinstance(step, int):
                for topic in ("a", "b", "ab", "a"):
                    store.lane(step).append(topic, b"%d" % len(store.lane(step).records))
                store.publish()
                continue
            if step != "restart" and not query.log:
                begins = first_start(store, options)
            if step == "restart" or (query.batch(crash=step == "crash") and step == "crash"):
                query.restart()
        while query.batch():
            pass
        query.reader.stop()
        model = Model(store, {n: lane.end for n, lane in store.lanes.items()}, dict.fromkeys(store.lanes, 0))
        names = options | {"startingOffsets": "earliest"}
        wanted = []
        for key in queues_of(model, names):
            begin = begins.get(key, 0)
            wanted += [(*key, r.queue_offset, r.body) for r in model.queues[key].records[begin:]]
        assert sorted(row for rows in query.rows.values() for row in rows) == sorted(wanted)
        shutil.rmtree(store.path)


def queues_of(model: Model, options: dict[str, str]) -> list[tuple[str, int]]:
    """What a stream reads; topics and lanes may be missing yet."""
    if "assign" in options:
        lanes = json.loads(options["assign"])
        return [(topic, lane) for topic, lane in model.queues if lane in lanes.get(topic, ())]
    return [key for key in model.queues if key[0] in ("a", "ab")]


def first_start(store: HandMadeStore, options: dict[str, str]) -> dict[tuple[str, int], int]:
    """Where the queues begin that are there when the query is started for the first time."""
    model = Model(store, {n: lane.end for n, lane in store.lanes.items()}, dict.fromkeys(store.lanes, 0))
    starting = options.get("startingOffsets", "latest")
    if starting.startswith("{"):  # a stream begins at earliest where JSON says nothing, as Kafka's
        starting = json.dumps({"a": {}, "ab": {}} | json.loads(starting))
    chosen = options | {"startingOffsets": starting}
    return {key: model.begin(key, model.queues[key], chosen, "latest") for key in queues_of(model, options)}


@by_url_nightly
@settings(FEW, max_examples=20)
@given(stream_cases())
def test_streams(case: tuple[dict[str, str], list[str | int]]) -> None:
    """Every row comes once, from the first start on.

    This holds whatever appears meanwhile and wherever the query dies.
    """
    check_stream(*case)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@MANY
@given(stream_cases())
def test_many_streams(case: tuple[dict[str, str], list[str | int]]) -> None:
    check_stream(*case)


@pytest.mark.nightly
@pytest.mark.parametrize("both_ways", ["path"], indirect=True)  # nothing is read
def test_errors_of_the_model_happen() -> None:
    """The model's errors are among what is drawn: else the test would prove less than it says."""
    met: set[object] = set()

    @settings(max_examples=600, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(options=batch_options())
    def meet(options: dict[str, str]) -> None:
        wanted = _made["cut"].model.rows(options)
        met.add(wanted if isinstance(wanted, type) else bool(wanted))

    meet()
    assert {getattr(kind, "__name__", kind) for kind in met} == {
        "UnknownTopic",
        "OptionError",
        "OffsetOutOfRange",
        "DataLoss",
        True,
        False,
    }
    assert all(issubclass(kind, CommitLogError) for kind in met if isinstance(kind, type))

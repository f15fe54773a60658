"""The metrics of a store: all that its statistics know, in the formats of Prometheus."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

import commitlog
from commitlog.client.statistics import (
    RETENTION_WORDS,
    LaneStatistics,
    RetentionStatistics,
    StageStatistics,
    StoreStatistics,
)
from commitlog.disk.forwarder_files import ForwarderStatistics
from commitlog.disk.replica_files import ReplicaState
from commitlog.disk.server_files import ClientTraffic, ServerStatistics
from commitlog.errors import StoreNotFound
from commitlog.reading.reader_states import ReaderState
from commitlog.shm.counters import Histogram, record_duration
from commitlog.shm.layout import HISTOGRAM_BUCKETS, STAGES
from commitlog.watching.exposition import StoreCollector
from commitlog.watching.metric import durations
from commitlog.watching.metrics import METRICS
from commitlog.watching.snapshot import ProcessUsage, Space, StoreSnapshot, StoreWatch, TopicCount
from tests.builders.hand_made import HandMadeStore
from tests.builders.killed import kill_store
from tests.builders.scrape import SMALL, full_scrape, halted, read_prometheus, scrape, scraping
from tests.crash.scene import pid_of
from tests.fake_clock import SetClock
from tests.waiting import wait_until

NOT_SHOWN = {
    "StoreStatistics.path": "it is the label `store`, by the name that the user gave",
    "StoreStatistics.backup": "a start ends it; `commitlog stat` says it",
    "Space.shared_memory": "a path; `commitlog health` says it",
    "StoreStatistics.replica_of": "a text; `commitlog stat` says it",
    "StoreStatistics.replica_complete": "it changes once, and `commitlog promote` says it",
    "StoreStatistics.replica_waits_for": "a text; `commitlog stat` says it",
    "StoreStatistics.superseded_by": "the same",
    "StoreStatistics.throughput": "Prometheus makes rates itself, of commitlog_lane_messages_total",
    "StageStatistics.p50_us": "Prometheus makes it of the histogram",
    "StageStatistics.p99_us": "the same",
    "StoreSnapshot.foreign_owner": "a reason of health, `unreadable`",
    "StoreSnapshot.taken_ns": "Prometheus has a time of its own for each scrape",
    "ReplicaState.sent_bytes_per_second": "Prometheus makes rates itself, of commitlog_replica_sent_bytes_total",
    "ReaderState.host": "it changes with each client; `commitlog readers` says it",
    "ReplicaState.kind": "its name says it",
    "ReplicaState.store_id": "it is this store's",
    "ReplicaState.address": "it changes with each connection",
    "ReplicaState.seen_ms": "while it is connected it says something all the time",
    "ReplicaState.refusal": "a text; commitlog_replica_connected is 0 then",
    "ServerStatistics.pid": "the label `server` says which one it is",
    "ForwarderStatistics.pid": "the label `forwarder` says which one it is",
    "ForwarderStatistics.messages_per_second": "Prometheus makes rates itself, of commitlog_forwarder_messages_total",
    "ForwarderStatistics.last_error": "a text is no sample; commitlog_forwarder_errors_total counts them",
    "ForwarderStatistics.updated_ms": "a forwarder that has ended has the state stopped",
}
"""Fields without a metric, and why."""

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
KINDS = ("topic", "lane", "stage", "reader")
"""The labels that say whose a sample is. One without them is the store's."""


def values_of(snapshot: StoreSnapshot) -> list[Any]:
    return [(metric.name, *sample) for metric in METRICS for sample in metric.samples(snapshot)]


def example() -> StoreSnapshot:
    """A snapshot of a store with a pool, in which nothing is empty."""
    put_times = {str(number): number for number in range(13)}
    lane = LaneStatistics(0, 1, 9, 8, 7, 6, 4711, faults={"flusher": 28}, put_times=put_times, flushed_ms_ago=5.0)
    stage = StageStatistics("flusher", 4712, 1, 1, 1, 1, 1, 1, 5.0, 1.0, 2.0, started_ms=1)
    retention = RetentionStatistics(1, 1, 1, 50.0, (next(iter(RETENTION_WORDS.values())),))
    facts = StoreStatistics(
        "/s",
        "id",
        True,
        False,
        1,
        1 << 16,
        (lane,),
        (stage,),
        (),
        retention,
        supervisor_silent_ms=5.0,
        replica_of="h:1",
        replica_behind_ms=5,
    )
    reader = ReaderState("billing", True, "python", 5, {"t": {0: 1}}, {"t": {0: 1}})
    return StoreSnapshot(
        taken_ns=1,
        time_ms=1,
        statistics=facts,
        topics=(TopicCount("t", 0, 1, 2),),
        readers=(reader,),
        space=Space(1, 1, 1, 1, 1),
        durations={"flusher": Histogram((1,) * HISTOGRAM_BUCKETS)},
        blocked_ms={0: 1.0},
        unflushed_ms={0: 1.0},
        undispatched_ms={0: 1.0},
        ahead_ms={0: 1.0},
        damaged_ranges={0: 1},
        damaged_files=("1.json: not a schema of ours",),
        backed_up_ms=0,
        lost_lanes=(1,),
        usage={"flusher": ProcessUsage(1.0, 1)},
        servers=(ServerStatistics("commitlog://h:1/s", 7, {"billing": ClientTraffic(1, 1, 1, 1, 1, 1, 1)}),),
        replicas=(ReplicaState("standby", "replica", "id", "h:1", True, 1, 1, 1.0, {0: 1}, [0], 1, 1, 1, "no"),),
        forwarders=(ForwarderStatistics("kafka", "kafka://h:1", 7, "waiting", 1, 1, 1.0, 1, 1, "e", 1, 1, 1, 1),),
    )


def other(value: object) -> object:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 0 if value else 77
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, Histogram):
        return Histogram((2,) * HISTOGRAM_BUCKETS)
    if isinstance(value, dict):
        return {
            key: other(inner) for key, inner in value.items() if not isinstance(inner, ProcessUsage | ClientTraffic)
        }
    return ()


def with_part(snapshot: StoreSnapshot, part: object, changed: Any) -> StoreSnapshot:
    """The snapshot with another lane, stage, retention, … in the place of this one."""
    facts = snapshot.statistics
    if part is snapshot:
        return changed  # type: ignore[no-any-return]
    if part is facts:
        return replace(snapshot, statistics=changed)
    places = {"lanes": (changed,), "stages": (changed,), "retention": changed}
    for name, value in places.items():
        if getattr(facts, name) in (part, (part,)):
            return replace(snapshot, statistics=replace(facts, **{name: value}))
    if part is snapshot.space:
        return replace(snapshot, space=changed)
    if part is snapshot.forwarders[0]:
        return replace(snapshot, forwarders=(changed,))
    if part is snapshot.usage["flusher"]:
        return replace(snapshot, usage={"flusher": changed})
    (server,) = snapshot.servers
    if part is snapshot.replicas[0]:
        return replace(snapshot, replicas=(changed,))
    if part is server:
        return replace(snapshot, servers=(changed,))
    if part is server.clients["billing"]:
        return replace(snapshot, servers=(replace(server, clients={"billing": changed}),))
    return replace(snapshot, topics=(changed,)) if part is snapshot.topics[0] else replace(snapshot, readers=(changed,))


def parts_of(snapshot: StoreSnapshot) -> list[Any]:
    """The snapshot and all the dataclasses in it."""
    facts = snapshot.statistics
    inner = [
        *facts.lanes,
        *facts.stages,
        facts.retention,
        *snapshot.usage.values(),
        *snapshot.topics,
        *snapshot.readers,
        *snapshot.servers,
        *snapshot.forwarders,
        *snapshot.servers[0].clients.values(),
        *snapshot.replicas,
    ]
    return [snapshot, facts, snapshot.space, *inner]


def test_nothing_that_the_statistics_know_is_forgotten() -> None:
    """Each field that changes changes a metric, but for those that have a reason not to."""
    running = example()
    dead = replace(running, statistics=replace(running.statistics, running=False))
    known, shown = set(), set()
    for snapshot in (running, dead):
        before = values_of(snapshot)
        for part in parts_of(snapshot):
            for field in dataclasses.fields(part):
                value = getattr(part, field.name)
                if dataclasses.is_dataclass(value) and not isinstance(value, Histogram):
                    continue  # a part of its own
                name = f"{type(part).__name__}.{field.name}"
                known.add(name)
                if values_of(with_part(snapshot, part, replace(part, **{field.name: other(value)}))) != before:
                    shown.add(name)
    assert known - shown == set(NOT_SHOWN)


def test_names_are_those_that_prometheus_wants() -> None:
    """Base units at the end, counters in `_total`, no name twice, one sentence each."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("commitlog_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_info") == (metric.kind == "info")
        assert not metric.family.endswith(("_ms", "_ns", "_us", "_percent"))
        assert "\n" not in metric.meaning
        assert not metric.meaning.endswith(".")


def test_every_metric_is_in_a_scrape(tmp_path: Path) -> None:
    """Of a store whose stages hang and whose disk is full; with its labels, type and unit."""
    found = full_scrape(tmp_path)
    families = {family.name: family for family in found.families}
    assert set(families) == {metric.family for metric in METRICS}
    for metric in METRICS:
        family = families[metric.family]
        assert (family.type, family.unit, family.documentation) == (metric.kind, metric.unit, metric.meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {"store", *metric.labels}
    assert found.value("commitlog_lane_fault") == 1
    assert {sample.labels["error"] for sample in found.samples if sample.name == "commitlog_lane_fault"} == {"ENOSPC"}
    assert min(found.values("commitlog_stage_heartbeat_age_seconds")) > 3000
    assert found.value("commitlog_health_reasons", code="stage-silent") == len(STAGES)


def test_the_values_are_those_of_the_store(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        for topic in ("apples", "pears", "apples"):
            producer.send(topic, bytes(100))
        producer.flush(timeout=60)
        with commitlog.Reader(store.path, topic="apples", name="billing") as reader:
            reader.commit(next(iter(reader)))
        with halted(store.path), scraping(store.path) as collector, StoreWatch(store.path) as watch:
            found, facts = scrape(collector), watch.snapshot().statistics
            path = str(store.path)
    (lane,) = facts.lanes
    assert {sample.labels["store"] for sample in found.samples} == {path}
    assert found.value("commitlog_lane_messages_total", lane="0") == 3
    assert found.value("commitlog_lane_put_duration_seconds_count", lane="0") == 3
    assert found.value("commitlog_lane_flushed_bytes", lane="0") == lane.flushed > 300
    assert found.value("commitlog_topic_end_offset", topic="apples", lane="0") == 2
    assert found.value("commitlog_reader_behind_messages", reader="billing", topic="apples") == 1
    assert found.value("commitlog_store_state", state="running") == 1
    assert found.value("commitlog_store_info", generation="1", store_id=facts.store_id) == 1
    for stage in facts.stages:
        assert found.value("commitlog_stage_actions_total", stage=stage.stage) == stage.actions
        assert found.value("commitlog_stage_running", stage=stage.stage) == 1
        assert found.value("commitlog_stage_cpu_seconds_total", stage=stage.stage) >= 0
    flusher = found.value("commitlog_stage_action_duration_seconds_count", stage="flusher")
    assert flusher == found.value("commitlog_stage_action_duration_seconds_bucket", stage="flusher", le="+Inf") >= 1


@given(st.lists(st.integers(0, 1 << 26), max_size=50))
def test_a_histogram_has_each_duration_below_its_limits(microseconds: list[int]) -> None:
    """Cumulative counts at exact limits; the sum is at most an eighth too small."""
    words = memoryview(bytearray(HISTOGRAM_BUCKETS * 8)).cast("Q")
    for one in microseconds:
        record_duration(words, 0, one * 1000)
    found = durations(Histogram.load(words, 0))
    limits = [round(limit * 1e6) for limit in found.limits[:-1]]
    assert list(found.counts) == [bisect_left(sorted(microseconds), limit) for limit in limits] + [len(microseconds)]
    assert sum(microseconds) * 7 / 8 - 1e-3 <= found.total * 1e6 <= sum(microseconds) + 1e-3


@pytest.mark.leaves_pools
def test_a_killed_stage_and_then_a_killed_store(tmp_path: Path) -> None:
    """Counters go on through a stage's death, and stay readable when everybody is dead."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    with scraping(store.path) as collector:
        producer = store.producer()
        producer.send("t", b"x").wait("flushed", 60)
        os.kill(pid_of(store.path, "flusher"), signal.SIGKILL)
        wait_until(lambda: scrape(collector).value("commitlog_stage_restarts_total", stage="flusher") == 1)
        producer.send("t", b"x").wait("flushed", 60)
        assert scrape(collector).value("commitlog_lane_messages_total") == 2
        kill_store(store)
        wait_until(lambda: not any(scrape(collector).values("commitlog_stage_running")), "the last stage to be gone")
        killed = scrape(collector)
        producer.close()
    assert killed.value("commitlog_up") == killed.value("commitlog_store_state", state="killed") == 1
    assert killed.values("commitlog_stage_running") == [0] * len(STAGES)
    assert killed.value("commitlog_lane_messages_total") == 2
    assert killed.value("commitlog_health_status", status="down") == 1
    assert not killed.values("commitlog_stage_cpu_seconds_total")


@pytest.mark.nightly
def test_a_collector_follows_a_store_through_stop_and_start(tmp_path: Path) -> None:
    """A stopped store has positions and topics, and no counters."""
    for round_ in (1, 2):
        with commitlog.Store.open(tmp_path / "store", SMALL) as store:
            if round_ == 1:
                collector = StoreCollector([store.path], print)
            with store.producer() as producer:
                producer.send("t", b"x").wait("flushed", 60)
            assert scrape(collector).value("commitlog_lane_messages_total") == 1
        stopped = scrape(collector)
        assert stopped.value("commitlog_store_state", state="stopped") == 1
        assert stopped.value("commitlog_topic_end_offset", topic="t") == round_
        assert stopped.value("commitlog_lane_flushed_bytes") > 0
        assert not stopped.values("commitlog_lane_messages_total")
        assert not stopped.values("commitlog_stage_running")
        assert not stopped.values("commitlog_shared_memory_free_bytes")
    collector.close()


def test_stores_that_can_not_be_read(tmp_path: Path) -> None:
    """They have `commitlog_up` 0 and do no harm to the others; each trouble is reported once."""
    HandMadeStore(tmp_path / "good").publish()
    errors: list[Exception] = []
    paths = [tmp_path / "good", tmp_path / "later", tmp_path / "good"]  # a path that comes twice is one store
    collector = StoreCollector(paths, errors.append)
    for _ in range(2):
        found = scrape(collector)
        assert found.value("commitlog_up", store=str(tmp_path / "good")) == 1
        assert found.values("commitlog_up", store=str(tmp_path / "later")) == [0]
        assert len([sample for sample in found.samples if sample.labels["store"].endswith("later")]) == 1
    assert [type(error) for error in errors] == [StoreNotFound]
    HandMadeStore(tmp_path / "later").publish()
    assert scrape(collector).values("commitlog_up") == [1, 1]
    (tmp_path / "later" / "store.json").unlink()
    assert scrape(collector).values("commitlog_up") == [1, 0]
    assert len(errors) == 2
    collector.close()


def test_a_reader_whose_position_can_not_be_read(tmp_path: Path) -> None:
    """It has a warning, and neither a lag nor an age."""
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("t", b"x")
    store.publish()
    (store.path / "readers").mkdir(exist_ok=True)
    (store.path / "readers/broken.json").write_text("{")
    with scraping(store.path) as collector:
        found = scrape(collector)
    assert found.value("commitlog_reader_warning", reader="broken") == 1
    assert not found.values("commitlog_reader_behind_messages")
    assert not found.values("commitlog_reader_progress_age_seconds")


def test_names_of_any_characters(tmp_path: Path) -> None:
    """A path with quotes and line feeds is a label like any other."""
    path = tmp_path / 'a "store"\n\\x'
    HandMadeStore(path).publish()
    with scraping(path) as collector:
        assert scrape(collector).value("commitlog_up", store=str(path)) == 1


def test_a_blocked_producer(tmp_path: Path) -> None:
    """How long it has been waiting by now, in seconds."""
    snapshot = replace(example(), blocked_ms={0: 2500.0})
    assert ("commitlog_lane_blocked_seconds", ("0",), 2.5) in values_of(snapshot)
    assert ("commitlog_lane_blocked_seconds", ("0",), 0) in values_of(replace(snapshot, blocked_ms={}))


def test_one_metric_by_its_name(tmp_path: Path) -> None:
    """As `?name[]=` of the client library asks for it."""
    HandMadeStore(tmp_path / "store").publish()
    with scraping(tmp_path / "store", clock=SetClock()) as collector:
        text = generate_latest(collector.registry.restricted_registry(["commitlog_up"])).decode()
    assert [sample.name for sample in read_prometheus(text).samples] == ["commitlog_up"]


def test_the_page_says_how_many_samples_a_scrape_has(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        producer.send("apples", b"x").wait("flushed", timeout=60)
        with commitlog.Reader(store.path, topic="apples", name="billing") as reader:
            reader.commit(next(iter(reader)))
        with scraping(store.path) as collector:
            found = scrape(collector)
    owners = Counter(" ".join(name for name in KINDS if name in sample.labels) for sample in found.samples)
    assert (owners["topic lane"], owners["reader"], owners["topic reader"]) == (2, 3, 2)
    said = re.search(
        r"A store has (\d+) samples, each lane (\d+), each stage (\d+), a topic two", " ".join(PAGE.read_text().split())
    )
    assert said is not None
    assert [int(number) for number in said.groups()] == [owners[""], owners["lane"], owners["stage"] / len(STAGES)]


def test_the_page_has_every_metric() -> None:
    """The table of docs/metrics.md is that of the code."""
    rows = {f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.meaning} |" for one in METRICS}
    assert {line for line in PAGE.read_text().splitlines() if line.startswith("| `commitlog_")} == rows

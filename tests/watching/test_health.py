"""What is said of a store's health, in every state and trouble that has a code."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import commitlog
from commitlog.client.statistics import RETENTION_WORDS, RetentionStatistics
from commitlog.disk.file_channel import DISK
from commitlog.disk.forwarder_files import ForwarderStatistics
from commitlog.disk.locks import try_file
from commitlog.disk.quarantine import Quarantine
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.replication_troubles import ReplicationTroubles
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreNotFound
from commitlog.inspecting.verify import verify_store
from commitlog.shm.counters import RetentionFlag
from commitlog.shm.layout import STAGES
from commitlog.shm.row_check import WORDS_DAMAGED
from commitlog.watching.health import CODES, Health, HealthLimits, health, unreadable
from commitlog.watching.snapshot import StoreSnapshot, StoreWatch
from tests.builders.killed import kill_store
from tests.crash.scene import halted_process, kill, pid_of
from tests.fake_clock import SetClock
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.supervisor import patched_stages
from tests.nightly import with_nightly
from tests.waiting import wait_until
from tests.watching.health_scene import (
    LIMITS,
    QUICK,
    ROOM,
    SOON_SILENT,
    codes,
    expect,
    expect_good,
    look,
    reasons_of,
    snapshot_of,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    """A store that is good, with a message of the topic `t` in lane 0."""
    with commitlog.Store.open(tmp_path / "store", QUICK) as opened:
        with opened.producer() as producer:
            producer.send("t", b"x").wait("flushed", 60)
        expect_good(opened.path)
        yield opened


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """The same for tests that leave it as they found it: its lanes are free, nothing is noted."""
    with commitlog.Store.open(tmp_path_factory.mktemp("shared") / "store", QUICK) as opened:
        with opened.producer() as producer:
            producer.send("t", b"x").wait("flushed", 60)
        expect_good(opened.path)
        yield opened


def test_a_store_that_was_stopped_with_messages_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The with-block warns at its end, and the store's health says how much it is."""
    path = tmp_path / "store"
    faults = FaultsDirectory(path)
    with patched_stages(), commitlog.Store.open(path, QUICK) as store, store.producer() as producer:
        producer.send("t", b"x").wait("flushed", 60)
        faults.set(Rule("fdatasync", error=errno.EIO))
        receipt = producer.send("t", b"y")
    left = receipt.end - receipt.physical_offset
    reason = expect(path, "only-in-memory", lanes=(0,))
    assert reason.text == f"lane 0: {left} bytes that were accepted are only in memory"
    assert "stopped" in codes(path)
    (warning,) = [record.getMessage() for record in caplog.records if "not all is on the disk" in record.getMessage()]
    assert f"lane 0: {left} bytes are in the pool, not flushed yet" in warning
    assert commitlog.Store.open(path, QUICK).close().drained
    assert "only-in-memory" not in codes(path)


# ---- the store and its processes ---------------------------------------------------------------


def test_a_stage_that_stands_still(shared_store: commitlog.Store) -> None:
    for stage in STAGES:
        with halted_process(pid_of(shared_store.path, stage)):
            reason = expect(shared_store.path, "stage-silent", SOON_SILENT, stage=stage)
            assert reason.text.startswith(f"the {stage} has given no heartbeat for ")
        expect_good(shared_store.path)


def test_a_supervisor_that_stands_still(shared_store: commitlog.Store) -> None:
    """The store is down, because nobody would start a dead stage again."""
    with halted_process(pid_of(shared_store.path, "")):
        expect(shared_store.path, "supervisor-silent", SOON_SILENT)
        assert look(shared_store.path, SOON_SILENT).status == "down"
    expect_good(shared_store.path)


def test_a_stage_that_is_killed(store: commitlog.Store) -> None:
    """It is gone while the supervisor stands still, and back when that goes on."""
    for stage in STAGES:
        with halted_process(pid_of(store.path, "")):
            kill(pid_of(store.path, stage))
            expect(store.path, "stage-gone", stage=stage)
        expect_good(store.path)


def test_restarts_that_pile_up(store: commitlog.Store) -> None:
    """A few restarts are a reason for ten minutes."""
    for _ in range(3):
        pid = pid_of(store.path, "committer")
        kill(pid)
        wait_until(lambda pid=pid: pid_of(store.path, "committer") not in (0, pid), "the next committer")  # type: ignore[misc]
    reason = expect(store.path, "stage-restarts", stage="committer")
    assert "was restarted 3 times, the last time " in reason.text
    found = snapshot_of(store)
    assert "stage-restarts" in [one.code for one in health(found).reasons]
    assert health(replace(found, time_ms=found.time_ms + 601_000)) == Health("good")
    assert health(found, HealthLimits(restarts=4)) == Health("good")


@pytest.mark.nightly
def test_a_start_counts_restarts_anew(tmp_path: Path) -> None:
    """A store that is continued is good: its stages were started, and not again."""
    killed = commitlog.Store.open(tmp_path / "store", QUICK)
    for _ in range(3):
        pid = pid_of(killed.path, "committer")
        kill(pid)
        wait_until(lambda pid=pid: pid_of(killed.path, "committer") not in (0, pid), "the next committer")  # type: ignore[misc]
    kill_store(killed)
    with commitlog.Store.open(killed.path, QUICK):
        expect_good(killed.path)


@pytest.mark.nightly
def test_a_killed_store(tmp_path: Path) -> None:
    store = commitlog.Store.open(tmp_path / "store", QUICK)
    kill_store(store)
    found = look(store.path)
    assert (found.status, [reason.code for reason in found.reasons]) == ("down", ["killed"])
    assert found.reasons[0].said.endswith(f"; continue it: commitlog run {store.path}")
    commitlog.Store.open(store.path).close()
    assert codes(store.path) == {"stopped"}
    assert look(store.path).status == "down"


def test_a_store_that_stops(store: commitlog.Store) -> None:
    """It is down while it drains: nothing can be sent."""
    with halted_process(pid_of(store.path, "flusher")):
        closing = threading.Thread(target=store.close)
        closing.start()
        expect(store.path, "closing")
    closing.join()
    assert codes(store.path) == {"stopped"}


@pytest.mark.parametrize("end", with_nightly([commitlog.Store.close], [kill_store]))
def test_a_store_that_is_opened(tmp_path: Path, end: Callable[[commitlog.Store], object]) -> None:
    """A start waits for a stage of an earlier run: nothing can be sent yet."""
    path = tmp_path / "store"
    end(commitlog.Store.open(path, QUICK))
    orphan = wait_until(lambda: try_file(StoreDirectory(path).stage_lock_file("flusher"), DISK), "the flusher's end")
    assert orphan is not None
    opened: list[commitlog.Store] = []
    settings = {**QUICK, "supervisor": {"start_wait_ms": 100_000}}
    opening = threading.Thread(target=lambda: opened.append(commitlog.Store.open(path, settings)))
    opening.start()
    try:
        expect(path, "starting")
    finally:
        DISK.close(orphan)
        opening.join()
    expect_good(path)
    opened[0].close()


def test_a_running_store_whose_lock_file_names_another_process(shared_store: commitlog.Store) -> None:
    """It is not being opened: its supervisor has the file open."""
    lock_file = shared_store.path / "lock"
    supervisor = lock_file.read_bytes()
    lock_file.write_text(f"{os.getpid()}\n")
    assert codes(shared_store.path) == set()
    lock_file.write_bytes(supervisor)


def test_no_store(tmp_path: Path) -> None:
    """The error's text is the reason."""
    with pytest.raises(StoreNotFound) as caught:
        StoreWatch(tmp_path / "none")
    found = unreadable(caught.value, tmp_path / "none")
    assert (found.status, found.reasons[0].code) == ("down", "unreadable")
    assert found.reasons[0].text == f"{caught.value} [StoreNotFound]"


# ---- lanes -------------------------------------------------------------------------------------


def test_a_full_disk(tmp_path: Path) -> None:
    """The stage that the disk refuses, its lane and the errno."""
    path = tmp_path / "store"
    with patched_stages(), commitlog.Store.open(path, QUICK) as store, store.producer() as producer:
        producer.send("t", b"x").wait("flushed", 60)
        faults = FaultsDirectory(path)
        faults.set(Rule("pwrite", error=errno.ENOSPC, stage="committer"))
        producer.send("t", b"y")
        reason = expect(path, "stage-fault", stage="committer", lanes=(0,))
        assert reason.text == "lane 0: the committer can't go on: ENOSPC, No space left on device"
        assert "as soon as there is space" in reason.way_out
        faults.clear()
        expect_good(path)


def test_the_same_fault_in_many_lanes_is_one_reason(good: StoreSnapshot) -> None:
    """So is a lane that several stages have set aside."""
    faults = ({"flusher": errno.EIO}, {"flusher": errno.EIO}, {"committer": WORDS_DAMAGED, "flusher": WORDS_DAMAGED})
    lanes = tuple(replace(good.statistics.lanes[0], lane=at, faults=found) for at, found in enumerate(faults))
    aside, other = reasons_of(replace(good, statistics=replace(good.statistics, lanes=lanes)))
    assert (aside.code, aside.lanes) == ("lane-words-damaged", (2,))
    assert other.text == "lanes 0, 1: the flusher can't go on: EIO, Input/output error"


def test_a_blocked_producer(shared_store: commitlog.Store) -> None:
    """All write buffers of a lane are full, because the committer stands still."""
    with commitlog.Producer(shared_store.path) as producer:
        filling = threading.Thread(target=lambda: [producer.send("t", bytes(10_000)) for _ in range(30)])
        with halted_process(pid_of(shared_store.path, "committer")):
            filling.start()
            reason = expect(shared_store.path, "producer-blocked", HealthLimits(blocked_ms=50), lanes=(0,))
            assert reason.text.startswith("lane 0: producers wait for a write buffer, for ")
        filling.join()


def test_messages_that_are_not_flushed(shared_store: commitlog.Store) -> None:
    with commitlog.Producer(shared_store.path) as producer:
        with halted_process(pid_of(shared_store.path, "flusher")):
            producer.send("t", b"late")
            expect(shared_store.path, "unflushed", HealthLimits(unflushed_ms=300), lanes=(0,))
        producer.flush(timeout=60)
    assert "unflushed" not in codes(shared_store.path, HealthLimits(unflushed_ms=1))


def test_an_idle_lane_is_not_late_when_a_message_comes(store: commitlog.Store) -> None:
    """Its last flush was an hour ago, and the message has waited for a moment only."""
    clock = SetClock()
    clock.boot += 3_600_000_000_000
    with (
        store.producer() as producer,
        halted_process(pid_of(store.path, "flusher")),
        StoreWatch(store.path, clock) as watch,
    ):
        producer.send("t", b"new")
        found = wait_until(lambda: (now := watch.snapshot()).unflushed_ms and now, "a commit")
        assert found
    assert (found.statistics.lanes[0].flushed_ms_ago or 0) > 3_500_000
    assert found.unflushed_ms[0] < 3_500_000


def test_messages_that_are_not_dispatched(shared_store: commitlog.Store) -> None:
    with commitlog.Producer(shared_store.path) as producer:
        with halted_process(pid_of(shared_store.path, "dispatcher")):
            producer.send("t", b"late").wait("flushed", 60)
            expect(shared_store.path, "undispatched", HealthLimits(undispatched_ms=300), lanes=(0,))
        expect_good(shared_store.path)


def test_noted_damage(store: commitlog.Store) -> None:
    """It counts as long as the log has it."""
    quarantine = Quarantine(StoreDirectory(store.path).lane_directory(0), store.segment_bytes, DISK)
    quarantine.note_corruption("a segment", 100, 200, "a test", is_named=True)
    reason = expect(store.path, "damage-noted", lanes=(0,))
    assert reason.said.endswith(f"what is damaged: commitlog verify {store.path}")
    assert look(store.path, replace(LIMITS, ignored=frozenset({"damage-noted"}))) == Health("good")
    found = snapshot_of(store)
    assert found.damaged_ranges == {0: 1}


# ---- readers -----------------------------------------------------------------------------------


def test_a_slow_reader(store: commitlog.Store) -> None:
    """One that has more to read than it may, and one that does not move."""
    with commitlog.Reader(store.path, topic="t", start="earliest", name="billing") as reader:
        reader.commit(next(iter(reader)))
        with store.producer() as producer:
            producer.send_batch("t", [b"x"] * 10)
            producer.flush(timeout=60)
        reason = expect(store.path, "reader-behind", replace(LIMITS, reader_behind=9), reader="billing")
        assert reason.text == "reader billing is 10 messages behind"
        assert look(store.path, replace(LIMITS, reader_behind=10)) == Health("good")
        found = snapshot_of(store)
        (state,) = found.readers
        (still,) = reasons_of(replace(found, readers=(replace(state, still_ms=86_400_000),)))
        assert (still.code, still.reader) == ("reader-still", "billing")
        assert still.text == "reader billing has not moved for 24 hours, and is 10 messages behind"
        assert health(replace(found, readers=(replace(state, still_ms=86_399_999),))) == Health("good")


def test_a_reader_whose_position_is_nonsense(store: commitlog.Store) -> None:
    readers = StoreDirectory(store.path).readers_directory
    readers.mkdir()
    (readers / "billing.json").write_text("{}")
    reason = expect(store.path, "reader-unreadable", reader="billing")
    assert "until then everything is kept for it" in reason.text


def test_a_replica_that_is_gone_or_late(store: commitlog.Store) -> None:
    files = ReplicaFiles(StoreDirectory(store.path))
    files.save(ReplicaState("standby", "replica", snapshot_of(store).statistics.store_id, refusal="it has another log"))
    reason = expect(store.path, "replica-gone", replica="standby")
    assert reason.text == "replica standby is not connected: it has another log"
    found = snapshot_of(store)
    late = replace(found.replicas[0], connected=True, behind_bytes=7, behind_since_ms=found.time_ms - 31_000)
    (behind,) = reasons_of(replace(found, replicas=(late,)))
    assert (behind.code, behind.replica) == ("replica-behind", "standby")
    assert behind.text == "replica standby is 7 bytes behind, for 31 s"
    assert health(replace(found, replicas=(replace(late, behind_since_ms=found.time_ms - 29_000),))) == Health("good")


def test_what_replication_can_not_do(good: StoreSnapshot) -> None:
    """tests/replicas has each of them with a store."""
    troubles = ReplicationTroubles({"db1:4440": "the port is taken"}, {"readers/a.json": "it is damaged"})
    shut, damaged = reasons_of(replace(good, troubles=troubles))
    assert (shut.code, damaged.code) == ("not-listening", "file-not-copied")
    assert shut.text == "no replica can come to db1:4440: the port is taken"
    assert damaged.text == "replicas keep the readers/a.json that they have: it is damaged"


def test_a_forwarder_that_waits_for_its_cluster(good: StoreSnapshot) -> None:
    one = ForwarderStatistics("kafka", "kafka://one:9092", 4711, "waiting", behind_messages=7, behind_ms=31_000)
    (reason,) = reasons_of(replace(good, forwarders=(one,)))
    assert (reason.code, reason.reader) == ("forwarder-waiting", "kafka")
    assert reason.text == "forwarder kafka: kafka://one:9092 does not answer; 7 messages wait for 31 s at most"
    for state in ("starting", "forwarding", "stopped"):
        assert health(replace(good, forwarders=(replace(one, state=state),))) == Health("good")


def test_an_index_that_is_damaged(store: commitlog.Store) -> None:
    """Stages and producers work, so a probe must not start the store again for it."""
    with commitlog.Reader(store.path, topic="t", start="earliest", name="billing") as reader:
        reader.commit()
    trimmed = StoreDirectory(store.path).lane_directory(0).trimmed_file
    trimmed.mkdir()
    expect(store.path, "index-damaged")
    trimmed.rmdir()
    trimmed.write_text("{")
    assert str(trimmed) in expect(store.path, "index-damaged").text
    assert [finding.file for finding in verify_store(store.path).lanes[0].findings] == [str(trimmed)]
    assert look(store.path).status == "degraded"
    with StoreWatch(store.path) as watch:
        found = watch.snapshot()
        assert (found.topics, found.readers, found.statistics.running) == ((), (), True)
        trimmed.unlink()
        found = watch.snapshot()
    assert ([one.topic for one in found.topics], [reader.name for reader in found.readers]) == (["t"], ["billing"])
    expect_good(store.path)


def test_small_files_that_no_named_reader_needs(store: commitlog.Store) -> None:
    """Trim marks, schemas, ends of topics: health looks at them without named readers, too."""
    directory = StoreDirectory(store.path)
    store.create_topic("sales", schema="id BIGINT")
    lane = directory.lane_directory(0)
    schema = directory.topics_directory / "sales" / "1.json"
    for file, code in (
        (lane.trimmed_file, "index-damaged"),
        (lane.ends_file, "file-damaged"),
        (schema, "file-damaged"),
    ):
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(before[:-9] if before else b"{")
        reason = expect(store.path, code)
        assert str(file) in reason.text
        assert "put it back" in reason.said
        file.unlink() if before is None else file.write_bytes(before)
        expect_good(store.path)


# ---- room --------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_disk_that_is_too_full_for_retention(tmp_path: Path) -> None:
    """The allocator says so, and health passes it on."""
    with (
        patched_stages("tests.faults.stage:on_a_full_disk"),
        commitlog.Store.open(tmp_path / "store", {**QUICK, "retention": {"disk_enough_bytes": 0}}) as store,
    ):
        for code in ("disk-high", "disk-forces"):
            expect(store.path, code)


@pytest.mark.parametrize(
    ("flag", "code"),
    [
        (RetentionFlag.CLOCK_JUMPED, "clock-jumped"),
        (RetentionFlag.DISK_HIGH, "disk-high"),
        (RetentionFlag.DISK_FORCES, "disk-forces"),
        (RetentionFlag.DISK_REFUSES, "disk-refuses"),
        (RetentionFlag.NOT_DELETED, "not-deleted"),
        (RetentionFlag.HELD_BY_READER, None),
    ],
)
def test_each_warning_of_retention(good: StoreSnapshot, flag: RetentionFlag, code: str | None) -> None:
    """That a reader keeps segments is what readers are for."""
    warned = RetentionStatistics(0, 0, 0, 50.0, (RETENTION_WORDS[flag],))
    reasons = reasons_of(replace(good, statistics=replace(good.statistics, retention=warned)))
    assert [reason.code for reason in reasons] == ([code] if code else [])


def test_messages_that_are_stored_later_than_now(shared_store: commitlog.Store) -> None:
    """A clock was ahead: age and searches by time go wrong until then."""
    clock = SetClock()
    with StoreWatch(shared_store.path, clock, only_health=True) as watch:
        for ahead_ms, found in ((30_000, ()), (86_400_000 * 365, ((0,),)), (-86_400_000 * 365, ())):
            clock.wall = SetClock().wall - ahead_ms
            reasons = health(watch.snapshot(), LIMITS).reasons
            assert tuple(reason.lanes for reason in reasons if reason.code == "stored-ahead") == found
    assert "stored-ahead" not in codes(shared_store.path)


def test_a_disk_and_a_shared_memory_that_are_nearly_full(good: StoreSnapshot) -> None:
    """Where 4 GiB are free, nothing is."""
    gib = 1 << 30
    for room, found in (
        (replace(ROOM, disk_used=96 * gib, disk_free=4 * gib - 1), ["disk-nearly-full"]),
        (replace(ROOM, disk_used=95 * gib, disk_free=5 * gib), []),
        (replace(ROOM, disk_used=990 * gib, disk_free=4 * gib), []),
        (
            replace(ROOM, shared_memory_used=97 * gib // 10, shared_memory_free=3 * gib // 10),
            ["shared-memory-nearly-full"],
        ),
        (replace(ROOM, shared_memory_used=95 * gib // 10, shared_memory_free=5 * gib // 10), []),
    ):
        assert [reason.code for reason in reasons_of(replace(good, space=room))] == found


# ---- the whole ---------------------------------------------------------------------------------


def test_the_worst_reason_comes_first(good: StoreSnapshot) -> None:
    space = replace(ROOM, disk_used=99, disk_free=1)
    found = replace(good, space=space)
    killed = replace(found, statistics=replace(found.statistics, running=False, killed=True))
    assert [reason.code for reason in health(killed).reasons] == ["killed", "disk-nearly-full"]
    assert health(killed).status == "down"


def test_every_code_has_its_test() -> None:
    text = "".join(Path(__file__).with_name(name).read_text() for name in ("test_health.py", "test_lost_lanes.py"))
    assert [code for code in CODES if f'"{code}"' not in text] == []

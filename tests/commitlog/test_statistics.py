"""`statistics()` of a store, a producer and a reader, and what `stat` makes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog import errors
from commitlog.cli.app import app
from commitlog.client.statistics import StoreStatistics
from commitlog.shm.layout import STAGES
from tests.crash.scene import kill
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}}
SECONDS = ("<2s", "<3s", "<4s", "<5s", "<10s", ">=10s")
"""Put times of a second and more, however slow the machine."""


def send_many(producer: commitlog.Producer, count: int) -> None:
    for _ in range(count):
        producer.send("t", bytes(1000))


def stat(path: Path) -> str:
    return CliRunner().invoke(app, ["stat", str(path)]).output


def pid_of(store: commitlog.Store, stage: str) -> int:
    return int((store.path / "locks" / stage).read_text())


def test_a_store_a_producer_and_a_reader_say_what_they_did(tmp_path: Path) -> None:
    config = SMALL | {"retention": {"disk_enough_bytes": 1}}  # however full the disk is
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        for _ in range(500):
            producer.send("t", bytes(200))
        producer.flush(timeout=60)
        facts = wait_until(lambda: _facts_at_rest(store, producer), "the stages to have done, and counted, all of it")
        assert facts is not None
        (lane,) = facts.lanes
        assert facts.running
        assert lane.producer == os.getpid()
        assert lane.messages == 500
        assert lane.wrote == lane.flushed == lane.dispatched > 100_000
        assert lane.available_buffers == 2
        assert lane.put_times is not None
        assert sum(lane.put_times.values()) == 500
        assert lane.faults == {}
        assert [stage.stage for stage in facts.stages] == ["committer", "flusher", "allocator", "dispatcher"]
        assert all(stage.actions and stage.pid == pid_of(store, stage.stage) for stage in facts.stages)
        assert facts.retention is not None
        assert facts.retention.warnings == ()
        assert 0 <= facts.retention.disk_used_percent <= 100
    with commitlog.Reader(tmp_path / "store") as reader:
        assert reader.statistics().behind_bytes == {0: lane.wrote}
        assert sum(1 for _ in reader) == reader.statistics().messages == 500
        assert reader.statistics().behind_bytes == {0: 0}
    stopped = CliRunner().invoke(app, ["stat", str(tmp_path / "store")]).output
    assert "stopped" in stopped
    assert "t: 500 messages, first offset 0, next 500" in stopped


def _facts_at_rest(store: commitlog.Store, producer: commitlog.Producer) -> StoreStatistics | None:
    """The store's, when its lane and the producer say the same."""
    facts = store.statistics()
    (lane,) = facts.lanes
    is_done = lane.dispatched == lane.wrote and lane.dispatched_records == 500
    return facts if is_done and lane == producer.statistics() else None


def test_a_put_that_waited_is_counted_where_it_belongs(tmp_path: Path) -> None:
    """The flusher stands still, so the pool fills up and the next put waits its second in vain.

    All of it can be read meanwhile.
    """
    config = SMALL | {"producer": {"buffer_wait_ms": 1000}, "supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        producer.send("t", b"x").wait("flushed", 60)
        os.kill(pid_of(store, "flusher"), signal.SIGSTOP)
        try:
            with pytest.raises(errors.NoBufferAvailable):
                send_many(producer, 1000)
            lane = store.statistics().lanes[0]
            shown = CliRunner().invoke(app, ["stat", str(store.path)]).output
        finally:
            os.kill(pid_of(store, "flusher"), signal.SIGCONT)
        assert lane.put_times is not None
        assert lane.available_buffers == 0
        (waited,) = [name for name in SECONDS if lane.put_times[name]]
        assert lane.put_times[waited] == lane.buffer_timeouts == 1
        assert lane.buffer_waits >= 1  # more where the allocator was slow before
        assert sum(lane.put_times.values()) == lane.messages + 1
        assert lane.buffer_wait_max_ms >= 1000
        assert "0 buffers available" in shown
        assert f"{waited} 1" in shown


@pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")
def test_who_was_killed_is_not_shown_as_there(tmp_path: Path) -> None:
    """The lane of a killed producer is free.

    Without supervisor and stages the store was killed, also if its memory is gone.
    """
    code = "import commitlog, sys; p = commitlog.Producer(sys.argv[1]); p.send('t', b'x').wait(); print(flush=True); input()"
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    command = [sys.executable, "-c", code, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert f"producer {process.pid}, " in stat(store.path)
        process.kill()
    assert "producer none, " in stat(store.path)
    assert store.statistics().state == "running"
    for pid in [int((store.path / "lock").read_text()), *(pid_of(store, stage) for stage in STAGES)]:
        kill(pid)  # the stages of a supervisor that is gone may have left
    with pytest.raises(errors.StageFailed):
        store.close()
    wait_until(lambda: stat(store.path).count("pid none") == len(STAGES), "the killed processes to go")
    assert store.statistics().state == "killed"
    (pool,) = Path(os.environ["COMMITLOG_SHM_DIR"]).iterdir()
    shutil.rmtree(pool)
    assert f"`commitlog run {store.path}` continues it" in stat(store.path)
    commitlog.Store.open(store.path).close()
    assert store.statistics().state == "stopped"
    assert "WARNING" not in stat(store.path)


def test_a_synchronous_put_takes_as_long_as_its_flush(tmp_path: Path) -> None:
    """The store's level is flushed: each put is counted with its wait."""
    config = SMALL | {"store": {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH"}}
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        producer.send("t", b"x")
        os.kill(pid_of(store, "committer"), signal.SIGSTOP)
        try:
            for _ in range(50):
                producer.send("t", b"not waited for", wait=False)
            os.kill(pid_of(store, "committer"), signal.SIGCONT)
            producer.send("t", b"x")
        finally:
            os.kill(pid_of(store, "committer"), signal.SIGCONT)
        times = producer.statistics().put_times
        assert times is not None
        assert sum(times.values()) == 52
        assert times["<=0ms"] >= 1


def test_a_reader_that_retention_overtook_is_told(tmp_path: Path) -> None:
    """DataLoss, with what to do; not a missing file."""
    config = {
        "store": {"segment_bytes": 1 << 16},
        "retention": {"max_bytes": 4 << 16, "interval_ms": 10},
        "flusher": {"positions_interval_ms": 10},
    }
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        producer.send("t", bytes(1000)).wait("flushed", 60)
        with commitlog.Reader(store.path, follow=True) as reader:
            next(reader)
            send_many(producer, 600)
            producer.flush(timeout=60)
            first = store.path / "lanes/0/commitlog" / f"{1 << 16:020d}"
            wait_until(lambda: not first.exists(), "old segments to go")
            with pytest.raises(errors.DataLoss, match="retention"):
                list(reader)

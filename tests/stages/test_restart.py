"""A stage that is killed is soon back.

A stage that can't live gets time, and then it is given up.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

import commitlog
from commitlog import errors
from commitlog.shm.layout import STAGES, Header, Lane, Stage
from commitlog.stages.supervising.forked_stage import ForkedStage
from commitlog.stages.supervising.heartbeats import Heartbeats
from commitlog.stages.supervising.stage_processes import StageProcess
from commitlog.system.clock import SYSTEM_CLOCK
from tests.crash.scene import pid_of
from tests.fake_clock import SetClock
from tests.faults.bench import bench
from tests.faults.stage import shortage
from tests.faults.supervisor import patched_stages
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16},
    "dispatcher": {"linger_ms": 0},
    "producer": {"buffer_wait_ms": 60_000, "segment_wait_ms": 60_000},  # a killed stage takes a while to come back
}
POSITION_OF = {
    "committer": Lane.COMMITTED,
    "flusher": Lane.FLUSHED,
    "dispatcher": Lane.DISPATCHED,
    "allocator": Lane.ALLOCATED,
}


_OTHERS = [stage for stage in STAGES if stage != "committer"]


@pytest.mark.parametrize(
    ("stage", "kills"),
    with_nightly([("committer", 6)], [(stage, 6) for stage in _OTHERS]),
)
def test_data_moves_again_after_a_kill(stage: str, kills: int, tmp_path: Path) -> None:
    """This is so also after the sixth kill within a minute.

    A stage that has worked is started again at once, without back-off.
    """
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        word = POSITION_OF[stage]
        for _ in range(kills):
            rounds = rounds_of(store, stage)
            while rounds_of(store, stage) < rounds + 4:  # fewer are no life: it would be started with back-off
                _send_until_it_moves(producer, word)
            os.kill(pid_of(store.path, stage), signal.SIGKILL)
            _send_until_it_moves(producer, word)
    said = re.findall(rf"the {stage} \(pid \d+\) died with -9; it is started again (.*)", log_of(store))
    assert said == ["at once"] * kills


def rounds_of(store: commitlog.Store, stage: str) -> int:
    return next(each.rounds for each in store.statistics().stages if each.stage == stage)


def _send_until_it_moves(producer: commitlog.Producer, word: int) -> None:
    row = producer._lease.row
    before = row[word]

    def moved() -> bool:
        for _ in range(10):
            producer.send("t", bytes(2000))  # back-pressure holds it up where nobody drains
        return row[word] > before

    wait_until(moved, "data to move")


def give_up_at_once(kind: type) -> type:
    """A committer that leaves with an error in its first round."""
    if kind.name != "committer":  # type: ignore[attr-defined]
        return kind

    class Doomed(kind):  # type: ignore[misc]
        def work(self) -> bool:
            raise errors.StageFailed("doomed")

    return Doomed


@pytest.mark.leaves_pools
def test_a_stage_that_can_not_live_is_started_less_and_less_often(tmp_path: Path) -> None:
    """Then the store stops by name, with what the stage said last."""
    config = {**SMALL, "supervisor": {"restarts_max": 4, "restarts_window_ms": 3_600_000}}
    with patched_stages("tests.stages.test_restart:give_up_at_once"):
        store = commitlog.Store.open(tmp_path / "store", config)
        wait_until(lambda: not store.running, "the store to give up")
        with pytest.raises(errors.StageFailed, match=r"the committer died 5 times .* doomed"):
            store.close()
    said = re.findall(r"the committer .* died with 1; it is started again (.*)", log_of(store))
    assert said == ["at once", "in 0.05 s", "in 0.1 s", "in 0.2 s"]


def log_of(store: commitlog.Store) -> str:
    return (store.path / "logs" / "supervisor.log").read_text()


def test_a_stage_that_hangs_before_its_first_sign_is_killed(tmp_path: Path) -> None:
    """The stage has never published its pid, and it has the time of a start.

    What the stage before it has published does not count.
    """
    with (
        bench(tmp_path / "store", supervisor={"hung_after_ms": 1000}) as made,
        subprocess.Popen(["sleep", "600"]) as process,
    ):
        stages, pidfd, clock = made.supervisor.stages, os.pidfd_open(process.pid), SetClock()
        stages.heartbeats = Heartbeats(made.control, clock)
        stage = StageProcess("committer", cast("ForkedStage", process), pidfd, 0)

        def rounds(seconds: int) -> None:
            for _ in range(seconds * 5):
                stages.kill_if_hung(stage)
                clock.pass_seconds(0.2)
                made.stages["committer"].beat()

        rounds(15)
        assert not made.warnings
        rounds(6)
        assert process.wait(60) == -signal.SIGKILL
        assert "gave no sign for 20 s" in made.warnings[0]
        os.close(pidfd)


def test_time_in_which_nobody_ran_is_nobodys_silence(tmp_path: Path) -> None:
    """This holds however long the machine stood still, and however often.

    A stage that is silent while others run is killed.
    """
    with (
        bench(tmp_path / "store", supervisor={"hung_after_ms": 1000}) as made,
        subprocess.Popen(["sleep", "600"]) as process,
    ):
        stages, pidfd, clock = made.supervisor.stages, os.pidfd_open(process.pid), SetClock()
        stages.heartbeats = Heartbeats(made.control, clock)
        stage = StageProcess("committer", cast("ForkedStage", process), pidfd, 0)
        row = made.control.stage_row("committer")
        row[Stage.PID] = process.pid
        for _ in range(10):
            made.stages["committer"].beat()
            stages.kill_if_hung(stage)
            clock.pass_seconds(3600)
            stages.kill_if_hung(stage)
        assert not made.warnings
        for _ in range(10):
            clock.pass_seconds(0.2)
            stages.kill_if_hung(stage)
        assert process.wait(60) == -signal.SIGKILL
        assert "gave no sign for 1 s" in made.warnings[0]
        os.close(pidfd)


def test_a_store_that_stood_still_goes_on(tmp_path: Path) -> None:
    """Supervisor and stages are stopped for longer than a stage may hang.

    They go on as the same processes.
    """
    config = {**SMALL, "supervisor": {"hung_after_ms": 5000}}
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        words = producer._words
        producer.send("t", b"before").wait("flushed")
        pids = {name: pid_of(store.path, name) for name in ("", *STAGES)}
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        until = SYSTEM_CLOCK.monotonic_ns() + 7_000_000_000
        wait_until(lambda: SYSTEM_CLOCK.monotonic_ns() > until, "seven seconds")
        os.kill(pids.pop(""), signal.SIGCONT)  # which looks before anybody else may run
        wait_until(lambda: words[Header.SUPERVISOR_HEARTBEAT] > until, "the supervisor to look")
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        rounds = {name: rounds_of(store, name) for name in STAGES}
        producer.send("t", b"after").wait("flushed")
        wait_until(lambda: all(rounds_of(store, name) > rounds[name] for name in STAGES), "all to go on")
        assert {name: pid_of(store.path, name) for name in STAGES} == pids
        assert "gave no sign" not in log_of(store)
        store.reload({**SMALL, "supervisor": {"hung_after_ms": 1000}})  # so that the next wait is short
        os.kill(pids["committer"], signal.SIGSTOP)
        wait_until(lambda: pid_of(store.path, "committer") not in (0, pids["committer"]), "another committer")
        assert "gave no sign" in log_of(store)


def test_a_stage_that_can_not_be_started_now_is_started_later(tmp_path: Path) -> None:
    """The supervisor has no descriptor left for it. The store goes on when it has."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        supervisor, killed = pid_of(store.path, ""), pid_of(store.path, "committer")
        limits = resource.prlimit(
            supervisor, resource.RLIMIT_NOFILE, (5, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: "the committer can't be started now" in log_of(store), "a refused start")
        receipt = producer.send("t", b"x")
        with pytest.raises(errors.WaitTimeout):
            receipt.wait("committed", 1)
        assert store.running
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: receipt.done("flushed"), "another committer")


def test_a_stage_that_gets_no_threads_is_started_later(tmp_path: Path) -> None:
    """libzmq would end it each time, and the store would give it up."""
    config = {**SMALL, "supervisor": {"restarts_max": 2}}
    with (
        patched_stages("tests.faults.stage:short_of_threads"),
        commitlog.Store.open(tmp_path / "store", config) as store,
        store.producer() as producer,
    ):
        shortage(store.path).touch()
        os.kill(pid_of(store.path, "committer"), signal.SIGKILL)
        log, said = store.path / "logs" / "committer.log", "ZeroMQ takes up to 4 threads, and the system gives fewer"
        wait_until(lambda: log.read_text().count(said) > 3, "more starts than there may be deaths")
        receipt = producer.send("t", b"x")
        shortage(store.path).unlink()
        wait_until(lambda: receipt.done("flushed"), "another committer")
        assert "the committer has to wait" in log_of(store)


def test_a_stage_starts_without_its_log(tmp_path: Path) -> None:
    """The directory of the logs is gone, then something else is in its place."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        logs = store.path / "logs"
        for replace in (lambda: None, lambda: logs.write_text("in the way")):
            shutil.rmtree(logs)
            replace()
            os.kill(pid_of(store.path, "committer"), signal.SIGKILL)
            producer.send("t", b"x").wait("flushed", 60)  # by another committer

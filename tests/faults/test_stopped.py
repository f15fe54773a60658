"""Stages that hear nothing, stand still, or have a double: latency, never loss, and never two."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

import commitlog
from commitlog import errors
from commitlog.appending.wakeups import WAKEUP
from commitlog.reading.view import StoreView
from commitlog.shm.layout import STAGES, Lane, Stage
from tests.crash.accounts import check, read_store
from tests.crash.scene import is_running, pid_of
from tests.faults.bench import bench
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.supervisor import patched_stages
from tests.faults.test_disk import CONFIG, Sender, faulty_store
from tests.nightly import with_nightly
from tests.waiting import wait_until

QUICK = {
    **CONFIG,
    "committer": {"interval_ms": 20},
    "flusher": {"interval_ms": 20, "positions_interval_ms": 100},
    "allocator": {"interval_ms": 20},
    "dispatcher": {"interval_ms": 20, "queue_file_entries": 1000},
}


@pytest.mark.parametrize("write_path", with_nightly(["pool"], ["direct"]))
def test_with_all_wakeups_dropped_everything_is_the_same_and_later(
    write_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stage and no producer rings or hears a bell.

    Segments still roll, buffers return, and syncs are waited for.
    """
    monkeypatch.setattr("commitlog.appending.wakeups.WakeupSender.ring", lambda self: None)
    config = {**QUICK, "store": {**CONFIG["store"], "write_path": write_path}}
    with (
        patched_stages("tests.faults.stage:deaf_and_dumb"),
        commitlog.Store.open(tmp_path / "store", config) as store,
    ):
        sender = Sender(store, store.producer(), FaultsDirectory(tmp_path / "none"))
        for _ in range(150):
            receipt = sender.send(2000)
        assert receipt.wait("flushed", timeout=60).name == "PUT_OK"
        for _ in range(5):
            assert sender.send().wait("flushed", timeout=60).name == "PUT_OK"
        with commitlog.Reader(store.path) as reader:
            assert [message.value for message in reader] == sender.sent
        row = sender.producer._lease.row
        wait_until(lambda: row[Lane.DISPATCHED] == row[Lane.WROTE], "the dispatcher")
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.parametrize("stage", with_nightly(["flusher"], ["committer"]))
def test_a_stage_that_stands_still_has_no_second_beside_it(stage: str, tmp_path: Path) -> None:
    """A stopped stage holds its lock, so one started by hand refuses and touches nothing.

    The stopped one goes on when it is continued.
    """
    with faulty_store(tmp_path / "store", supervisor={"start_wait_ms": 100}) as sender:
        sender.send().wait("flushed", timeout=60)
        pid = pid_of(sender.store.path, stage)
        os.kill(pid, signal.SIGSTOP)
        try:
            late = sender.send()
            second = subprocess.run(
                [sys.executable, "-P", "-m", f"commitlog.stages.{stage}", sender.store.path],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            assert second.returncode == 1
            assert f"a {stage} is running already (pid {pid})".encode() in second.stderr
            assert not late.done("flushed")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert late.wait("flushed", timeout=60).name == "PUT_OK"
        assert pid_of(sender.store.path, stage) == pid
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.nightly
def test_an_orphan_that_stands_still_keeps_the_next_start_out(tmp_path: Path) -> None:
    """Its supervisor is dead, and it holds its lock: StoreRunning names it.

    When it is continued, it finds its owner gone and leaves.
    """
    path = tmp_path / "store"
    with faulty_store(path, supervisor={"start_wait_ms": 300}) as sender:
        sender.send().wait("flushed", timeout=60)
        pid = pid_of(path, "committer")
        os.kill(pid, signal.SIGSTOP)
        try:
            sender.send()
            os.kill(pid_of(path, ""), signal.SIGKILL)
            with pytest.raises(errors.StageFailed):
                sender.store.close()
            with pytest.raises(errors.StoreRunning, match=f"committer {pid}"):
                commitlog.Store.open(path, {"supervisor": {"start_wait_ms": 300}})
        finally:
            os.kill(pid, signal.SIGCONT)
        sender.store = commitlog.Store.open(path, QUICK)
    check(sender.noted, read_store(path), deaths=0)


@pytest.mark.nightly
def test_a_sync_that_fails_while_the_store_stops_is_repaired(tmp_path: Path) -> None:
    """The flusher wants bytes written again when the committer has drained and left.

    Both are started once more.
    """
    with faulty_store(tmp_path / "store") as sender:
        sender.send().wait("flushed", timeout=60)
        committer, flusher = (pid_of(sender.store.path, stage) for stage in ("committer", "flusher"))
        os.kill(flusher, signal.SIGSTOP)
        sender.faults.set(Rule("fdatasync", error=errno.EIO, times=1))
        for _ in range(20):
            sender.send()
        closing = threading.Thread(target=sender.store.close)
        closing.start()
        wait_until(lambda: not is_running(committer), "the committer to leave")
        os.kill(flusher, signal.SIGCONT)
        closing.join(60)
        assert sender.faults.hits() > 1
        assert sender.store.close().drained
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


def test_hung_stages_are_killed_and_replaced(tmp_path: Path) -> None:
    """There is no heartbeat for as long as the configuration allows.

    A new committer and a new flusher come, and nothing is lost.
    """
    with faulty_store(tmp_path / "store", supervisor={"hung_after_ms": 1000}) as sender:
        sender.send().wait("flushed", timeout=60)
        hung = {stage: pid_of(sender.store.path, stage) for stage in ("committer", "flusher")}
        for pid in hung.values():
            os.kill(pid, signal.SIGSTOP)
        receipt = sender.send()
        assert receipt.wait("flushed", timeout=60).name == "PUT_OK"
        assert all(pid_of(sender.store.path, stage) not in (0, pid) for stage, pid in hung.items())
        sender.looks_durable()
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rests", [False, True], ids=["sleep", "rest"])
def test_a_stage_is_not_deaf_after_more_frames_than_it_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    """The descriptor of its socket says nothing of frames that were left.

    It neither sleeps nor rests while frames are left.
    """
    monkeypatch.setattr("commitlog.appending.wakeups._FRAMES_AT_ONCE", 120)
    hour_ms = 3_600_000
    with (
        bench(tmp_path / "store", committer={"linger_ms": hour_ms}) as made,
        contextlib.ExitStack() as stack,
    ):
        context, committer = stack.enter_context(zmq.Context()), made.stages["committer"]
        for _ in range(10):
            socket = stack.enter_context(context.socket(zmq.PUSH))
            socket.linger = 0
            socket.connect(f"ipc://{committer.pool}/committer.ipc")
            for _ in range(60):
                socket.send(b"garbage")
        while committer.stage_row[Stage.BAD_FRAMES] < 600:
            if rests:
                committer._linger()
            else:
                committer.wait_for_running(hour_ms, committer.news())
            committer._round()


@pytest.mark.nightly
def test_garbage_on_every_socket_is_counted_and_dropped(tmp_path: Path) -> None:
    """Wrong frames of every kind, too long ones, many parts, and bytes that are not ZeroMQ."""
    with faulty_store(tmp_path / "store") as sender, contextlib.closing(StoreView(tmp_path / "store")) as view:
        assert view.control is not None
        pool = view.control.region.path.parent
        rows = [view.control.stage_row(stage) for stage in STAGES]
        with contextlib.ExitStack() as stack:
            context = stack.enter_context(zmq.Context())
            for stage in STAGES:
                socket = stack.enter_context(context.socket(zmq.PUSH))
                socket.linger = 1000
                socket.connect(f"ipc://{pool}/{stage}.ipc")
                for frame in (b"", b"garbage", WAKEUP + b"!", WAKEUP.lower(), bytes(64)):
                    socket.send(frame)
                socket.send_multipart([WAKEUP, b"and more", b"\xff" * 64])
            wait_until(
                lambda: all(row[Stage.BAD_FRAMES] == 7 for row in rows), "the stages to count seven bad frames each"
            )
            for stage in (*STAGES, "notices"):
                socket = stack.enter_context(context.socket(zmq.PUSH if stage in STAGES else zmq.SUB))
                socket.linger = 0
                socket.connect(f"ipc://{pool}/{stage}.ipc")
                if stage in STAGES:
                    socket.send(bytes(100_000))  # over MAXMSGSIZE: its connection is dropped
                else:
                    socket.setsockopt(zmq.SUBSCRIBE, b"x" * 1000)
                _shout(pool / f"{stage}.ipc")
            assert sender.send(2000).wait("flushed", timeout=60).name == "PUT_OK"
        pids = [pid_of(sender.store.path, stage) for stage in STAGES]
        assert pids == [row[Stage.PID] for row in rows]
        assert [row[Stage.RESTARTS] for row in rows] == [0, 0, 0, 0]
    check(sender.noted, read_store(tmp_path / "store"), deaths=0)


def _shout(path: Path) -> None:
    """Sends bytes that are not ZeroMQ, then hangs up."""
    import socket

    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(5)
        plain.connect(str(path))
        with contextlib.suppress(OSError):
            plain.sendall(os.urandom(1000))
            plain.recv(100)

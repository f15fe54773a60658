"""Starting and stopping: one owner, refusals by name before any change, nothing half-made."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import commitlog
from commitlog import errors
from commitlog.client.statistics import store_statistics
from commitlog.config import Config
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.view import StoreView
from commitlog.shm.layout import STAGES
from commitlog.stages.supervising.starting import StoreOpening
from commitlog.stages.supervising.store_closing import give_up_pool
from commitlog.stages.supervising.store_locks import StoreLocks
from commitlog.stages.supervisor import Supervisor
from tests.builders.hand_made import HandMadeStore, small_store
from tests.children import without_privileges
from tests.crash.scene import is_running, kill, pid_of
from tests.faults.channel import FaultsDirectory, Rule
from tests.faults.supervisor import OWN_DISK, patched_stages
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL = {"store": {"segment_bytes": 1 << 16}}


def listing(path: Path) -> set[str]:
    return {str(entry.relative_to(path)) for entry in path.rglob("*")}


def test_open_and_close_leave_a_stopped_store(tmp_path: Path, shm_root: Path) -> None:
    """No process, no memory, no lock, and no `abort` file stays; RocketMQ's files are there."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        store.producer().send("t", b"x")
        assert list(shm_root.iterdir())
        assert (store.path / "lanes/0/abort").exists()
    assert not list(shm_root.iterdir())
    left = listing(tmp_path / "store/lanes/0")
    assert {"commitlog/00000000000000000000", "consumequeue/t/0/00000000000000000000", "checkpoint", "positions"} < left
    assert "abort" not in left
    assert (tmp_path / "store/lanes/0/lock").read_bytes() == b"lock"


@pytest.mark.nightly
def test_a_second_owner_is_refused_by_name(tmp_path: Path) -> None:
    """The error names the pids and the way out; the first goes on."""
    again = "import commitlog, sys; commitlog.Store.open(sys.argv[1])"
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        done = subprocess.run([sys.executable, "-c", again, store.path], capture_output=True, text=True, check=False)
        assert re.search(r"StoreRunning: .*supervisor \d+.*commitlog.Producer", done.stderr)
        assert store.producer().send("t", b"x").wait("flushed", 60).name == "PUT_OK"


def test_a_second_open_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of a notebook is run again: the error says where the store is, `reuse` gives it."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL, reuse=True) as store:
        with pytest.raises(errors.StoreRunning, match=r"as Store\('.*store'\): use that, or .*reuse=True"):
            commitlog.Store.open(path, SMALL)
        monkeypatch.setattr(sys.modules["__main__"], "events", store, raising=False)
        with pytest.raises(errors.StoreRunning, match="in the variable events: use that"):
            commitlog.Store.open(tmp_path / "x/../store")
        assert commitlog.Store.open(path, reuse=True) is store
        assert commitlog.Store.open(path, SMALL, reuse=True) is store
        with pytest.raises(errors.StoreRunning, match="with another configuration: close that first"):
            commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 17}}, reuse=True)
        assert store.producer().send("t", b"x").wait("flushed", 60).name == "PUT_OK"
    with commitlog.Store.open(path, SMALL, reuse=True) as opened:
        assert opened is not store


def test_paths_that_are_no_place_for_a_store(tmp_path: Path) -> None:
    """A file, a link, a directory with other things in it: refused, and left as it was."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    before = listing(tmp_path)
    for name in ("file", "full", "link", "file/below"):
        with pytest.raises(errors.StoreRefused):
            StoreOpening(tmp_path / name, Config()).run()
    with pytest.raises(errors.StoreRefused):
        commitlog.Store.open(tmp_path / "file", SMALL)
    assert listing(tmp_path) == before


def test_a_missing_store_is_one_error(tmp_path: Path) -> None:
    """Its traceback shows no second one of the operating system."""
    with pytest.raises(errors.StoreNotFound) as caught:
        commitlog.Producer(tmp_path / "missing")
    assert "FileNotFoundError" not in "".join(traceback.format_exception(caught.value))


def test_no_permission_is_refused(tmp_path: Path) -> None:
    """The error names the directory.

    The test gives up root's privileges, with which one may write anywhere.
    """
    (tmp_path / "closed").mkdir(mode=0o500)
    said = without_privileges(StoreOpening(tmp_path / "closed/store", Config()).run)
    assert said.startswith(f"StoreRefused: {tmp_path / 'closed'}: no permission to make a store here")


def test_a_directory_that_others_closed_is_refused(tmp_path: Path) -> None:
    """A container of another user finds its volume so: what is in there can't even be asked for."""
    (tmp_path / "closed").mkdir(mode=0o000)
    said = without_privileges(lambda: StoreOpening(tmp_path / "closed/store", Config()).run())
    assert said.startswith(f"StoreRefused: {tmp_path / 'closed/store'}: Permission denied; choose another path")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", errors.StoreDamaged),
        (b"{}", errors.StoreDamaged),
        (b"[1]", errors.StoreDamaged),
        (b'{"format": 2}', errors.StoreTooNew),
        (
            b'{"format": 1, "id": "zz", "segment_bytes": 65536, "generation": 1, "pool": null, "config": {}}',
            errors.StoreDamaged,
        ),
        (
            b'{"format": 1, "id": 5, "segment_bytes": 65536, "generation": 1, "pool": null, "config": {}}',
            errors.StoreDamaged,
        ),
        (os.urandom(3000), errors.StoreDamaged),
    ],
)
def test_a_store_json_of_somebody_else_is_refused(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    """Newer or damaged: nothing is touched."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/store.json").write_bytes(content)
    with pytest.raises(error):
        StoreOpening(tmp_path / "store", Config()).run()
    assert listing(tmp_path / "store") == {"store.json"}
    if content == b"{}":  # once in a process of its own: the owner hears the error's name
        with pytest.raises(error):
            commitlog.Store.open(tmp_path / "store", SMALL)
        assert listing(tmp_path / "store") == {"store.json"}


def test_an_owner_that_dies_takes_its_stages_along(tmp_path: Path, shm_root: Path) -> None:
    """The program that opened the store is killed with kill -9.

    The stages drain and end, and the next start finds everything.
    """
    code = (
        "import commitlog, sys, signal; store = commitlog.Store.open(sys.argv[1], {'store': {'segment_bytes': 65536}});"
        "store.producer().send('t', b'last words'); print('sent', flush=True); signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdout=subprocess.PIPE)
    assert owner.stdout
    assert owner.stdout.readline() == b"sent\n"
    pids = [int((tmp_path / "store/locks" / stage).read_text()) for stage in STAGES]
    pids.append(int((tmp_path / "store/lock").read_text()))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not any(map(is_running, pids)), "the stages to leave")
    assert not list(shm_root.iterdir())
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"last words"]


@pytest.mark.parametrize(
    "how", with_nightly(["a stage does not start"], ["store.json is not written", "store.json is not durable"])
)
def test_a_failed_start_leaves_no_pool(how: str, tmp_path: Path, shm_root: Path) -> None:
    """Nor a second one; then the store is what it was before."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL) as store:
        store.producer().send("t", b"before").wait("flushed", 60)
    rule = Rule("pwrite", "/.store.json", errno.ENOSPC, skip=0)
    if how == "store.json is not durable":
        rule = Rule("rename", "/store.json", errno.EIO, times=1)
    for _ in range(2):
        if how != "a stage does not start":
            FaultsDirectory(path).set(rule)
        patch = "tests.faults.stage:dead_at_birth" if how == "a stage does not start" else OWN_DISK
        with patched_stages(patch), pytest.raises((errors.StageFailed, errors.DiskError)):
            commitlog.Store.open(path, SMALL)
        assert not list(shm_root.iterdir())
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        assert producer.send("t", b"after").offset == 1
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"before", b"after"]


def test_what_was_sent_during_a_failing_start_stays(tmp_path: Path, shm_root: Path) -> None:
    """A producer that found the pool before the start failed: it is adopted by the next one."""
    path = tmp_path / "store"
    HandMadeStore(path, SMALL["store"]["segment_bytes"])
    opening = StoreOpening(path, Config())
    store = opening.run()
    with commitlog.Producer(path) as producer:
        producer.send("t", b"early")
    store.give_up()
    opening.locks.close()
    assert list(shm_root.iterdir())
    with commitlog.Store.open(path, SMALL):
        pass
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"early"]


def test_the_owner_hears_why_a_start_failed_whatever_comes_after(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its end meets a disk that refuses."""

    def refuse(_: StoreLocks) -> None:
        raise errors.StageFailed("the first error")

    def give_up_with_an_error(*what: Any) -> None:
        give_up_pool(*what)
        raise OSError(errno.EIO, "the second one")

    monkeypatch.setattr(StoreLocks, "let_stages_go", refuse)
    monkeypatch.setattr("commitlog.stages.supervising.running_store.give_up_pool", give_up_with_an_error)
    monkeypatch.setattr("commitlog.stages.supervisor.log_to_file", lambda *_: None)
    supervisor = Supervisor(tmp_path / "store", Config())
    assert supervisor.run() == 1
    supervisor.opening.locks.close()
    assert orjson.loads(capfd.readouterr().out) == {"error": "StageFailed", "message": "the first error"}


@pytest.mark.nightly
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, shm_root: Path) -> None:
    """Store and producer refuse it. A directory that is made here is closed, whatever the umask."""
    path = tmp_path / "store"
    umask = os.umask(0)
    try:
        with commitlog.Store.open(path, SMALL) as store:
            assert path.stat().st_mode & 0o077 == 0
            store.producer().send("t", b"x").wait("flushed", 60)
            path.chmod(0o777)
            with pytest.raises(errors.StoreRefused, match="chmod go-w"):
                commitlog.Producer(path)
            path.chmod(0o700)
        (tmp_path / "open").mkdir(0o777)
    finally:
        os.umask(umask)
    path.chmod(0o1777)
    for name in ("store", "open"):
        with pytest.raises(errors.StoreRefused, match="may be written to by others"):
            commitlog.Store.open(tmp_path / name, SMALL)
    assert not list((tmp_path / "open").iterdir())
    with commitlog.Reader(path) as reader:
        assert len(list(reader)) == 1


def test_a_group_may_write_where_it_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own group may write to the store, as with the umask of many systems.

    It may not if somebody else is in it, or if the system does not know the user.
    """
    path = small_store(tmp_path / "store", rows=1).path
    path.chmod(0o770)
    gid = path.stat().st_gid
    user = SimpleNamespace(pw_name="anna", pw_gid=gid)
    monkeypatch.setattr("pwd.getpwuid", lambda _uid: user)
    for members, name, allowed in (
        ([], "anna", True),
        (["anna"], "anna", True),
        (["bob"], "anna", False),
        ([], "staff", False),
    ):
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr("grp.getgrgid", lambda _gid, group=group: group)
        if allowed:
            StoreDirectory(path).check_owner()
        else:
            with pytest.raises(errors.StoreRefused, match="may be written to by others"):
                StoreDirectory(path).check_owner()
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(errors.StoreRefused):
        StoreDirectory(path).check_owner()


@pytest.mark.nightly
def test_a_stop_that_is_hurried_says_what_is_true(tmp_path: Path) -> None:
    """A second signal kills a stage that hangs.

    Only the last line says where the data is.
    """
    path = tmp_path / "store"
    command = [sys.executable, "-m", "commitlog.cli", "run", str(path)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout
    assert "running" in run.stdout.readline()
    with commitlog.Producer(path) as producer:
        producer.send("t", b"x").wait("flushed", 60)
    os.kill(pid_of(path, "allocator"), signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    assert run.stdout.readline() == "draining\n"
    view = StoreView(path)
    wait_until(lambda: store_statistics(view).closing, "the supervisor to come to its stop")
    view.close()
    run.send_signal(signal.SIGINT)
    said = run.stdout.read()
    run.stdout.close()
    assert run.wait() == 0
    assert "the allocator was still draining after a second signal; it is killed" in said
    assert said.endswith("stopped, all is on disk\n")
    assert "stays in the pool" not in said


@pytest.mark.nightly
def test_sigterm_to_the_supervisor_drains(tmp_path: Path) -> None:
    """As `close` would; the owner hears of it."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    store.producer().send("t", b"x")
    os.kill(int((tmp_path / "store/lock").read_text()), signal.SIGTERM)
    wait_until(lambda: not store.running, "the supervisor to leave")
    report = store.close()
    assert not report.drained  # its producer was still there when it stopped
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"x"]
    commitlog.Store.open(tmp_path / "store", SMALL).close()


@pytest.mark.nightly
def test_a_supervisor_that_hangs_does_not_keep_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error when the time is up, each time; when it goes on, so does the stop."""
    monkeypatch.setattr("commitlog.client.store._CLOSE_SLACK_SECONDS", 0.1)
    store = commitlog.Store.open(tmp_path / "store", SMALL | {"supervisor": {"stop_timeout_ms": 0}})
    commitlog.Producer(store.path).send("t", b"x")
    supervisor = int((store.path / "lock").read_text())
    os.kill(supervisor, signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(errors.StageFailed, match=rf"supervisor \(pid {supervisor}\) has not stopped in 0.1 s"):
                store.close()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    wait_until(lambda: not store.running, "the supervisor to leave")
    store.close()

    def values() -> list[bytes]:
        with commitlog.Reader(tmp_path / "store") as reader:
            return [message.value for message in reader]

    with commitlog.Store.open(tmp_path / "store", SMALL):
        wait_until(lambda: values() == [b"x"], "what was in the pool only to be flushed")


@pytest.mark.nightly
def test_a_store_goes_on_after_every_restart(tmp_path: Path) -> None:
    """The generation grows, the offsets go on, the segments hold one log."""
    for turn in range(3):
        with commitlog.Store.open(tmp_path / "store", SMALL) as store:
            facts = orjson.loads((store.path / "store.json").read_bytes())
            assert facts["generation"] == turn + 1
            producer = store.producer()
            for number in range(100):
                assert producer.send("t", b"x" * 500).offset == turn * 100 + number
    with commitlog.Reader(tmp_path / "store") as reader:
        assert len(list(reader)) == 300


def test_the_segment_size_is_that_of_the_stores_making(tmp_path: Path) -> None:
    """A different one in a later configuration changes nothing."""
    made = small_store(tmp_path / "store", rows=1)
    with commitlog.Store.open(made.path, {"store": {"segment_bytes": 1 << 20}}) as store:
        assert store.segment_bytes == made.segment_bytes < 1 << 20


@pytest.mark.leaves_pools
def test_a_pool_removed_under_the_store_is_drained_and_reported(tmp_path: Path, shm_root: Path) -> None:
    """systemd's RemoveIPC does this at logout.

    What was accepted is on disk, and `close` says what happened.
    """
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    producer = store.producer()
    producer.send("t", b"first").wait("flushed", 60)
    os.kill(pid_of(store.path, ""), signal.SIGSTOP)  # it does not look before the message is sent
    for file in sorted(shm_root.rglob("*"), reverse=True):
        os.rmdir(file) if file.is_dir() else os.unlink(file)
    producer.send("t", b"second")
    os.kill(pid_of(store.path, ""), signal.SIGCONT)
    wait_until(lambda: not store.running, "the store to stop")
    with pytest.raises(errors.PoolUnlinked, match="RemoveIPC"):
        store.close()
    with commitlog.Store.open(tmp_path / "store", SMALL), commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"first", b"second"]


def test_buffers_removed_under_the_store_are_drained_and_reported(tmp_path: Path, shm_root: Path) -> None:
    """A cleaner may remove one file.

    The store reacts before the stage dies that has it mapped, because what was accepted would die
    with it.
    """
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    producer = store.producer()
    producer.send("t", b"first").wait("flushed", 60)
    (buffers,) = shm_root.glob("commitlog-*/lane-0")
    os.kill(pid_of(store.path, ""), signal.SIGSTOP)  # it does not look before the message is sent
    buffers.unlink()
    producer.send("t", b"second")
    os.kill(pid_of(store.path, ""), signal.SIGCONT)
    wait_until(lambda: not store.running, "the store to stop")
    producer.close()
    with pytest.raises(errors.PoolUnlinked, match="lane-0 was removed"):
        store.close()
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        assert producer.send("t", b"third").wait("flushed", 60).name == "PUT_OK"
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"first", b"second", b"third"]


@pytest.mark.leaves_pools
@pytest.mark.parametrize("removed", with_nightly(["control"], ["lane-0"]))
def test_a_send_after_the_pool_was_removed_is_an_error(removed: str, tmp_path: Path, shm_root: Path) -> None:
    """The stages have ended, and there is no memory that a next start would find.

    So nothing is accepted that would be lost.
    """
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    producer = commitlog.Producer(store.path)
    producer.send("t", b"first").wait("flushed", 60)
    (file,) = shm_root.glob(f"commitlog-*/{removed}")
    file.unlink()
    wait_until(lambda: not store.running, "the store to stop")
    with pytest.raises(errors.PoolUnlinked):
        store.close()
    with pytest.raises(errors.PoolUnlinked, match="has not come to disk"):
        producer.send("t", b"too late")
    with pytest.raises(errors.StoreStopped):
        producer.send("t", b"later still")
    producer.close()
    if removed == "control":  # nobody knows whether the buffers beside it have accepted messages
        with pytest.raises(errors.PoolNotAdopted, match="Put the file back"):
            commitlog.Store.open(tmp_path / "store", SMALL)
        shutil.rmtree(file.parent)
    with commitlog.Store.open(tmp_path / "store", SMALL), commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"first"]


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_copy_of_a_store_leaves_the_originals_pool_alone(tmp_path: Path) -> None:
    """Killed, copied beside the original, both started: the original loses nothing."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    producer = store.producer()
    committer = int((store.path / "locks/committer").read_text())
    os.kill(committer, signal.SIGSTOP)
    producer.send("t", b"only in the pool")
    pids = [int((store.path / "locks" / stage).read_text()) for stage in STAGES]
    for pid in [int((store.path / "lock").read_text()), *pids]:
        kill(pid)
    producer.close()
    with pytest.raises(errors.StageFailed):
        store.close()
    subprocess.run(["cp", "-r", tmp_path / "store", tmp_path / "copy"], check=True)
    with commitlog.Store.open(tmp_path / "copy", SMALL), commitlog.Reader(tmp_path / "copy") as reader:
        assert list(reader) == []
    with commitlog.Store.open(tmp_path / "store", SMALL) as again:
        again.producer().flush(timeout=60)
        with commitlog.Reader(tmp_path / "store") as reader:
            assert [message.value for message in reader] == [b"only in the pool"]


@pytest.mark.nightly
def test_a_lane_closed_while_another_is_kept_goes_on_at_the_next_start(tmp_path: Path) -> None:
    """The pool stays for the other's sake, and knows that the segments made ahead are gone."""
    config = SMALL | {"allocator": {"interval_ms": 50}}
    store = commitlog.Store.open(tmp_path / "store", config)
    closed, kept = commitlog.Producer(store.path), commitlog.Producer(store.path)
    for producer in (closed, kept):
        producer.send("t", b"x").wait("flushed", 60)
    wait_until(lambda: len(list((store.path / "lanes/0/commitlog").iterdir())) == 3, "segments made ahead")
    closed.close()
    assert store.close().kept == (f"lane 1: producer {os.getpid()} still holds it",)
    assert len(list((store.path / "lanes/0/commitlog").iterdir())) == 1
    kept.close()
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        assert producer.lane == 0
        for _ in range(300):
            producer.send("t", bytes(1000))
        producer.flush(timeout=60)

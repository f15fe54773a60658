"""A replica is promoted, and the old primary comes back: it is refused, and then it rejoins."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.replica_files import known_replicas
from commitlog.disk.replica_mark import load_mark, save_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DiskFull, ReplicaRefused, StoreRefused, StoreRunning, StoreSuperseded
from commitlog.replicas.promotion import promote
from commitlog.watching.health import HealthLimits, health
from commitlog.watching.snapshot import StoreWatch
from tests.command_line import run
from tests.ports import free_port
from tests.replicas.scene import Scene, await_copy, flushed_of, log_of
from tests.waiting import wait_until


def command(name: str, *arguments: str) -> str:
    """Runs a command that has to succeed, and returns what it prints."""
    done = run(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def send(store: commitlog.Store, *values: bytes) -> None:
    with store.producer() as producer:
        for value in values:
            producer.send("orders", value)
        producer.flush()


def values_of(path: Path) -> list[bytes]:
    with commitlog.Reader(path, topic="orders") as reader:
        return [bytes(message.value) for message in reader]


def copied(scene: Scene) -> None:
    """A primary that has stopped, and a copy of all of it."""
    scene.copied(send_two)


def send_two(store: commitlog.Store) -> None:
    send(store, b"one", b"two")


def test_a_promoted_copy_is_a_store_of_the_next_epoch(scene: Scene) -> None:
    copied(scene)
    said = command("promote", str(scene.copy))
    facts = StoreDirectory(scene.copy).load()
    assert f"epoch {facts.epoch};" in said
    assert facts.epoch == facts.epochs[-1]["epoch"] > 0
    assert facts.epochs[-1]["ends"]["0"] == flushed_of(scene.primary)[0]
    with scene.open(scene.copy, listen="") as store:
        send(store, b"three")
    assert values_of(scene.copy) == [b"one", b"two", b"three"]


def test_a_copy_is_not_opened_and_takes_no_messages_before_it_is_promoted(scene: Scene) -> None:
    copied(scene)
    with pytest.raises(StoreRefused, match="commitlog promote"):
        scene.open(scene.copy)
    with pytest.raises(StoreRefused, match="commitlog promote"):
        commitlog.Producer(scene.copy)
    promote(scene.copy)
    with scene.open(scene.copy, listen=""), commitlog.Producer(scene.copy) as producer:
        producer.send("orders", b"three")


@pytest.mark.nightly
class FullDisk(FileChannel):
    def pwrite(self, fd: int, data: object, offset: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_promotion_on_a_full_disk_says_what_it_was_about(scene: Scene) -> None:
    """It is repeated when there is room."""
    copied(scene)
    with pytest.raises(DiskFull, match="promoting it: ENOSPC"):
        promote(scene.copy, channel=FullDisk())
    assert promote(scene.copy).ends == flushed_of(scene.primary)


def test_a_copy_that_is_kept_is_not_promoted(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        send(store, b"one")
        await_copy(scene)
        with pytest.raises(StoreRunning, match="in use by process"):
            promote(scene.copy)


@pytest.mark.nightly
def test_only_a_complete_replica_is_promoted(scene: Scene) -> None:
    copied(scene)
    with pytest.raises(ReplicaRefused, match="is no replica"):
        promote(scene.primary)
    directory = StoreDirectory(scene.copy)
    mark = load_mark(directory)
    assert mark is not None
    save_mark(directory, replace(mark, complete=False))
    with pytest.raises(ReplicaRefused, match="never had all"):
        promote(scene.copy)


def test_an_old_primary_rejoins_and_what_only_it_had_is_counted(scene: Scene) -> None:
    """It follows the promoted store then, byte for byte, and has its surplus in quarantine."""
    copied(scene)
    with scene.open() as store:
        send(store, *(b"only here %d" % number * 50 for number in range(300)))
    promote(scene.copy)
    old, new = scene.primary, scene.copy
    port = free_port()
    with scene.open(new, listen=f"127.0.0.1:{port}") as store:
        send(store, b"three")
        said = command("rejoin", *scene.arguments(old, port))
        assert "300 messages" in said
        assert not values_of(old)[2:]
        renamed = Scene(scene.path, scene.certificates, scene.templates, port)
        with renamed.follower(old):
            wait_until(lambda: flushed_of(old) == flushed_of(new), "the old primary has what the new one has")
            wait_until(lambda: (mark := load_mark(StoreDirectory(old))) is not None and mark.complete, "it is complete")
    assert log_of(old) == log_of(new)
    kept = b"".join(path.read_bytes() for path in sorted((old / "lanes/0/quarantine").glob("torn-*.bin")))
    kept += b"".join(path.read_bytes() for path in sorted((old / "lanes/0/quarantine").glob("segment-*")))
    assert sum(b"only here %d" % number in kept for number in range(300)) == 300
    assert known_replicas(StoreDirectory(old)) == []  # they followed what it was


def test_a_primary_that_meets_the_promoted_store_stops_and_does_not_start_again(scene: Scene) -> None:
    copied(scene)
    promote(scene.copy)
    old = scene.open()
    with scene.open(scene.copy, listen=f"127.0.0.1:{free_port()}", peers=f"localhost:{scene.port}"):
        wait_until(lambda: not old.running, "the old primary has stopped")
    with pytest.raises(StoreSuperseded, match="commitlog rejoin"):
        old.close()
    with pytest.raises(StoreSuperseded, match="commitlog rejoin"):
        scene.open()
    with pytest.raises(StoreSuperseded, match="commitlog rejoin"):
        commitlog.Producer(scene.primary)
    with StoreWatch(scene.primary) as watch:
        (reason,) = health(watch.snapshot(), HealthLimits(full_percent=100)).reasons
    assert (reason.code, reason.severity) == ("stopped", "down")
    assert "was promoted" in reason.text
    assert reason.command.startswith("commitlog rejoin ")
    assert "superseded: a replica of it was promoted" in command("stat", str(scene.primary))


@pytest.mark.nightly
def test_of_two_promoted_copies_the_later_one_goes_on(scene: Scene) -> None:
    """The other one stops when it hears of it. What only that had comes to its quarantine."""
    copied(scene)
    other, port = scene.path / "other", free_port()
    shutil.copytree(scene.copy, other)
    promote(scene.copy)
    with scene.open(scene.copy, listen="") as store:
        send(store, b"three", b"four")
    promote(other)
    with scene.open(other, listen=f"127.0.0.1:{port}") as store:
        send(store, b"five")
        with pytest.raises(StoreSuperseded):
            scene.open(scene.copy, peers=f"localhost:{port}")
        said = command("rejoin", *scene.arguments(scene.copy, port), "--name", "copy")
        assert "2 messages" in said
        with scene.follower(port=port):
            wait_until(lambda: flushed_of(scene.copy) == flushed_of(other), "the copy follows")
    assert values_of(scene.copy) == values_of(other) == [b"one", b"two", b"five"]


@pytest.mark.nightly
def test_a_backup_does_not_take_over_from_a_store_that_runs(scene: Scene) -> None:
    """A backup that is tried out would begin a later epoch, and the store would have to stop."""
    copied(scene)
    trial, port = scene.path / "trial", free_port()
    commitlog.backup(scene.primary, trial)
    with scene.open(listen=f"127.0.0.1:{port}") as store:
        with pytest.raises(StoreRefused, match=f"localhost:{port} runs this store"):
            scene.open(trial, peers=f"localhost:{port}")
        assert store.running
    assert StoreDirectory(trial).load().is_backup
    with scene.open(trial, peers=f"localhost:{port}"):
        pass


@pytest.mark.nightly
def test_a_start_asks_the_peers_and_passes_over_those_that_do_not_answer(scene: Scene) -> None:
    copied(scene)
    epoch = promote(scene.copy).epoch
    port = free_port()
    peers = f"localhost:{free_port()} localhost:{port}"
    with scene.open(scene.copy, listen=f"127.0.0.1:{port}"), pytest.raises(StoreSuperseded, match=f"epoch {epoch}"):
        scene.open(peers=peers)
    assert "does not say its epoch" in (scene.primary / "logs" / "supervisor.log").read_text()


@pytest.mark.nightly
def test_a_second_promotion_and_a_copy_of_an_older_epoch(scene: Scene) -> None:
    """A copy that has nothing of its own follows the store of a later epoch."""
    copied(scene)
    with scene.open(), scene.follower(scene.path / "third", name="third"):
        await_copy(scene, scene.path / "third")
    first = promote(scene.copy).epoch
    with scene.open(scene.copy) as store:
        send(store, b"three")
        third = scene.path / "third"
        with scene.follower(third, name="third"):
            wait_until(lambda: flushed_of(third) == flushed_of(scene.copy), "the third follows")
    assert promote(third).epoch > first
    assert values_of(third) == [b"one", b"two", b"three"]

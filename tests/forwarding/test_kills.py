"""Forwarders and brokers that are killed: nothing is doubled or lost."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.forwarder_files import forwarders
from commitlog.disk.store_directory import StoreDirectory
from commitlog.forwarding.kafka_positions import TopicPosition
from commitlog.forwarding.kafka_transactions import Session
from commitlog.replicas.promotion import promote
from tests.builders.hand_made import small_store
from tests.forwarding.kafka import Broker, running_broker
from tests.forwarding.running import command, forward, forwarding
from tests.replicas.conftest import certificates, templates
from tests.replicas.scene import Scene, kill_all
from tests.serving.asking import Certificates
from tests.waiting import wait_until

__all__ = ["certificates", "templates"]

EXIT_FENCED = 3


@contextmanager
def sending(store: commitlog.Store, keys: int = 0) -> Iterator[list[bytes]]:
    """Sends numbered messages to `orders` in another thread; afterwards all are flushed.

    With `keys` there are so many keys, which take turns.
    """
    sent: list[bytes] = []
    enough = threading.Event()

    def send() -> None:
        with store.producer() as producer:
            while not enough.wait(0.001):
                for _ in range(20):
                    sent.append(b"%d" % len(sent))
                    producer.send("orders", sent[-1], key=f"{len(sent) % keys}" if keys else None)
            producer.flush()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        enough.set()
        thread.join()


def killed_many_times(path: Path, kafka: Broker, kills: int) -> None:
    """Kills the forwarder anywhere in a transaction, or (each fifth time) while it starts."""
    name, chance = kafka.new_name(), random.Random(kills)
    with commitlog.Store.open(path) as store:
        with sending(store) as sent:
            for number in range(kills):
                with forwarding(path, kafka.url, "--topic-map", f"orders={name}") as process:
                    if number % 5 < 4:
                        wait_until(partial(_forwards, path, process.pid), "it forwards")
                    until = len(sent) + chance.randrange(3_000)
                    wait_until(partial(_has, sent, until), "messages come")
                    assert process.poll() is None
        forward(path, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == {0: sent}
    assert len(kafka.read(name, "read_uncommitted")[0]) >= len(sent)


def _has(sent: list[bytes], count: int) -> bool:
    return len(sent) >= count


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_keys_keep_their_order_through_kills_of_forwarder_and_broker(tmp_path: Path) -> None:
    """Each message is there once, and those of one key are in one partition in their order."""
    room, path, chance = tmp_path / "kafka", tmp_path / "store", random.Random(38)
    room.mkdir()
    options = ["--by-key", "--partitions", "5", "--wait"]
    with running_broker(room, session_timeout_ms=5000) as kafka, commitlog.Store.open(path) as store:
        with sending(store, keys=11) as sent:
            for life in range(8):
                with forwarding(path, kafka.url, *options) as process:
                    wait_until(partial(_forwards, path, process.pid), "it forwards")
                    if life % 3 == 1:
                        kafka.kill()
                        kafka.start()
                    wait_until(partial(_has, sent, len(sent) + chance.randrange(3_000)), "messages come")
        forward(path, kafka.url, by_key=True, partitions=5)
        found = [[one.value() for one in partition] for partition in kafka.read("orders").values()]
    wanted = [[value for value in sent if int(value) % 11 == key] for key in range(11)]
    for values in wanted:
        (where,) = {number for number, partition in enumerate(found) if not set(values).isdisjoint(partition)}
        assert [value for value in found[where] if int(value) % 11 == int(values[0]) % 11] == values


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_copy_takes_over_while_its_store_is_forwarded(
    tmp_path: Path, certificates: Certificates, templates: Path, kafka: Broker
) -> None:
    """The primary and its forwarder are killed, and all that the copy has is there once."""
    scene = Scene(tmp_path, certificates, templates)
    name, sent = kafka.new_name(), [b"%d" % number for number in range(3000)]
    options, topic_map = ["--topic-map", f"orders={name}"], [f"orders={name}"]
    with scene.follower():
        store = scene.open()
        producer = commitlog.Producer(scene.primary)
        with forwarding(scene.primary, kafka.url, *options) as process:
            for value in sent[:1000]:
                producer.send("orders", value)
            wait_until(partial(_forwards, scene.primary, process.pid), "it forwards")
            for value in sent[1000:]:
                producer.send("orders", value)
            producer.flush("committed", 60)
            kill_all(store)
        producer.close()
    promote(scene.copy)
    with commitlog.Store.open(scene.copy) as store, store.producer() as producer:
        kept = [message.value for message in commitlog.Reader(scene.copy, topic="orders")]
        with forwarding(scene.copy, kafka.url, *options) as process:
            for value in (b"a", b"b", b"c"):
                producer.send("orders", value)
            producer.flush("flushed", 60)
            wait_until(partial(_forwards, scene.copy, process.pid), "the copy is forwarded")
    forward(scene.copy, kafka.url, topic_map=topic_map)
    found = kafka.values(name)[0]
    assert kept == sent[: len(kept)]
    assert [value for value in found if value in {*kept, b"a", b"b", b"c"}] == [*kept, b"a", b"b", b"c"]
    assert sorted(set(found)) == sorted(found)


def _forwards(path: Path, pid: int) -> bool:
    """Whether this process has committed anything."""
    return any(state.pid == pid and state.transactions for state in forwarders(StoreDirectory(path)))


def test_a_killed_forwarder_doubles_and_loses_nothing(tmp_path: Path, kafka: Broker) -> None:
    killed_many_times(tmp_path / "store", kafka, 1)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_forwarder_that_is_killed_often_doubles_and_loses_nothing(tmp_path: Path, kafka: Broker) -> None:
    killed_many_times(tmp_path / "store", kafka, 60)


def dies_after_the_messages(patch: pytest.MonkeyPatch, outside: bool) -> None:
    """The forwarder dies when its first messages are committed.

    With `outside` their positions are not committed then.

    That is the mistake: a transaction for the messages, and another one for the positions.
    """
    real, commits = Session.commit, itertools.count()

    def commit(self: Session, moved: Mapping[str, TopicPosition], *are_same: Callable[[], bool]) -> None:
        has_messages = next(commits) > 0  # the first one says who forwards
        real(self, {} if has_messages and outside else moved, *are_same)
        if has_messages:
            raise SystemExit

    patch.setattr(Session, "commit", commit)


@pytest.mark.parametrize("outside", [False, True], ids=["as it is", "planted: position outside the transaction"])
def test_a_position_outside_the_transaction_would_be_caught(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch, outside: bool
) -> None:
    store, name = small_store(tmp_path / "store", rows=10, lanes=1, topics=("orders",)), kafka.new_name()
    with monkeypatch.context() as patch:
        dies_after_the_messages(patch, outside)
        with pytest.raises(SystemExit):
            forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    wanted = [body for _, _, body in sorted(store.rows("orders"))]
    assert (kafka.values(name) == {0: wanted}) is not outside


@pytest.mark.nightly
def test_a_forwarder_of_a_copy_of_the_store_fences_the_first_one(tmp_path: Path, kafka: Broker) -> None:
    """The first one ends with an exit code of its own, when it has something to forward."""
    path, name = tmp_path / "store", kafka.new_name()
    with commitlog.Store.open(path) as store, store.producer() as producer:
        producer.send("orders", b"one")
        producer.flush()
        with forwarding(path, kafka.url, "--topic-map", f"orders={name}") as first:
            wait_until(partial(_forwards, path, first.pid), "the first one forwards")
            copy = tmp_path / "copy"
            commitlog.backup(path, copy)
            commitlog.Store.open(copy).close()  # a store of its own now: a backup is not forwarded
            shutil.rmtree(copy / "forwarders", ignore_errors=True)
            with forwarding(copy, kafka.url, "--topic-map", f"orders={name}") as second:
                wait_until(lambda: [one for one in forwarders(StoreDirectory(copy)) if one.state == "forwarding"])
                producer.send("orders", b"two")
                producer.flush()
                _, said = first.communicate(timeout=60)
                assert first.returncode == EXIT_FENCED
                last = said.splitlines()[-1].decode()
                assert f"process {second.pid} on " in last
                assert "[ForwarderFenced]" in last
                assert second.poll() is None
    assert kafka.values(name) == {0: [b"one"]}


@pytest.mark.nightly
def test_broker_and_store_are_killed_and_started_while_it_runs(tmp_path: Path) -> None:
    """It waits for both, also at its start, and ends calmly with SIGTERM."""
    room = tmp_path / "kafka"
    room.mkdir()
    path = tmp_path / "store"
    with running_broker(room, session_timeout_ms=5000) as kafka:
        kafka.kill()
        with commitlog.Store.open(path) as store, store.producer() as producer:
            producer.send("orders", b"one")
            producer.flush()
        process = command(path, kafka.url, "--wait")
        try:
            wait_until(lambda: [one for one in forwarders(StoreDirectory(path)) if one.state == "waiting"])
            kafka.start()
            wait_until(partial(_forwards, path, process.pid), "it forwards")
            kafka.kill()
            with commitlog.Store.open(path) as store, store.producer() as producer:
                producer.send("orders", b"two")
                producer.flush()
                kafka.start()
                wait_until(lambda: kafka.values("orders") == {0: [b"one", b"two"]}, "it goes on")
            process.terminate()
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()

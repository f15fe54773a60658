"""Topics that change under a forwarder: partitions are added, the store deletes one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.forwarder_files import forwarders
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DataLoss, ForwardError, StoreNotFound
from tests.command_line import run
from tests.forwarding.kafka import Broker
from tests.forwarding.running import forward
from tests.forwarding.test_changes import running, send
from tests.waiting import wait_until


def last_error(path: Path) -> str:
    return "".join(one.last_error for one in forwarders(StoreDirectory(path)))


@pytest.mark.nightly
def test_partitions_that_are_added_in_kafka(tmp_path: Path, kafka: Broker) -> None:
    """A topic waits while one of its lanes has no partition, and the other topic goes on."""
    path, name, other = tmp_path / "store", kafka.new_name(), kafka.new_name()
    kafka.create(name, 1)
    kafka.create(other, 64)
    with (
        commitlog.Store.open(path) as store,
        store.producer() as first,
        store.producer() as second,
        running(path, kafka.url, topic_map=[f"orders={name}", f"other={other}"]) as made,
    ):
        send(first, "other", b"before")
        send(first, "orders", b"one")
        wait_until(lambda: kafka.values(name) == {0: [b"one"]}, "it forwards")
        send(second, "orders", b"two")
        send(first, "orders", b"three")
        wait_until(lambda: f"{name} in Kafka has 1 partitions" in last_error(path), "the topic is left out")
        send(first, "other", b"other")
        wait_until(lambda: kafka.values(other) == {0: [b"before", b"other"]}, "the other one goes on")
        kafka.grow(name, 2)
        made.look()
        wait_until(lambda: kafka.values(name) == {0: [b"one", b"three"], 1: [b"two"]}, "both lanes are there")


@pytest.mark.nightly
def test_partitions_that_are_added_where_keys_choose(tmp_path: Path, kafka: Broker) -> None:
    path, name = tmp_path / "store", kafka.new_name()
    kafka.create(name, 1)
    sent = [b"%d" % number for number in range(200)]
    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, kafka.url, by_key=True, topic_map=[f"orders={name}"]),
    ):
        for number, value in enumerate(sent):
            producer.send("orders", value, key=f"k{number % 20}")
            if number == 100:
                producer.flush("flushed", 60)
                wait_until(lambda: len(kafka.values(name).get(0, [])) == 101, "the first ones are forwarded")
                kafka.grow(name, 3)
        producer.flush("flushed", 60)

        def arrived() -> list[bytes]:
            return [value for values in kafka.values(name).values() for value in values]

        wait_until(lambda: len(arrived()) >= 200, "all are forwarded")
        assert sorted(arrived()) == sorted(sent)
    assert kafka.values(name)[0][:101] == sent[:101]


@pytest.mark.nightly
def test_a_topic_that_the_store_deletes_and_makes_again(tmp_path: Path, kafka: Broker) -> None:
    """What was forwarded stays, what comes later follows it; what goes unread is named as lost."""
    path, name = tmp_path / "store", kafka.new_name()
    kafka.create(name, 64)
    delete = ["topics", path, "--delete", "orders", "--yes"]
    options: dict[str, Any] = {"topic_map": [f"orders={name}"]}
    with commitlog.Store.open(path) as store, store.producer() as producer:
        with running(path, kafka.url, **options):
            send(producer, "orders", b"one", b"two")
            wait_until(lambda: kafka.values(name) == {0: [b"one", b"two"]}, "it forwards")
            wait_until(lambda: run(*delete).returncode == 0, "its reader has moved, so the topic is deleted")
            send(producer, "orders", b"three")
            wait_until(lambda: kafka.values(name) == {0: [b"one", b"two", b"three"]}, "it goes on")
        send(producer, "orders", b"unread", b"unread, too")
        refused = run(*delete)
        assert (refused.returncode, b"TopicInUse" in refused.stderr) == (1, True)
        assert run(*delete, "--force").returncode == 0
        send(producer, "orders", b"last")
        with pytest.raises(DataLoss, match="topic orders, lane 0: 2 messages from 3 on were deleted"):
            forward(path, kafka.url, **options)
        forward(path, kafka.url, accept_loss=True, **options)
    assert kafka.values(name) == {0: [b"one", b"two", b"three", b"last"]}


def test_a_lane_that_has_lost_messages_before_it_was_seen(tmp_path: Path, kafka: Broker) -> None:
    """They are named as lost, as those behind a position are. For a new name there was no loss."""
    path, name, other = tmp_path / "store", kafka.new_name(), kafka.new_name()
    kafka.create(name, 64)
    kafka.create(other, 64)
    options: dict[str, Any] = {"topic_map": [f"orders={name}"]}
    with commitlog.Store.open(path) as store, store.producer() as first, store.producer() as second:
        send(first, "orders", b"one")
        forward(path, kafka.url, **options)
        send(second, "orders", b"unread", b"kept")
        trim = ["topics", path, "--trim", "orders", "--before", '{"1": 1}', "--yes", "--force"]
        assert run(*trim).returncode == 0
        with pytest.raises(DataLoss, match="topic orders, lane 1: 1 messages from 0 on were deleted"):
            forward(path, kafka.url, **options)
        forward(path, kafka.url, accept_loss=True, **options)
        assert kafka.values(name) == {0: [b"one"], 1: [b"kept"]}
        for _ in range(2):
            forward(path, kafka.url, name="new", topic_map=[f"orders={other}"])
            assert kafka.values(other) == {0: [b"one"], 1: [b"kept"]}


@pytest.mark.nightly
def test_a_store_that_is_restored_under_a_forwarder(tmp_path: Path, kafka: Broker) -> None:
    """It is refused by name, and the next forwarder goes on where the backup has ended."""
    path, name = tmp_path / "store", kafka.new_name()
    kafka.create(name, 64)
    options: dict[str, Any] = {"topic_map": [f"orders={name}"]}
    with commitlog.Store.open(path) as store, store.producer() as producer:
        send(producer, "orders", b"one", b"two")
    commitlog.backup(path, tmp_path / "backup")
    with commitlog.Store.open(path) as store, store.producer() as producer:
        send(producer, "orders", b"lost", b"lost, too")
    with running(path, kafka.url, **options) as made:
        wait_until(lambda: kafka.values(name) == {0: [b"one", b"two", b"lost", b"lost, too"]}, "it forwards")
        commitlog.backup(tmp_path / "backup", tmp_path / "restored")
        path.rename(tmp_path / "broken")
        (tmp_path / "restored").rename(path)
        with commitlog.Store.open(path) as store, store.producer() as producer:
            send(producer, "orders", b"three", b"four", b"five")
            error = made.ended()
    assert isinstance(error, ForwardError | StoreNotFound)  # it may have looked just between them
    forward(path, kafka.url, **options)
    assert kafka.values(name) == {0: [b"one", b"two", b"lost", b"lost, too", b"three", b"four", b"five"]}
    shutil.rmtree(tmp_path / "broken")

"""What changes under a forwarder: the store is killed, a topic of Kafka's is made again."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.disk.forwarder_files import ForwarderStatistics, forwarders
from commitlog.disk.replica_mark import ReplicaMark, save_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, DataLoss, ForwardError, TargetChanged
from commitlog.forwarding import cluster, forwarder, kafka_positions, kafka_transactions, targets
from commitlog.forwarding.cluster import Cluster
from commitlog.forwarding.forward_settings import settings_of
from commitlog.forwarding.forwarder import Forwarder
from commitlog.replicas.promotion import promote
from commitlog.watching.health import health
from commitlog.watching.snapshot import StoreWatch
from tests.builders.hand_made import small_store
from tests.forwarding.kafka import Broker
from tests.forwarding.running import forward
from tests.ports import free_ports
from tests.replicas.scene import kill_all
from tests.waiting import wait_until


class Running:
    """A forwarder in this process, which looks at Kafka's topics when it is told to."""

    def __init__(self, store: Path, url: str, **options: Any) -> None:
        self.stop = threading.Event()
        self._forwarder = Forwarder(settings_of(store, url, **options), self.stop)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._forwarder.run()
        except CommitLogError as error:
            self.error = error.with_traceback(None)  # its frames hold the clients, as do those of its context
            self.error.__context__ = None

    @staticmethod
    def look() -> None:
        """Lets it look at Kafka's topics from now on: as it does by itself after 30 seconds."""
        vars(forwarder)["_CHECK_NS"] = 0

    def ended(self) -> BaseException | None:
        """Waits for its end by itself, and returns why."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.error


@contextmanager
def running(store: Path, url: str, *, doubt_seconds: float = 1e6, **options: Any) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forwarder, "_CHECK_NS", 1 << 62)
        patch.setattr(kafka_transactions, "_DOUBT_SECONDS", doubt_seconds)
        made = Running(store, url, **options)
        try:
            yield made
        finally:
            made.stop.set()
            made.thread.join()
            SEGMENTS.clear()


def send(producer: commitlog.Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.send(topic, value)
    producer.flush("flushed", 60)


@pytest.mark.nightly
@pytest.mark.leaves_pools
@pytest.mark.filterwarnings("default::commitlog.errors.ReadingWarning")  # it may look while nobody runs the store
def test_a_store_that_is_killed_and_started_again(tmp_path: Path, kafka: Broker) -> None:
    """All processes of the store are killed. What was accepted is in Kafka once, in its order."""
    path, name, sent = tmp_path / "store", kafka.new_name(), list[bytes]()
    kafka.create(name, 64)
    store = commitlog.Store.open(path)
    with running(path, kafka.url, topic_map=[f"orders={name}"]):
        for life in range(3):
            producer = commitlog.Producer(path)
            for number in range(500):
                sent.append(b"%d %d" % (life, number))
                producer.send("orders", sent[-1])
                if number == 100:
                    producer.flush("flushed", 60)
            kill_all(store)
            producer.close()
            store = commitlog.Store.open(path)
        wait_until(lambda: kafka.values(name) == {0: sent}, "all is forwarded")
    store.close()
    forward(path, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == {0: sent}


@pytest.mark.nightly
def test_a_topic_that_is_made_again_under_a_forwarder(tmp_path: Path, kafka: Broker) -> None:
    """Until it notices, it feeds the new topic. What came after the old one is there once."""
    path, name = tmp_path / "store", kafka.new_name()
    values = [b"%d" % number for number in range(100)]
    kafka.create(name, 64)
    with commitlog.Store.open(path) as store, store.producer() as producer:
        with running(path, kafka.url, topic_map=[f"orders={name}"]) as made:
            send(producer, "orders", *values[:10])
            wait_until(lambda: kafka.values(name) == {0: values[:10]}, "it forwards")
            kafka.delete(name)
            kafka.create(name, 64)
            send(producer, "orders", *values[10:50])
            wait_until(lambda: kafka.values(name) == {0: values[10:50]}, "it feeds the new topic")
            made.look()
            error = made.ended()
        assert isinstance(error, TargetChanged)
        assert "removed and made again" in str(error)
        send(producer, "orders", *values[50:])
        forward(path, kafka.url, topic_map=[f"orders={name}"], new_target="continue")
    assert kafka.values(name) == {0: values[10:]}


@pytest.mark.nightly
def test_a_topic_that_is_removed_under_a_transaction_is_named(tmp_path: Path, kafka: Broker) -> None:
    """The transaction asks what has become of the topic, where it would wait for a minute."""
    path, name = tmp_path / "store", kafka.new_name()
    kafka.create(name, 64)
    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, kafka.url, topic_map=[f"orders={name}"], doubt_seconds=0) as made,
    ):
        send(producer, "orders", b"first")
        wait_until(lambda: kafka.values(name) == {0: [b"first"]}, "it forwards")
        kafka.delete(name)
        send(producer, "orders", b"second")
        error = made.ended()
    assert isinstance(error, TargetChanged)
    assert f"topic {name} in Kafka is not the one" in str(error)


def test_topics_are_made_while_others_are_forwarded(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one does not wait for the last one, and neither does the end of the forwarder."""
    prefix, stop, made = kafka.new_name(), threading.Event(), list[str]()
    names = [f"{prefix}-{number}" for number in range(4)]
    create = Cluster.create

    def note(self: Cluster, name: str, *options: Any) -> None:
        if name in names:
            made.append(name)
        if name == names[2]:
            wait_until(lambda: kafka.values(names[0]), "the first topic is forwarded")
            stop.set()
        create(self, name, *options)

    monkeypatch.setattr(Cluster, "create", note)
    monkeypatch.setattr(forwarder, "TRANSACTION_NS", 0)
    monkeypatch.setattr(targets, "AT_ONCE", 1)
    store = small_store(tmp_path / "store", rows=2, lanes=1, topics=tuple(names))
    Forwarder(settings_of(store.path, kafka.url), stop).run()
    SEGMENTS.clear()
    assert made == names[:3]


def test_what_waits_grows_while_no_broker_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store tells how many messages wait, and for how long, although nothing moves."""
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 1.0)
    path = tmp_path / "store"
    directory = StoreDirectory(path)

    def shown() -> ForwarderStatistics | None:
        return next(iter(forwarders(directory)), None)

    def is_behind(messages: int) -> bool:
        one = shown()
        return one is not None and (one.state, one.behind_messages) == ("waiting", messages)

    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, f"kafka://127.0.0.1:{free_ports(1)[0]}", wait=True),
    ):
        send(producer, "orders", b"first")
        wait_until(lambda: is_behind(1), "one message waits")
        send(producer, "orders", *[b"later"] * 5)
        wait_until(lambda: is_behind(6), "all of them wait")
    before = shown()
    assert before is not None
    wait_until(lambda: (shown() or before).behind_ms > before.behind_ms, "the age grows without a forwarder")


@pytest.mark.nightly
def test_a_kafka_that_does_not_answer_is_said_to(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without anything to forward, and in a commit that waits: the store's health says it."""
    monkeypatch.setattr(kafka_transactions, "_COMMIT_SECONDS", 1e6)
    monkeypatch.setattr(cluster, "SILENT_SECONDS", 1.0)
    path, name = tmp_path / "store", kafka.new_name()
    kafka.create(name, 64)

    def is_said(state: str, messages: int) -> bool:
        if [(one.state, one.behind_messages) for one in forwarders(StoreDirectory(path))] != [(state, messages)]:
            return False
        with StoreWatch(path, only_health=True) as watch:
            found = [reason for reason in health(watch.snapshot()).reasons if reason.code == "forwarder-waiting"]
        assert len(found) == (state == "waiting")
        return not found or (f"{messages:,} message" in found[0].text and "does not answer" in found[0].text)

    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, kafka.url, topic_map=[f"orders={name}"]),
    ):
        send(producer, "orders", b"first")
        wait_until(lambda: kafka.values(name) == {0: [b"first"]}, "it forwards")
        with kafka.paused():
            wait_until(lambda: is_said("waiting", 0), "it hears nothing of Kafka")
            send(producer, "orders", b"second", b"third")
            wait_until(lambda: is_said("waiting", 2), "two messages wait for Kafka")
        wait_until(lambda: is_said("forwarding", 0), "it goes on")
    assert kafka.values(name) == {0: [b"first", b"second", b"third"]}


@pytest.mark.nightly
def test_a_forwarder_that_has_done_its_work_gives_the_memory_back(tmp_path: Path, kafka: Broker) -> None:
    """Segments that it has mapped count as its memory: only ends of queues stay mapped."""
    path, name, values = tmp_path / "store", kafka.new_name(), [bytes(900_000)] * 30
    kafka.create(name, 64)

    def is_given_back() -> bool:
        segment = StoreDirectory(path).lane_directory(0).segment_path(0)
        found = Path("/proc/self/smaps").read_text().split(f"{segment}\n")
        resident = (re.search(r"^Rss: +(\d+) kB", mapping, re.MULTILINE) for mapping in found[1:])
        return sum(int(size[1]) for size in resident if size) < 9_000  # a huge page of the file, or four

    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, kafka.url, topic_map=[f"orders={name}"]) as made,
    ):
        send(producer, "orders", *values)
        wait_until(lambda: kafka.values(name) == {0: values}, "it forwards")
        assert not is_given_back()
        made.look()
        wait_until(is_given_back, "the segment is not in its memory any more")


@pytest.mark.nightly
def test_two_topics_that_go_to_one_are_both_forwarded_again(tmp_path: Path, kafka: Broker) -> None:
    """One of them came later, and the topic of Kafka's is made again after that."""
    path, name = tmp_path / "store", kafka.new_name()
    maps = [f"orders={name}", f"returns={name}"]
    kafka.create(name, 64)
    with (
        commitlog.Store.open(path) as store,
        store.producer() as producer,
        running(path, kafka.url, topic_map=maps, new_target="again") as made,
    ):
        send(producer, "orders", b"order")
        wait_until(lambda: kafka.values(name) == {0: [b"order"]}, "it forwards")
        send(producer, "returns", b"return")
        wait_until(lambda: kafka.values(name) == {0: [b"order", b"return"]}, "both are there")
        kafka.delete(name)
        kafka.create(name, 64)
        made.look()
        wait_until(lambda: sorted(kafka.values(name).get(0, [])) == [b"order", b"return"], "both are there again")


def test_a_copy_that_takes_over_without_all_that_was_forwarded(tmp_path: Path, kafka: Broker) -> None:
    """The forwarder goes back to where the copy was promoted: each message of the copy is in Kafka.

    What only the old primary had stays in Kafka, too. The old primary is not forwarded any more.
    """
    old, new, name = tmp_path / "old", tmp_path / "new", kafka.new_name()
    options = {"topic_map": [f"orders={name}"]}
    send_and_stop(old, b"one", b"two")
    shutil.copytree(old, new)
    send_and_stop(old, b"only here", b"this, too")
    forward(old, kafka.url, **options)
    save_mark(StoreDirectory(new), ReplicaMark("h:1", "copy", complete=True))
    promote(new)
    forward(new, kafka.url, **options)
    send_and_stop(new, b"three", b"four", b"five")
    for _ in range(2):  # the second one goes on where the first one was
        forward(new, kafka.url, **options)
    assert kafka.values(name) == {0: [b"one", b"two", b"only here", b"this, too", b"three", b"four", b"five"]}
    with pytest.raises(ForwardError, match="a replica was promoted"):
        forward(old, kafka.url, **options)


def test_a_restored_backup_without_all_that_was_forwarded(tmp_path: Path, kafka: Broker) -> None:
    """The store has grown past the position by then: no new message is left out.

    A forwarder knows the history of the store that it has forwarded, and so where another restore
    of the backup has parted from that.
    """
    store, name = tmp_path / "store", kafka.new_name()
    options = {"topic_map": [f"orders={name}"]}
    send_and_stop(store, b"one", b"two")
    commitlog.backup(store, tmp_path / "backup")
    send_and_stop(store, b"lost", b"lost, too")
    forward(store, kafka.url, **options)
    for values in ((b"three", b"four", b"five"), (b"other", b"others")):
        shutil.rmtree(store)
        commitlog.backup(tmp_path / "backup", store)
        send_and_stop(store, *values)
        forward(store, kafka.url, **options)
    both, first, second = [b"one", b"two"], [b"three", b"four", b"five"], [b"other", b"others"]
    assert kafka.values(name) == {0: [*both, b"lost", b"lost, too", *first, *second]}


@pytest.mark.nightly
def test_a_backup_from_before_a_promotion(tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows nothing of the promoted copy. The way out was another name, which doubles all.

    The positions of a package that wrote no history are refused.
    """
    store, copy, name, other = tmp_path / "store", tmp_path / "copy", kafka.new_name(), kafka.new_name()
    send_and_stop(store, b"one", b"two")
    commitlog.backup(store, tmp_path / "backup")
    send_and_stop(store, b"three")
    shutil.copytree(store, copy)
    save_mark(StoreDirectory(copy), ReplicaMark("h:1", "copy", complete=True))
    promote(copy)
    send_and_stop(copy, b"four")
    forward(copy, kafka.url, topic_map=[f"orders={name}"])
    with monkeypatch.context() as patch:
        patch.setattr(kafka_positions, "epochs_to_json", lambda epochs: [])
        forward(copy, kafka.url, name="older", topic_map=[f"orders={other}"])
    shutil.rmtree(store)
    commitlog.backup(tmp_path / "backup", store)
    send_and_stop(store, b"five", b"six", b"seven")
    forward(store, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == {0: [b"one", b"two", b"three", b"four", b"five", b"six", b"seven"]}
    with pytest.raises(DataLoss, match="was never in epoch"):
        forward(store, kafka.url, name="older", topic_map=[f"orders={other}"])


def send_and_stop(path: Path, *values: bytes) -> None:
    with commitlog.Store.open(path) as store, store.producer() as producer:
        send(producer, "orders", *values)

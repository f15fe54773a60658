"""A real Kafka gets what a store has: each message once, in order, with all that belongs to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.forwarder_files import forwarders
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import (
    CorruptRecord,
    DataLoss,
    ForwardError,
    MessageRefused,
    OffsetOutOfRange,
    ReaderError,
    ReaderInUse,
    TargetChanged,
    TargetUnavailable,
    TopicRefused,
    UnknownTopic,
)
from commitlog.forwarding import cluster
from commitlog.reading.named_readers import NamedReaders
from tests.builders import vector_store
from tests.builders.hand_made import HandMadeStore, small_store
from tests.builders.typed_topic import declare
from tests.forwarding.kafka import Broker
from tests.forwarding.running import forward, forward_when_allowed, forwarding
from tests.nightly import with_nightly
from tests.ports import free_port

POSITIONS = "commitlog-forward-kafka-{}"


def own_topic(path: Path, kafka: Broker, topic: str = "orders", rows: int = 100) -> tuple[HandMadeStore, str]:
    """A store with one topic in two lanes, and the name that the topic gets in Kafka."""
    return small_store(path, rows, topics=(topic,)), kafka.new_name()


def append(store: HandMadeStore, lane: int, *bodies: bytes) -> None:
    """More messages of `orders`."""
    for body in bodies:
        store.lane(lane).append("orders", body)
    store.publish()


def bodies(store: HandMadeStore, topic: str = "orders") -> dict[int, list[bytes]]:
    """The values of each lane, in their order."""
    found: dict[int, list[bytes]] = {}
    for lane, _, body in store.rows(topic):
        found.setdefault(lane, []).append(body)
    return found


def test_everything_of_a_message_arrives(tmp_path: Path, kafka: Broker) -> None:
    """Value, key, headers, RocketMQ's properties, time; lane n is partition n. Other topics too."""
    store, (name, other) = HandMadeStore(tmp_path / "store"), (kafka.new_name(), kafka.new_name())
    lane = store.lane(3)
    sent = [
        lane.append("orders", b"apple", key="k1", tags="red", properties={"trace": "é", "b": "2"}),
        lane.append("orders", b"pear"),
        lane.append("orders", b"", key="k2"),
    ]
    store.lane(0).append("more", b"plum", tags="blue")
    store.publish()
    forward(store.path, kafka.url, topic_map=[f"orders={name}", f"more={other}"])
    found = kafka.read(name)
    assert {number: len(messages) for number, messages in found.items() if messages} == {3: 3}
    seen = [(one.value(), one.key(), one.headers(), one.timestamp()) for one in found[3]]
    times = [(1, record.store_timestamp) for record in sent]
    assert seen == [
        (b"apple", b"k1", [("TAGS", b"red"), ("trace", "é".encode()), ("b", b"2")], times[0]),
        (b"pear", None, None, times[1]),
        (b"", b"k2", None, times[2]),
    ]
    assert [one.headers() for one in kafka.read(other)[0]] == [[("TAGS", b"blue")]]


def test_each_run_goes_on_where_the_last_one_was(tmp_path: Path, kafka: Broker) -> None:
    """The position is Kafka's: it counts although the reader's file in the store is gone."""
    store, name = own_topic(tmp_path / "store", kafka)
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == bodies(store)
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == bodies(store)
    (store.directory.readers_directory / "kafka.json").unlink()
    append(store, 1, b"late")
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == bodies(store)
    reader = NamedReaders(store.directory).load("kafka")
    assert (reader.kind, reader.all_topics, reader.offsets) == ("forward", True, {"orders": {0: 100, 1: 101}})
    (state,) = forwarders(store.directory)
    assert (state.state, state.messages, state.bytes, state.errors, state.behind_messages) == ("stopped", 1, 4, 0, 0)


def test_another_name_forwards_everything_anew_and_only_the_topics_asked_for(tmp_path: Path, kafka: Broker) -> None:
    store = small_store(tmp_path / "store", rows=3, lanes=1)
    names = [kafka.new_name(), kafka.new_name()]
    for name in names:
        forward(store.path, kafka.url, name=name, topics=["orders"], topic_map=[f"orders={name}"])
        assert kafka.values(name) == bodies(store)
        assert NamedReaders(store.directory).load(name).offsets == {"orders": {0: 3}}


@pytest.mark.nightly
def test_a_topic_that_is_misspelt_and_one_that_is_declared(tmp_path: Path, kafka: Broker) -> None:
    """The one is an error, or a warning of a forwarder that waits; the other is not there yet."""
    store = small_store(tmp_path / "store", rows=3, lanes=1)
    declare(store, "sales", "id BIGINT")
    forward(store.path, kafka.url, topics=["sales"])
    with pytest.raises(UnknownTopic, match="no topic orderz; there are: orders, other, sales"):
        forward(store.path, kafka.url, topics=["orderz", "sales"])
    with forwarding(store.path, kafka.url, "--topic", "orderz") as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if b"orderz" in line)
    assert b"no topic orderz yet, and the forwarder waits for it; there are: orders, other, sales" in said


def test_partitions_by_key_and_their_number(tmp_path: Path, kafka: Broker) -> None:
    """Messages of one key stay in one partition and in order."""
    store, name = own_topic(tmp_path / "store", kafka, rows=30)
    forward(store.path, kafka.url, by_key=True, partitions=5, topic_map=[f"orders={name}"])
    found = kafka.read(name)
    assert len(found) == 5
    assert sorted(one.value() for messages in found.values() for one in messages) == sorted(
        value for values in bodies(store).values() for value in values
    )
    where: dict[bytes, set[int]] = {}
    for number, messages in found.items():
        for one in messages:
            where.setdefault(one.key(), set()).add(number)
    assert len(where) == 30
    assert all(len(numbers) == 1 for numbers in where.values())


@pytest.mark.nightly
def test_a_topic_with_too_few_partitions_is_named_with_the_ways_out(tmp_path: Path, kafka: Broker) -> None:
    store, name = own_topic(tmp_path / "store", kafka, rows=2)
    kafka.create(name, 1)
    with pytest.raises(ForwardError, match=f"{name} in Kafka has 1 partitions, .*give --partitions 2"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    forward(store.path, kafka.url, topic_map=[f"orders={name}"], partitions=2)
    assert kafka.values(name) == bodies(store)


def test_a_topic_that_kafka_refuses_is_named_and_the_others_go_on(tmp_path: Path, kafka: Broker) -> None:
    """`.` and `_` are one letter to Kafka; its own topics take nothing. All are named."""
    prefix = kafka.new_name()
    taken, refused, other = f"{prefix}.b", f"{prefix}_b", f"{prefix}-z"
    store = small_store(tmp_path / "store", rows=2, lanes=1, topics=(taken, refused, other, "__consumer_offsets"))
    with pytest.raises(TopicRefused, match=rf"__consumer_offsets in Kafka is Kafka's own.*; and 1 more: {refused}$"):
        forward(store.path, kafka.url)
    with pytest.raises(TopicRefused, match=rf"^topic {refused} is refused by Kafka .*--topic-map"):
        forward(store.path, kafka.url, topics=[taken, refused, other])
    expected = {topic: {0: [body for _, _, body in sorted(store.rows(topic))]} for topic in (taken, other, refused)}
    assert {topic: kafka.values(topic) for topic in (taken, other)} == {
        topic: expected[topic] for topic in (taken, other)
    }
    (state,) = forwarders(store.directory)
    assert refused in state.last_error
    forward(store.path, kafka.url, topics=[taken, refused, other], topic_map=[f"{refused}={refused}-new"])
    assert kafka.values(f"{refused}-new") == expected[refused]
    assert kafka.values(taken) == expected[taken]


def test_a_queue_of_librdkafkas_that_is_smaller_than_a_message_is_named(tmp_path: Path, kafka: Broker) -> None:
    store, name = own_topic(tmp_path / "store", kafka, rows=2)
    append(store, 1, bytes(5000))
    with pytest.raises(ForwardError, match=r"5,000 bytes .*raise queue\.buffering\.max\.kbytes"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"], properties={"queue.buffering.max.kbytes": "1"})


def test_a_message_that_kafka_refuses_is_named_and_nothing_is_skipped(tmp_path: Path, kafka: Broker) -> None:
    """Messages before it in the same transaction wait with it. With more room it goes on."""
    store, name = own_topic(tmp_path / "store", kafka, rows=50)
    append(store, 1, b"small", bytes(range(256)) * 20, b"after")
    kafka.create(name, 2, max_message_bytes="2000")
    with pytest.raises(MessageRefused, match=rf"topic orders, lane 1, offset 51: .* 5,120 bytes .* topic {name} "):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    assert len(kafka.values(name).get(1, [])) in (0, 50)
    (state,) = forwarders(store.directory)
    assert "MessageRefused" in state.last_error
    kafka.alter(name, max_message_bytes="9000")
    forward_when_allowed(store.path, kafka.url, "the broker to take larger messages", topic_map=[f"orders={name}"])
    assert kafka.values(name) == bodies(store)


@pytest.mark.nightly
def test_a_compacted_topic_names_the_message_without_a_key(tmp_path: Path, kafka: Broker) -> None:
    """One of the same value, and a larger one, are in the same batch: they are not named."""
    store = HandMadeStore(tmp_path / "store")
    for value, key in ((b"same", "k"), (b"larger than it", "k"), (b"same", None)):
        store.lane(0).append("orders", value, key=key, properties={"a\0b": "x"})
    store.publish()
    name = kafka.new_name()
    kafka.create(name, 1, cleanup_policy="compact")
    with pytest.raises(MessageRefused, match=r"lane 0, offset 2: .*without a key.*cleanup\.policy"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    other = kafka.new_name()
    kafka.create(other, 1)
    forward(store.path, kafka.url, topic_map=[f"orders={other}"])
    assert {header for one in kafka.read(other)[0] for header, _ in one.headers()} >= {r"a\x00b"}


@pytest.mark.nightly
def test_a_topic_that_was_made_again_stops_the_forwarder(tmp_path: Path, kafka: Broker) -> None:
    store, name = own_topic(tmp_path / "store", kafka, rows=5)
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    append(store, 0, b"late")
    kafka.delete(name)
    with pytest.raises(TargetChanged, match="it was removed"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    kafka.create(name, 2)
    with pytest.raises(TargetChanged, match="it was removed and made again"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    forward(store.path, kafka.url, topic_map=[f"orders={name}"], new_target="continue")
    assert kafka.values(name) == {0: [b"late"]}
    other = kafka.new_name()
    append(store, 0, b"later")
    with pytest.raises(TargetChanged, match=f"another one, {name}"):
        forward(store.path, kafka.url, topic_map=[f"orders={other}"])
    forward(store.path, kafka.url, topic_map=[f"orders={other}"], new_target="again")
    assert kafka.values(other) == bodies(store)
    append(store, 0, b"last")
    forward(store.path, kafka.url, topic_map=[f"orders={other}"])
    assert kafka.values(other) == bodies(store)


@pytest.mark.parametrize("choice", with_nightly(["again"], ["continue"]))
def test_a_cluster_without_the_position_stops_the_forwarder(tmp_path: Path, kafka: Broker, choice: str) -> None:
    """It could be another cluster: all messages would come a second time, or some never."""
    store, name = own_topic(tmp_path / "store", kafka, rows=5)
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    kafka.delete(POSITIONS.format(store.id))
    append(store, 1, b"late")
    for _ in range(2):  # the first one has made the topic of the positions
        with pytest.raises(TargetChanged, match="no position of forwarder kafka"):
            forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    forward(store.path, kafka.url, topic_map=[f"orders={name}"], new_target=choice)
    again = {0: bodies(store)[0] * 2, 1: bodies(store)[1][:-1] + bodies(store)[1]}
    assert kafka.values(name) == (bodies(store) if choice == "continue" else again)


@pytest.mark.nightly
def test_another_cluster_is_decided_on_once(tmp_path: Path, kafka: Broker) -> None:
    """Also for a topic that has nothing new at that time."""
    store, name = own_topic(tmp_path / "store", kafka, rows=5)
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    kafka.delete(POSITIONS.format(store.id))
    forward(store.path, kafka.url, topic_map=[f"orders={name}"], new_target="continue")
    append(store, 1, b"late")
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    assert kafka.values(name) == bodies(store)


def test_what_retention_has_deleted_is_a_loss_unless_it_is_accepted(tmp_path: Path, kafka: Broker) -> None:
    store, name = own_topic(tmp_path / "store", kafka, rows=10)
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    append(store, 0, *(b"%d" % number * 100 for number in range(200)))
    before = bodies(store)
    store.lane(0).forget_before(2)
    with pytest.raises(DataLoss, match=r"topic orders, lane 0: .* messages from 10 on were deleted"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    forward(store.path, kafka.url, topic_map=[f"orders={name}"], accept_loss=True)
    found = kafka.values(name)
    kept = len(found[0]) - 10
    assert 0 < kept < 200
    assert found == {0: before[0][:10] + before[0][-kept:], 1: before[1]}


def test_a_damaged_message_is_an_error_unless_its_loss_is_accepted(tmp_path: Path, kafka: Broker) -> None:
    store, name = own_topic(tmp_path / "store", kafka, rows=10)
    record = store.lane(0).records[4]
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as file:
        file.seek(record.physical_offset + 4)
        file.write(bytes(4))
    with pytest.raises(CorruptRecord, match="--accept-loss"):
        forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    forward(store.path, kafka.url, topic_map=[f"orders={name}"], accept_loss=True)
    left = [body for body in bodies(store)[0] if body != record.body]
    assert kafka.values(name) == {0: left, 1: bodies(store)[1]}


def test_a_store_with_less_than_was_forwarded_is_refused(tmp_path: Path, kafka: Broker) -> None:
    """Somebody has put older files back: the messages that come now would be passed over."""
    store, name = own_topic(tmp_path / "store", kafka, rows=5)
    shutil.copytree(store.path, tmp_path / "older")
    append(store, 0, b"late")
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    with pytest.raises(OffsetOutOfRange, match="lane 0: forwarded up to 6, and the store ends at 5"):
        forward(tmp_path / "older", kafka.url, topic_map=[f"orders={name}"])


def test_a_rocketmq_store_root_is_forwarded(tmp_path: Path, kafka: Broker) -> None:
    """Queue ids are partitions, properties are headers, and nothing is written into the root."""
    root = vector_store.load("transactions").unpack(tmp_path / "root")
    before = sorted(root.rglob("*"))
    topics = sorted({message.topic for message in commitlog.Reader(root)})
    names = {topic: kafka.new_name() for topic in topics}
    for _ in range(2):
        forward(root, kafka.url, topic_map=[f"{ours}={theirs}" for ours, theirs in names.items()])
    for topic, name in names.items():
        wanted: dict[int, list[object]] = {}
        for message in commitlog.Reader(root, topic=topic):
            headers = {key: text.encode() for key, text in message.properties.items()}
            wanted.setdefault(message.partition, []).append((message.value, headers.pop("KEYS", None), headers))
        found = {
            number: [(one.value(), one.key(), dict(one.headers() or [])) for one in messages]
            for number, messages in kafka.read(name).items()
            if messages
        }
        assert found == wanted
    assert sorted(root.rglob("*")) == before


def test_a_typed_topic_is_forwarded_as_bytes_with_its_headers(tmp_path: Path, kafka: Broker) -> None:
    name = kafka.new_name()
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        store.create_topic("sales", schema="id BIGINT, fruit STRING")
        producer.send_rows("sales", [{"id": 1, "fruit": "apple"}])
        producer.flush()
        forward(store.path, kafka.url, topic_map=[f"sales={name}"])
        (message,) = commitlog.Reader(store.path, topic="sales")
    (found,) = kafka.read(name)[0]
    assert (found.value(), dict(found.headers())) == (
        message.value,
        {key: value.encode() for key, value in message.headers.items()},
    )


@pytest.mark.nightly
def test_a_name_has_one_forwarder_and_no_other_reader(tmp_path: Path, kafka: Broker, little_patience: None) -> None:
    store, name = own_topic(tmp_path / "store", kafka, rows=2)
    commitlog.Reader(store.path, name="billing").close()
    with pytest.raises(ReaderError, match="whose position this forwarder would replace"):
        forward(store.path, kafka.url, name="billing")
    forward(store.path, kafka.url, topic_map=[f"orders={name}"])
    with pytest.raises(ReaderError, match="is a forwarder's, and Kafka has its position"):
        commitlog.Reader(store.path, name="kafka")
    readers = NamedReaders(StoreDirectory(store.path))
    held = readers.hold("kafka")
    try:
        with pytest.raises(ReaderInUse):
            forward(store.path, kafka.url)
    finally:
        readers.let_go(held)


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CALL_SECONDS", 0.3)
    port = free_port()
    store = small_store(tmp_path / "store", rows=1)
    with pytest.raises(TargetUnavailable, match=rf"kafka://127.0.0.1:{port}: no broker answers .*refused.*--wait"):
        forward(store.path, f"kafka://127.0.0.1:{port}")

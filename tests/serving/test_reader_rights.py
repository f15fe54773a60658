"""What each token may do and see: every action by every token, and names of readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import flight

from commitlog.errors import AccessDenied, CommitLogError, NoSchema, ReaderError, ReaderInUse, ServerBusy
from commitlog.reading.named_reader import PYTHON, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.remote import requests
from commitlog.remote.server_errors import from_bytes
from commitlog.schemas.topic_schemas import TopicSchemas
from commitlog.serving import served_store
from commitlog.serving.access import EVERYTHING, Access, add_token
from commitlog.serving.flight_server import _ACTIONS
from commitlog.serving.served_store import ServedStore
from tests.builders.hand_made import HandMadeStore, small_store
from tests.serving.asking import address_of, ask, server_of

ORDERS, OTHER = Access("billing", ("orders",)), Access("audit", ("other",))
PEER = "127.0.0.1:1"


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """Topics `orders` and `other`."""
    return small_store(tmp_path / "store")


@pytest.fixture
def served(store: HandMadeStore) -> Iterator[ServedStore]:
    with closing(ServedStore("store", store.path)) as found:
        yield found


def ask_to_move(served: ServedStore, lease: str, access: Access, offsets: requests.Offsets, **more: Any) -> None:
    with served.index() as (index, _):
        moved = requests.Position(index.store_id, offsets, **more)
    served.move_name(requests.MoveName("store", lease, moved, now=True, release=True), access, PEER)


def makes(served: ServedStore, access: Access, offsets: requests.Offsets, name: str = "etl", **more: Any) -> None:
    """A client reads under a name, up to these offsets, and ends."""
    ask_to_move(served, served.hold_name(name, access, PEER), access, offsets, **more)


def position(store: HandMadeStore, name: str = "etl") -> dict[str, dict[int, int]]:
    return {topic: dict(lanes) for topic, lanes in NamedReaders(store.directory).load(name).offsets.items()}


# ---- names belong to topics and to clients -------------------------------------------------------


def test_a_token_for_other_topics_does_not_take_a_name(store: HandMadeStore, served: ServedStore) -> None:
    """The position would be lost, and retention would delete what its reader has not read."""
    makes(served, OTHER, {"other": {0: 7}})
    with pytest.raises(AccessDenied, match="reader etl is not for the token billing"):
        served.hold_name("etl", ORDERS, PEER)
    assert position(store) == {"other": {0: 7}}
    makes(served, OTHER, {"other": {0: 8}})
    assert position(store) == {"other": {0: 8}}


def test_a_name_is_the_clients_that_made_it(store: HandMadeStore, served: ServedStore) -> None:
    """Not of another token that may read the topic, too, but of one for the same topics."""
    makes(served, ORDERS, {"orders": {0: 3}})
    wide = Access("wide", ("orders", "other"))
    with pytest.raises(AccessDenied, match="not for the token wide"):
        served.hold_name("etl", wide, PEER)
    makes(served, Access("billing-2", ("orders",)), {"orders": {0: 4}})
    makes(served, replace(ORDERS, topics=("orders", "returns")), {"orders": {0: 4}}, "mine")
    makes(served, ORDERS, {"orders": {0: 5}}, "mine")  # the same token, with other topics
    makes(served, Access("operator"), {"orders": {0: 6}})  # for every topic
    makes(served, EVERYTHING, {"orders": {0: 7}})
    assert position(store) == {"orders": {0: 7}}


def test_a_reader_of_this_machine_goes_on_by_url(store: HandMadeStore, served: ServedStore) -> None:
    """By every token for its topics. One with a pattern would read what the token is not for."""
    readers = NamedReaders(store.directory)
    own = NamedReader("etl", store.directory.load().id, {"orders": {0: 2}}, moved_ms=1)
    readers.save(own)
    makes(served, ORDERS, {"orders": {0: 3}})
    assert position(store) == {"orders": {0: 3}}
    readers.save(replace(own, name="all", pattern=".*", passed_over=frozenset({"other"})))
    with pytest.raises(AccessDenied):
        served.hold_name("all", ORDERS, PEER)
    readers.save(replace(own, name="python", kind=PYTHON))
    with pytest.raises(ReaderError, match="one of Python's"):
        served.hold_name("python", ORDERS, PEER)


def test_an_error_names_no_other_client(served: ServedStore) -> None:
    served.hold_name("etl", OTHER, "10.0.0.7:4711")
    for access in (OTHER, ORDERS):
        with pytest.raises(ReaderInUse, match="client") as refused:
            served.hold_name("etl", access, PEER)
        assert ("client audit at 10.0.0.7" in str(refused.value)) == (access is OTHER)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({"orders": {0: 1 << 62}}, "which ends at 100"),
        ({"orders": {0: 101}}, "which ends at 100"),
        ({"orders": {0: 1 << 70}}, "which ends at 100"),
        ({"orders": {9: 1 << 70}}, "no position"),
        ({"orders": {0: -1}}, "no position"),
        ({"orders": {-1: 0}}, "no position"),
        ({"orders": {1 << 20: 0}}, "no position"),
        ({"orders/../x": {0: 0}}, "no position|is not for topic"),
    ],
)
def test_positions_that_no_reader_can_have(
    store: HandMadeStore, served: ServedStore, offsets: requests.Offsets, said: str
) -> None:
    """They ended the thread that gives names back, or let retention delete what was not read."""
    makes(served, ORDERS, {"orders": {0: 5}})
    lease = served.hold_name("etl", ORDERS, PEER)
    with pytest.raises(CommitLogError, match=said):
        ask_to_move(served, lease, ORDERS, offsets)
    served.end_old_leases(set())
    assert position(store) == {"orders": {0: 5}}
    served.hold_name("etl", ORDERS, PEER)


def test_a_pattern_that_no_reader_can_have(store: HandMadeStore, served: ServedStore) -> None:
    makes(served, ORDERS, {"orders": {0: 5}})
    lease = served.hold_name("etl", ORDERS, PEER)
    with pytest.raises(ReaderError, match="no position"):
        ask_to_move(served, lease, ORDERS, {"orders": {0: 6}}, pattern="x" * 10_001)
    assert position(store) == {"orders": {0: 5}}


@pytest.mark.parametrize("content", [b"{", b""])
def test_a_position_that_cannot_be_read_is_not_replaced_by_any_token(
    store: HandMadeStore, served: ServedStore, content: bytes
) -> None:
    """Nobody knows whose it is, and all is kept for it. Who may use every topic replaces it."""
    makes(served, OTHER, {"other": {0: 7}})
    file = store.directory.readers_directory / "etl.json"
    file.write_bytes(content)
    for access in (ORDERS, OTHER):
        with pytest.raises(AccessDenied, match="reader etl has a position that can't be read"):
            served.hold_name("etl", access, PEER)
    assert file.read_bytes() == content
    makes(served, Access("operator"), {"other": {0: 8}})
    assert position(store) == {"other": {0: 8}}


def test_a_token_that_a_name_is_not_for_keeps_nobody_from_it(store: HandMadeStore, served: ServedStore) -> None:
    """It is refused before it holds the name, and so at once where somebody else holds it."""
    makes(served, OTHER, {"other": {0: 7}})
    with closing(NamedReaders(store.directory).hold("etl")), pytest.raises(AccessDenied):
        served.hold_name("etl", ORDERS, PEER)


def test_a_token_makes_so_many_readers_and_no_more(
    store: HandMadeStore, served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it holds only one name at a time: each is a file, and retention waits for it."""
    monkeypatch.setattr(served_store, "NAMES_PER_CLIENT_MAX", 3)
    for number in range(3):
        makes(served, ORDERS, {"orders": {0: 1}}, f"etl-{number}")
    with pytest.raises(ServerBusy, match="client billing has 3 names of readers"):
        served.hold_name("etl-3", ORDERS, PEER)
    makes(served, ORDERS, {"orders": {0: 2}}, "etl-1")
    makes(served, OTHER, {"other": {0: 1}}, "etl-3")
    NamedReaders(store.directory).remove("etl-0")
    makes(served, ORDERS, {"orders": {0: 1}}, "etl-4")


# ---- every action by every token ----------------------------------------------------------------

TOKENS = {
    "orders": Access("orders", ("orders",)),
    "secret": Access("secret", ("other",)),
    "writes": Access("writes", ("orders",), read=False, write=True),
    "all": Access("all", write=True),
}
ASKED: dict[str, Callable[[str], Any]] = {
    "look": lambda topic: requests.Look("store", topics=(topic,)),
    "shared_ends": lambda topic: requests.SharedEnds("store", 0, ((topic, 0),)),
    "find_by_times": lambda topic: requests.FindByTimes("store", ((topic, 0, 1),)),
    "sizes": lambda topic: requests.Sizes("store", ((topic, 0, 0, 1),)),
    "limit_rows": lambda topic: requests.LimitRows("store", ((topic, 0, 0, 1),), 1, (topic, 0)),
    "schemas": lambda topic: requests.Schemas("store", (topic,)),
    "topics": lambda _topic: requests.Topics("store"),
    "stat": lambda _topic: requests.Stat("store"),
    "hold_name": lambda topic: requests.HoldName("store", f"of-{topic}"),
    "hold_reader": lambda topic: requests.HoldReader("store", f"for-{topic}"),
    "move_name": lambda _topic: requests.MoveName("store", "no-lease"),
    "check_append": lambda topic: requests.CheckAppend("store", topic),
    "stores": lambda _topic: requests.Stores(),
}
"""Action → a request that is about a topic, where it can be about one."""

NAMES_NO_TOPIC = {"schemas", "topics", "stat", "move_name", "stores"}
"""What they answer is filtered: they refuse no topic. (`stores` is for everybody.)"""


def test_every_action_is_walked() -> None:
    assert set(ASKED) == set(_ACTIONS)


def test_no_answer_tells_of_a_topic_that_the_token_is_not_for(store: HandMadeStore, tmp_path: Path) -> None:
    """Each action, topic and token: an answer without it, or AccessDenied."""
    tokens = tmp_path / "tokens.json"
    secrets = {name: add_token(tokens, access) for name, access in TOKENS.items()}
    readers = NamedReaders(store.directory)
    for topic in ("orders", "other"):
        readers.save(NamedReader(f"of-{topic}", store.directory.load().id, {topic: {0: 1}}, moved_ms=1))
        readers.save(NamedReader(f"for-{topic}", store.directory.load().id, {topic: {0: 1}}, moved_ms=1, kind=PYTHON))
    readers.save(NamedReader("of-all", store.directory.load().id, {"orders": {0: 1}}, 1, kind=PYTHON, all_topics=True))
    outcomes = {}
    with server_of([store.path], tokens=tokens, writable=True) as server:
        for name, access in TOKENS.items():
            for kind, request in ASKED.items():
                for topic in ("orders", "other"):
                    try:
                        answer = orjson.dumps(ask(address_of(server, token=secrets[name]), kind, request(topic)))
                        outcomes[name, kind, topic] = "answer"
                    except AccessDenied as error:
                        answer = str(error).replace(topic, "").encode()  # it may repeat what it was asked
                        outcomes[name, kind, topic] = "denied"
                    for hidden in ("orders", "other"):
                        assert access.covers(hidden) or f'"{hidden}"'.encode() not in answer, (name, kind, answer)
    assert outcomes == {
        (name, kind, topic): "answer" if _may(access, kind, topic) else "denied"
        for name, access in TOKENS.items()
        for kind in ASKED
        for topic in ("orders", "other")
    }


def _may(access: Access, kind: str, topic: str) -> bool:
    if kind == "stores":
        return True
    if kind == "check_append":
        return access.write and access.covers(topic)
    return access.read and (kind in NAMES_NO_TOPIC or access.covers(topic))


def test_a_reader_that_reads_more_is_shown_without_it(store: HandMadeStore, tmp_path: Path) -> None:
    """How far it is behind in other topics would tell how many messages those have."""
    tokens = tmp_path / "tokens.json"
    secret = add_token(tokens, Access("orders", ("orders",)))
    wide = NamedReader("wide", store.directory.load().id, {"orders": {0: 1}}, 1, kind=PYTHON, all_topics=True)
    NamedReaders(store.directory).save(wide)
    NamedReaders(store.directory).save(replace(wide, name="of-others", offsets={}, all_topics=False, pattern="oth.*"))
    (store.directory.readers_directory / "broken.json").write_text("{")
    with server_of([store.path], tokens=tokens) as server:
        (shown,) = ask(address_of(server, token=secret), "stat", requests.Stat("store"))["readers"]
    assert shown["name"] == "wide"
    assert set(shown["lag"]) == {"orders"}
    assert shown["behind"] == sum(shown["lag"]["orders"].values())


def test_no_error_names_a_typed_topic_that_the_token_is_not_for(store: HandMadeStore, tmp_path: Path) -> None:
    """Neither that of rows for a topic without a schema, nor that of a damaged schema."""
    tokens = tmp_path / "tokens.json"
    access = Access("shop", ("orders", "bills"), write=True)
    secret = add_token(tokens, access)
    columns = pa.schema({"id": pa.int64()})
    for topic in ("bills", "other"):
        TopicSchemas(store.directory).declare(topic, columns, evolve=False)
    with server_of([store.path], tokens=tokens, writable=True) as server:
        address = address_of(server, token=secret)
        with flight.connect(f"grpc://127.0.0.1:{server.ports[0]}") as client:
            options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())])
            command = orjson.dumps(requests.Append("store", "orders", rows=True))
            writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), columns, options)
            with pytest.raises(flight.FlightError) as refused:
                writer.close()
        (store.directory.topics_directory / "other" / "1.json").write_bytes(b"{")
        listed = ask(address, "topics", requests.Topics("store"))
    assert [one["topic"] for one in listed] == ["bills", "orders"]
    error = from_bytes(refused.value.extra_info)
    assert isinstance(error, NoSchema)
    assert str(error).endswith("Topics that have one: bills")


def test_damage_of_a_topic_that_the_token_is_not_for_is_not_named(store: HandMadeStore, tmp_path: Path) -> None:
    """A RocketMQ store root can't be read where a consume queue is damaged, of whatever topic."""
    root, tokens = store.path / "lanes" / "0", tmp_path / "tokens.json"
    secrets = [add_token(tokens, access) for access in (ORDERS, Access("operator"))]
    (queue,) = (root / "consumequeue" / "other" / "0").iterdir()
    queue.write_bytes(b"x")
    with server_of([f"store={root}"], tokens=tokens) as server:
        said = [repr(ask(address_of(server, token=secret), "look", requests.Look("store"))) for secret in secrets]
    assert "topic …: store/consumequeue/…/0/0000" in said[0]
    assert "other" not in said[0]
    assert "topic other: store/consumequeue/other/0/0000" in said[1]

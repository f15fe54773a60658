"""Rows of typed topics as a producer sends them: all at once, and one by one."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

import commitlog
from commitlog.appending.row_writer import RowWriter
from commitlog.errors import (
    CommitLogError,
    ForkedProducer,
    IllegalArgument,
    IllegalProperty,
    IllegalRow,
    IllegalTopic,
    MessageTooLarge,
    NoBufferAvailable,
    NoSchema,
    ProducerClosed,
    WaitTimeout,
)
from tests.builders.row_log import AsItIs, Log
from tests.children import in_child
from tests.waiting import wait_until

CONFIG: dict[str, dict[str, int]] = {"store": {"segment_bytes": 1 << 18}, "supervisor": {"hung_after_ms": 600_000}}
NEVER = 3_600_000
_NUMBERS = itertools.count()
pytestmark = pytest.mark.usefixtures("no_segments_mapped")
DECLARED = "id BIGINT NOT NULL, name STRING, xs ARRAY<INT>"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """The one store of these tests: each has a topic of its own."""
    with commitlog.Store.open(tmp_path_factory.mktemp("live") / "store", CONFIG) as store:
        yield store


@pytest.fixture
def topic(live: commitlog.Store) -> str:
    """A new topic."""
    name = f"orders-{next(_NUMBERS)}"
    live.create_topic(name, DECLARED)
    return name


def read(store: commitlog.Store, topic: str, **options: Any) -> pa.Table:
    return commitlog.read_arrow(store.path, topic, isolation="committed", **options).read_all()


def ids(store: commitlog.Store, topic: str, count: int) -> list[int]:
    """The ids in the log, when there are so many."""
    found: list[int] = []

    def all_there() -> bool:
        found[:] = read(store, topic)["id"].to_pylist()
        return len(found) >= count

    wait_until(all_there, f"{count} rows are committed")
    return found


# ---- send_rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_are_sent_and_read(live: commitlog.Store, topic: str, compression: str | None) -> None:
    rows = [{"id": number, "name": "x" * 50, "xs": [number]} for number in range(1000)]
    with commitlog.Producer(live.path) as producer:
        receipt = producer.send_rows(
            topic, rows, key="k", headers={"h": "v"}, tags="t", max_rows=300, compression=compression
        )
        assert receipt is not None
        assert receipt.offset == 3
        assert producer.send_rows(topic, []) is None
        assert producer.send_rows(topic, pa.table({"id": pa.array([], pa.int64())})) is None
        producer.flush(timeout=60)
        columns = ["key", "tags", "properties"]
        messages = read(live, topic, values="bytes", columns=columns).to_pylist()
    assert [(m["key"], m["tags"], dict(m["properties"])["h"]) for m in messages] == [(b"k", "t", "v")] * 4
    assert [dict(m["properties"])["row-count"] for m in messages] == ["300", "300", "300", "100"]
    table = read(live, topic, metadata=True)
    assert table.select(["id", "name", "xs"]).to_pylist() == rows
    assert table["_offset"].to_pylist() == [number // 300 for number in range(1000)]
    assert table["_row"].to_pylist() == [number % 300 for number in range(1000)]
    assert set(table["_key"].to_pylist()) == {b"k"}


def test_wrong_calls_send_nothing(live: commitlog.Store, topic: str) -> None:
    row = [{"id": 1}]
    with commitlog.Producer(live.path) as producer:
        before = producer.statistics().wrote
        wrong: list[tuple[type[CommitLogError], str, Any, dict[str, Any]]] = [
            (NoSchema, "other", row, {}),
            (IllegalTopic, "../x", row, {}),
            (IllegalTopic, "", row, {}),
            (IllegalTopic, 5, row, {}),  # type: ignore[list-item]
            (IllegalRow, topic, [{"id": 1}, {"id": "x"}], {}),
            (IllegalArgument, topic, 5, {}),
            (IllegalArgument, topic, row, {"max_rows": 0}),
            (IllegalArgument, topic, row, {"max_rows": "1"}),
            (IllegalArgument, topic, row, {"max_rows": 1.5}),
            (IllegalArgument, topic, row, {"max_rows": 1 << 70}),
            (IllegalArgument, topic, row, {"max_bytes": True}),
            (IllegalArgument, topic, row, {"compression": "gzip"}),
            (IllegalProperty, topic, row, {"headers": 5}),
            (IllegalProperty, topic, row, {"headers": {"row-count": "7"}}),
            (IllegalProperty, topic, row, {"headers": {"a": 5}}),
            (IllegalProperty, topic, row, {"key": 5}),
        ]
        for kind, where, rows, options in wrong:
            with pytest.raises(kind) as caught:
                producer.send_rows(where, rows, **options)
            assert caught.value.rows_sent == 0
            assert "\n" not in str(caught.value)
        assert producer.statistics().wrote == before
        for options in ({"linger_ms": -1}, {"linger_ms": "1"}, {"linger_ms": float("nan")}, {"max_rows": 0}):
            with pytest.raises(IllegalArgument):
                producer.rows(topic, **options)
        with pytest.raises(NoSchema, match=rf"Topics that have one: .*\b{topic}\b"):
            producer.rows("other")


def test_a_row_that_no_message_holds(live: commitlog.Store, topic: str) -> None:
    """The rows before it are in the log, and the error says how many."""
    with commitlog.Producer(live.path) as producer:
        rows = [{"id": 1}, {"id": 2}, {"id": 3, "name": "x" * producer.message_bytes_max}, {"id": 4}]
        with pytest.raises(MessageTooLarge) as caught:
            producer.send_rows(topic, rows)
        assert ids(live, topic, caught.value.rows_sent) == [1, 2][: caught.value.rows_sent]
        assert caught.value.rows_sent == 2


def test_rows_sent_counts_what_waits_for_the_disk(tmp_path: Path) -> None:
    """With SYNC_FLUSH the last message is waited for. A timeout leaves all rows in the log."""
    config = {
        **CONFIG,
        "store": {**CONFIG["store"], "flush_disk_type": "SYNC_FLUSH"},
        "producer": {"sync_flush_timeout_ms": 60_000},
    }
    with commitlog.Store.open(tmp_path / "store", config) as store, store.producer() as producer:
        store.create_topic("orders", DECLARED)
        receipt = producer.send_rows("orders", [{"id": number} for number in range(10)], max_rows=4)
        assert receipt is not None
        assert receipt.offset == 2
        assert receipt.done("flushed")
        flusher = int((store.path / "locks/flusher").read_text())
        producer._progress._timeout_seconds = 0.3
        os.kill(flusher, signal.SIGSTOP)
        try:
            with pytest.raises(WaitTimeout) as caught:
                producer.send_rows("orders", [{"id": number} for number in range(10)], max_rows=4)
        finally:
            os.kill(flusher, signal.SIGCONT)
        assert caught.value.receipt is not None
        assert caught.value.rows_sent == 10
        producer.flush(timeout=60)
        assert len(ids(store, "orders", 20)) == 20


def test_a_schema_that_grew_meanwhile(live: commitlog.Store, topic: str) -> None:
    """A producer looks at the newest version when rows do not fit the one that it knows."""
    with commitlog.Producer(live.path) as producer:
        producer.send_rows(topic, [{"id": 1}])
        grown = live.create_topic(topic, DECLARED + ", more INT", evolve=True)
        assert grown.version == 2
        producer.send_rows(topic, [{"id": 2}])
        producer.send_rows(topic, [{"id": 3, "more": 7}])
        assert ids(live, topic, 3) == [1, 2, 3]
        assert read(live, topic)["more"].to_pylist() == [None, None, 7]


# ---- the writer of single rows -------------------------------------------------------------------


def test_rows_go_when_there_are_enough_or_when_they_have_waited(live: commitlog.Store, topic: str) -> None:
    with commitlog.Producer(live.path) as producer:
        with producer.rows(topic, linger_ms=NEVER, max_rows=3) as rows:
            for number in range(4):
                rows.append(id=number)
            assert ids(live, topic, 3) == [0, 1, 2]
            rows.flush(60)
            assert ids(live, topic, 4) == [0, 1, 2, 3]
            rows.append(
                {"id": 4},
            )
        assert ids(live, topic, 5) == [0, 1, 2, 3, 4]
        rows.close()
        with pytest.raises(ProducerClosed, match="this writer of rows was closed"):
            rows.append(id=5)
        with pytest.raises(ProducerClosed):
            rows.flush()
        with producer.rows(topic, linger_ms=0) as quick:
            quick.append(id=5)
            assert ids(live, topic, 6)[5:] == [5]
        with pytest.raises(IllegalArgument, match="not both"):
            producer.rows(topic).append({"id": 1}, name="x")


def test_a_row_is_as_it_was_when_it_was_appended(live: commitlog.Store) -> None:
    """The caller may change all that it gave: lists, arrays, bytes, models, at every depth."""
    nested = "STRUCT<m: MAP<STRING, ARRAY<INT>>>"
    live.create_topic("changed", f"id BIGINT, xs ARRAY<INT>, ys ARRAY<BINARY>, b BINARY, s {nested}")
    xs, ys, numbers = [1], [bytearray(b"y")], np.array([1], np.int32)
    memory, mapping = bytearray(b"b"), {"k": [1]}
    blobs = np.empty(1, object)
    blobs[0] = ys[0]
    item = Item(1, xs, {"m": mapping})
    row: dict[str, Any] = {"id": 0, "xs": xs, "ys": ys, "b": memory, "s": {"m": mapping}}
    with commitlog.Producer(live.path) as producer, producer.rows("changed", linger_ms=NEVER) as rows:
        rows.append(row)
        rows.append(item)
        rows.append(id=2, xs=numbers, b=memoryview(memory), ys=blobs)
        row["id"] = item.id = 9
        row["b"] = None
        xs[0] = numbers[0] = mapping["k"][0] = 9
        ys[0][:], memory[:] = b"z", b"z"
        mapping["l"] = []
        rows.flush(60)
        found = read(live, "changed").select(["id", "xs", "ys", "b", "s"]).to_pylist()
    kept = {"m": [("k", [1])]}
    assert found == [
        {"id": 0, "xs": [1], "ys": [b"y"], "b": b"b", "s": kept},
        {"id": 1, "xs": [1], "ys": None, "b": None, "s": kept},
        {"id": 2, "xs": [1], "ys": [b"y"], "b": b"b", "s": None},
    ]


@dataclass
class Item:
    id: int
    xs: list[int]
    s: dict[str, Any]


BAD: tuple[tuple[Any, str], ...] = (
    ({"id": "text"}, "^column id: 'text' is no BIGINT"),
    ({"id": True}, "^column id: True is no BIGINT"),
    ({"id": 1 << 63}, "^column id: 9223372036854775808 is no BIGINT"),
    ({"id": None}, "^column id: it is NOT NULL"),
    ({"name": "x"}, "^column id: it is NOT NULL"),
    ({"idd": 1}, "^there is no column 'idd'"),
    ({"id": 1, "x": 1}, "^there is no column 'x'"),
    ({"id": 1, "name": "x", "xs": None, "x": 1}, "^there is no column 'x'"),
    ({"id": 1, "name": "\ud800"}, "^column name: .*half a surrogate pair"),
    ({"id": 1, "name": b"x"}, "^column name: b'x' is no STRING"),
    ({"id": 1, "xs": [1, "x"]}, "^column xs: "),
    ({"id": 1, "xs": [1 << 31]}, r"^column xs\[0\]: "),
    (5, "^a row is a dictionary"),
)


def test_a_row_that_does_not_fit_is_refused_by_its_own_append(live: commitlog.Store, topic: str) -> None:
    """The good rows before and after it arrive, each once, and no later call knows of it."""
    with commitlog.Producer(live.path) as producer, producer.rows(topic, linger_ms=0) as rows:
        large, most = "x" * producer.message_bytes_max, "x" * (producer.message_bytes_max - 5000)
        for number, (bad, message) in enumerate(BAD):
            rows.append(id=number)
            with pytest.raises(IllegalRow, match=message):
                rows.append(bad)
        rows.append(id=len(BAD), name=most)
        with pytest.raises(MessageTooLarge):
            rows.append(id=-1, name=large)
        with pytest.raises(MessageTooLarge):
            rows.append(id=-1, xs=[0] * producer.message_bytes_max)
        rows.append(id=len(BAD) + 1, xs=[0])
        rows.flush(60)
        assert ids(live, topic, len(BAD) + 2) == list(range(len(BAD) + 2))


WEST = timezone(timedelta(hours=-14))
EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
"""In UTC it is in a year that Python does not have."""


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("TINYINT", [-128, 127, np.int8(1)], [-129, 128, 1.0]),
        ("FLOAT", [1.5, 1, math.inf, -math.inf], ["1", True]),
        ("DOUBLE", [1e300, 1, math.nan], ["1", Decimal(1)]),
        ("DECIMAL(4,2)", [Decimal("1.25"), 3], [Decimal("1.255"), Decimal(100), 1.5]),
        ("DATE", [date.min, date.max], [datetime(2024, 1, 1)]),
        (
            "TIMESTAMP",
            [datetime(2024, 1, 1, tzinfo=UTC), datetime.now(ZoneInfo("Europe/Berlin")), EARLY.replace(tzinfo=WEST)],
            [datetime.min, EARLY, EARLY.replace(year=9999, month=12, day=31, hour=23, tzinfo=WEST)],
        ),
        ("ARRAY<TIMESTAMP>", [[datetime(2024, 1, 1, tzinfo=UTC)]], [[EARLY]]),
        ("TIMESTAMP_NTZ", [datetime.min, datetime.max], [datetime(2024, 1, 1, tzinfo=UTC)]),
        ("STRING", ["", "ж\x00", "x" * 50_000], ["\udfff", b"x", 1]),
        ("BINARY", [b"", bytearray(b"x")], ["x", [1]]),
        ("BOOLEAN", [True, np.False_], [1, "true"]),
    ],
)
def test_what_append_takes_arrives_and_the_rest_is_refused(
    live: commitlog.Store, kind: str, good: list[Any], bad: list[Any]
) -> None:
    """As it does where all rows are given at once."""
    topic = f"one-{kind.translate({ord(mark): '-' for mark in '(,)<>'})}"
    live.create_topic(topic, f"v {kind}")
    with commitlog.Producer(live.path) as producer, producer.rows(topic, linger_ms=NEVER) as rows:
        for value in bad:
            with pytest.raises(IllegalRow, match=r"^column v: "):
                rows.append(v=value)
            with pytest.raises(IllegalRow, match=r"^row 0, column v: "):
                producer.send_rows(topic, [{"v": value}])
        producer.send_rows(topic, [{"v": value} for value in good])
        for value in [*good, None]:
            rows.append(v=value)
        rows.flush(60)
        found = read(live, topic)["v"].to_pylist()
    assert repr(found) == repr([*found[: len(good)], *found[: len(good)], None])


def test_a_row_of_a_schema_that_grew_meanwhile(live: commitlog.Store, topic: str) -> None:
    with commitlog.Producer(live.path) as producer, producer.rows(topic, linger_ms=NEVER) as rows:
        rows.append(id=0)
        live.create_topic(topic, f"{DECLARED}, more STRING", evolve=True)
        rows.append(id=1, more="x")
        rows.flush(60)
        assert read(live, topic)["more"].to_pylist() == [None, "x"]


def test_an_error_in_the_middle_loses_and_doubles_nothing() -> None:
    log = Log(None, NoBufferAvailable("full"), NoBufferAvailable("full"))
    rows = RowWriter(AsItIs(), log.messages_of, lambda timeout: None, NEVER, 5)
    for number in range(5):
        rows.append(number)
    with pytest.raises(NoBufferAvailable):
        rows.append(5)
    with pytest.raises(NoBufferAvailable):
        rows.flush()
    assert log.rows == [0, 1]
    rows.append(5)
    rows.close()
    assert log.rows == [0, 1, 2, 3, 4, 5]


def test_a_row_that_fits_no_more_when_it_is_sent() -> None:
    """`flush` and `close` name it, and no `append`: that would seem to be about its own row."""
    log = Log(IllegalRow("row 0 fits no more", 0), KeyboardInterrupt())
    rows = RowWriter(AsItIs(), log.messages_of, lambda timeout: None, NEVER, 5)
    for row in ("bad", 1, 2):
        rows.append(row)
    with pytest.raises(KeyboardInterrupt):
        rows.flush()
    rows.append(3)
    with pytest.raises(IllegalRow, match="row 0 fits no more"):
        rows.flush()
    log.errors = [IllegalRow("row 1 fits no more", 1), MessageTooLarge("large")]
    for row in (4, "bad", "large"):
        rows.append(row)
    with pytest.raises(IllegalRow, match="row 1 fits no more") as caught:
        rows.close()
    assert caught.value.__notes__ == ["another row was refused: large"]
    assert log.rows == [1, 2, 3, "large"]


def test_the_thread_keeps_an_error_until_it_is_told() -> None:
    """It rests meanwhile, and goes on with the rows that are left."""
    log = Log(NoBufferAvailable("full"))
    rows = RowWriter(AsItIs(), log.messages_of, lambda timeout: None, 0, 5)
    rows.append("x")
    wait_until(lambda: rows._error is not None)
    with pytest.raises(NoBufferAvailable, match="full"):
        rows.append("y")
    wait_until(lambda: log.rows == ["x"], "the thread goes on when its error was told")
    rows.close()
    assert log.rows == ["x"]


def test_close_says_what_is_lost(live: commitlog.Store, topic: str) -> None:
    producer = commitlog.Producer(live.path)
    rows = producer.rows(topic, linger_ms=NEVER)
    rows.append(id=1)
    producer.close()
    with pytest.raises(ProducerClosed) as caught:
        rows.close()
    assert caught.value.__notes__ == ["1 collected rows were not sent, and are lost"]
    rows.close()


def test_threads_share_a_writer(live: commitlog.Store, topic: str) -> None:
    with commitlog.Producer(live.path) as producer:
        with producer.rows(topic, linger_ms=1, max_rows=7) as rows:

            def append(first: int) -> None:
                for number in range(first, first + 300):
                    rows.append(id=number)

            threads = [threading.Thread(target=append, args=(first,)) for first in range(0, 1200, 300)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(ids(live, topic, 1200)) == list(range(1200))


def test_a_forked_child_has_no_rows_of_its_parent(live: commitlog.Store, topic: str) -> None:
    with commitlog.Producer(live.path) as producer, producer.rows(topic, linger_ms=NEVER) as rows:
        rows.append(id=1)

        def use() -> str:
            with pytest.raises(ForkedProducer, match="make a producer in the child"):
                rows.append(id=2)
            with pytest.raises(ForkedProducer):
                rows.flush()
            rows.close()
            return "refused"

        assert in_child(use) == "refused"
        rows.flush(60)
        assert ids(live, topic, 1) == [1]


def test_the_end_of_the_interpreter_sends_what_is_collected(live: commitlog.Store, topic: str) -> None:
    """Also where the program forgot `close`, and has another writer whose producer is closed."""
    code = f"""
import commitlog
producer, closed = commitlog.Producer({str(live.path)!r}), commitlog.Producer({str(live.path)!r})
lost, rows = closed.rows({topic!r}, linger_ms={NEVER}), producer.rows({topic!r}, linger_ms={NEVER})
lost.append(id=0)
rows.append(id=1)
closed.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "1 collected rows were not sent, and are lost" in done.stderr
    assert ids(live, topic, 1) == [1]


@pytest.mark.nightly
def test_the_end_of_a_program_that_owns_the_store(tmp_path: Path) -> None:
    """Rows are sent before the store stops."""
    code = f"""
import commitlog
store = commitlog.Store.open({str(tmp_path / "store")!r}, {CONFIG!r})
store.create_topic("orders", {DECLARED!r})
rows = store.producer().rows("orders", linger_ms={NEVER})
rows.append(id=1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert commitlog.read_arrow(tmp_path / "store", "orders").read_all()["id"].to_pylist() == [1]

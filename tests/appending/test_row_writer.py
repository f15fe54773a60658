"""Rows of typed topics as a producer sends them: all at once, and one by one."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import commitlog
from commitlog.appending.row_writer import RowWriter
from commitlog.errors import (
    CommitLogError,
    ConcurrentUse,
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


def test_a_row_is_as_it_was_when_it_was_appended(live: commitlog.Store, topic: str) -> None:
    with commitlog.Producer(live.path) as producer, producer.rows(topic, linger_ms=NEVER) as rows:
        row = {"id": 0}
        for number in range(3):
            row["id"] = number
            rows.append(row)
        rows.flush(60)
        assert ids(live, topic, 3) == [0, 1, 2]


@pytest.mark.parametrize("count", [3, 3000])
def test_rows_that_do_not_fit_are_refused_alone(live: commitlog.Store, topic: str, count: int) -> None:
    """All others are sent, each once; the error names every row that is not."""
    with commitlog.Producer(live.path) as producer:
        large = "x" * producer.message_bytes_max
        rows = producer.rows(topic, linger_ms=NEVER, max_rows=count)
        for number in range(count):
            bad = {0: {"id": "text"}, 1: {"id": number, "name": large}}.get(number % 3 if number < 30 else 2)
            rows.append(bad or {"id": number})
        with pytest.raises(IllegalRow, match="row 0, column id: 'text' is no BIGINT") as caught:
            rows.flush(60)
        expected = [number for number in range(count) if number % 3 == 2 or number >= 30]
        assert len(caught.value.__notes__) == count - len(expected) - 1
        rows.close()
        assert ids(live, topic, len(expected)) == expected


def test_what_the_thread_meets_the_next_call_raises(live: commitlog.Store, topic: str) -> None:
    """Once; the rows around a bad one are sent, and no second error hides the first."""
    with commitlog.Producer(live.path) as producer, producer.rows(topic, linger_ms=0) as rows:
        for number in range(3):
            rows.append(id=f"bad {number}")
            with pytest.raises(IllegalRow, match=f"bad {number}"):
                wait_until(lambda: rows.flush(60))
            rows.append(id=number)
            assert ids(live, topic, number + 1) == list(range(number + 1))
        rows.append(id="the last one")
        with pytest.raises(IllegalRow, match="the last one"):
            rows.close()


class Log:
    """Stands for a log that fails now and then: `errors` has what the next calls raise."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors, self.rows = list(errors), list[Any]()

    def send(self, rows: list[Any]) -> Iterator[int]:
        for start in range(0, len(rows), 2):
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
            self.rows += rows[start : start + 2]
            yield len(rows[start : start + 2])


def test_an_error_in_the_middle_loses_and_doubles_nothing() -> None:
    log = Log(None, NoBufferAvailable("full"), NoBufferAvailable("full"))
    rows = RowWriter(log.send, lambda timeout: None, NEVER, 5)
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


def test_a_ctrl_c_tells_of_refused_rows() -> None:
    """A KeyboardInterrupt hides no refusal: its notes have it. The other rows stay collected."""
    log = Log(IllegalRow("row 0 is no row", 0), KeyboardInterrupt())
    rows = RowWriter(log.send, lambda timeout: None, NEVER, 5)
    for row in ("bad", 1, 2):
        rows.append(row)
    with pytest.raises(KeyboardInterrupt) as caught:
        rows.flush()
    assert caught.value.__notes__ == ["a row was refused: row 0 is no row"]
    rows.close()
    assert log.rows == [1, 2]


def test_the_thread_keeps_the_first_error_until_it_is_told() -> None:
    """It rests meanwhile, and goes on with the rows that are left."""
    log = Log(IllegalRow("first", 0), NoBufferAvailable("second"))
    rows = RowWriter(log.send, lambda timeout: None, 0, 5)
    rows.append("bad")
    rows._lock.acquire()
    rows._lock.release()
    wait_until(lambda: rows._error is not None)
    with pytest.raises(IllegalRow, match="first"):
        rows.append("x")
    rows.append("x")
    wait_until(lambda: rows._error is not None)
    with pytest.raises(NoBufferAvailable, match="second"):
        rows.flush()
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


@pytest.mark.parametrize("closes", [False, True])
def test_a_signal_handler_appends_and_closes_within_append(closes: bool) -> None:
    """At any place of a call: nothing hangs, is lost or doubled."""
    taken: list[Any] = []
    given_rows: list[Any] = []
    rows: RowWriter

    def send(batch: list[Any]) -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGUSR1)
        taken.extend(batch)
        yield len(batch)

    def on_signal(*_: object) -> None:
        if len(given_rows) < 50 and not rows._closed:
            rows.append(number := -len(given_rows) - 1)
            given_rows.append(number)
            if closes and len(given_rows) > 7:
                rows.close()

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        rows = RowWriter(send, lambda timeout: None, NEVER, 3)
        for number in range(20):
            try:
                rows.append(number)
            except ProducerClosed:
                assert closes
                break
            given_rows.append(number)
        rows.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(taken) == sorted(given_rows)


def test_a_signal_handler_can_not_flush_what_its_thread_sends() -> None:
    """It would return before the rows are in the log."""
    refused: list[str] = []

    def send(batch: list[Any]) -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGUSR1)
        yield len(batch)

    def on_signal(*_: object) -> None:
        with pytest.raises(ConcurrentUse, match="when the signal handler has ended") as caught:
            rows.flush()
        refused.append(str(caught.value))

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        rows = RowWriter(send, lambda timeout: None, NEVER, 3)
        rows.append(1)
        rows.flush()
        rows.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert commitlog.read_arrow(tmp_path / "store", "orders").read_all()["id"].to_pylist() == [1]

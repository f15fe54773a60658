"""A reader of what is accepted: from the write buffers, before anything is committed or flushed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.client.reader import Reader
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import DamagedFile, DataLoss, ReaderError
from commitlog.message import Message
from commitlog.reading.accepted_bytes import AcceptedBytes
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.write_buffers import WriteBuffers
from tests.builders.killed import kill_store
from tests.fake_clock import SetClock
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": 4},
    "supervisor": {"hung_after_ms": 600_000},  # a stage that is halted stays so
}
PATIENT = SMALL | {
    stage: {"least_pages": 1000, "thorough_interval_ms": 3_600_000} for stage in ("committer", "flusher")
}
"""So few bytes are committed once in an hour."""


def pid_of(store: commitlog.Store, stage: str) -> int:
    return int((store.path / "locks" / stage).read_text())


@contextlib.contextmanager
def stopped(store: commitlog.Store, stage: str) -> Iterator[None]:
    """Within it the stage does nothing."""
    os.kill(pid_of(store, stage), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid_of(store, stage), signal.SIGCONT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path / "store", SMALL) as opened:
        yield opened


def values(path: Path, topic: str, **options: Any) -> list[bytes]:
    with Reader(path, topic, **options) as reader:
        return [message.value for message in reader]


def test_what_no_file_has_is_read(store: commitlog.Store) -> None:
    """All of a message is there, and the reader does not wait for a stage."""
    with store.producer() as producer:
        producer.send("whole", b"committed", key="a", headers={"x": "y"}, tags="t").wait("flushed", 60)
        with stopped(store, "committer"):
            for number in range(3):
                producer.send("whole", b"%d" % number, key="k", headers={"n": f"{number}"}, tags="t")
            assert values(store.path, "whole") == values(store.path, "whole", isolation="committed") == [b"committed"]
            with Reader(store.path, "whole", isolation="accepted") as reader:
                ahead = list(reader)
            with Reader(store.path, "whole", isolation="accepted", start="last 2") as reader:
                assert list(reader) == ahead[2:]
            words = ["cat", str(store.path), "--topic", "whole", "--isolation", "accepted"]
            assert CliRunner().invoke(app, words).stdout_bytes == b"committed\n0\n1\n2\n"
        producer.flush()
    with Reader(store.path, "whole") as reader:
        assert ahead == list(reader)
    assert [message.headers for message in ahead] == [{"x": "y"}, {"n": "0"}, {"n": "1"}, {"n": "2"}]


def test_a_follower_gets_each_message_while_all_stages_rest(store: commitlog.Store) -> None:
    with store.producer() as producer, Reader(store.path, "live", isolation="accepted", follow=True) as reader:
        with stopped(store, "committer"), stopped(store, "flusher"):
            for number in range(20):
                producer.send("live", b"%d" % number)
                message = reader.poll(60)
                assert message is not None
                assert (message.value, message.offset) == (b"%d" % number, number)
        assert reader.poll() is None


def test_a_record_larger_than_a_step_is_read(tmp_path: Path) -> None:
    large = os.urandom(4_100_000)
    config = PATIENT | {"store": {"segment_bytes": 1 << 25}}
    with (
        commitlog.Store.open(tmp_path / "store", config) as store,
        store.producer() as producer,
        stopped(store, "committer"),
    ):
        for value in (b"small", large, b"small again", large):
            producer.send("large", value)
        assert values(store.path, "large", isolation="accepted") == [b"small", large, b"small again", large]


def test_readers_beside_writers_read_every_message_once_and_in_order(tmp_path: Path) -> None:
    """Buffers are used again all the time, segments roll, and bytes move to the files meanwhile."""
    count, writers = 6_000, 2
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:

        def write(number: int) -> None:
            with store.producer() as producer:
                for index in range(count):
                    producer.send("busy", b"%d %d " % (number, index) + bytes(index % 700))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        with Reader(store.path, "busy", isolation="accepted", follow=True) as reader:
            for thread in threads:
                thread.start()
            found: list[Message] = []
            for batch in reader.batches(timeout=60):
                assert batch, "the rest did not come"
                found += batch
                if len(found) == count * writers:
                    break
            for thread in threads:
                thread.join()
    with Reader(store.path, "busy") as reader:
        wanted = {(message.partition, message.offset): message for message in reader}
    assert len(wanted) == len(found) == count * writers
    assert {(message.partition, message.offset): message for message in found} == wanted
    for lane in {message.partition for message in found}:
        offsets = [message.offset for message in found if message.partition == lane]
        assert offsets == sorted(offsets)


def test_a_buffer_that_is_used_again_meanwhile_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the words and the copy, the producer goes round all buffers."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        os.kill(committer := pid_of(store, "committer"), signal.SIGSTOP)
        producer.send("reused", b"first")
        real = AcceptedBytes._mapped

        def late(self: AcceptedBytes, control: ControlRegion, sequence: int, slots: int) -> WriteBuffers | None:
            monkeypatch.undo()
            buffers = real(self, control, sequence, slots)
            os.kill(committer, signal.SIGCONT)
            for number in range(12 * slots):
                producer.send("reused", b"%d " % number + bytes(15_000))
            producer.flush()
            return buffers

        monkeypatch.setattr(AcceptedBytes, "_mapped", late)
        found = values(store.path, "reused", isolation="accepted")
        assert found[0] == b"first"
        assert found == values(store.path, "reused")[: len(found)]


def test_the_pool_of_a_killed_store_is_read(tmp_path: Path) -> None:
    """Nobody runs the store, and what was accepted is in its shared memory."""
    store = commitlog.Store.open(tmp_path / "store", PATIENT)
    with store.producer() as producer:
        producer.send("killed", b"flushed").wait("flushed", 60)
        os.kill(pid_of(store, "committer"), signal.SIGSTOP)
        producer.send("killed", b"accepted")
        kill_store(store)
        assert values(store.path, "killed", isolation="accepted") == [b"flushed", b"accepted"]
    with commitlog.Store.open(tmp_path / "store") as again:
        assert values(again.path, "killed", isolation="accepted") == [b"flushed", b"accepted"]


@pytest.mark.parametrize(("isolation", "starts"), with_nightly([("committed", 1), ("accepted", 3)], [("accepted", 1)]))
def test_what_a_lost_pool_takes_back_is_data_loss(tmp_path: Path, isolation: Any, starts: int) -> None:
    """New messages have the offsets of those lost: who goes on would pass over them.

    After several starts all of the log is flushed that the reader had read of the old one.
    """
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    with Reader(store.path, "lost", isolation=isolation, follow=True) as reader:
        with store.producer() as producer:
            producer.send("lost", b"flushed").wait("flushed", 60)
            os.kill(pid_of(store, "flusher"), signal.SIGSTOP)
            sent = producer.send("lost", b"in memory")
            if isolation == "committed":
                sent.wait("committed", 60)
            found = [reader.poll(60), reader.poll(60)]
            assert [message.value for message in found if message is not None] == [b"flushed", b"in memory"]
            kill_store(store)
        facts = store_facts(store.path)
        assert facts.pool is not None
        shutil.rmtree(facts.pool.directory)
        for file in (store.path / "lanes" / "0" / "commitlog").iterdir():  # as after a power cut
            data = file.read_bytes()
            at = data.find(b"in memory") - 88
            file.write_bytes(data if at < 0 else data[:at] + bytes(len(data) - at))
        with commitlog.Store.open(store.path) as again, again.producer() as producer:
            producer.send("lost", b"replacing").wait("flushed", 60)
            producer.send("lost", b"another").wait("flushed", 60)
            if starts == 1:
                with pytest.raises(DataLoss):
                    wait_until(lambda: reader.poll(1), "an error")
                return
        for _ in range(starts - 1):
            with commitlog.Store.open(store.path):
                pass
        with pytest.raises(DataLoss):
            reader.poll(60)
        assert values(store.path, "lost") == [b"flushed", b"replacing", b"another"]


def store_facts(path: Path) -> StoreFacts:
    return StoreDirectory(path).load()


def test_a_position_is_never_ahead_of_what_is_flushed(store: commitlog.Store) -> None:
    """`commit` waits, or says that it did nothing. An automatic one takes what is flushed."""
    with store.producer() as producer:
        producer.send("named", b"flushed").wait("flushed", 60)
        options: Any = {"isolation": "accepted", "name": "billing"}
        with stopped(store, "committer"):
            producer.send("named", b"accepted")
            with Reader(store.path, "named", clock=SetClock(), **options) as reader:
                assert len(list(reader)) == 2
                with pytest.raises(ReaderError, match="not flushed after 10 seconds"):
                    reader.commit()
                assert reader.committed() == {"named": {0: 0}}
                assert reader.position() == {"named": {0: 2}}
            with Reader(store.path, "named", auto_commit_seconds=0, **options) as reader:
                assert [message.value for message in reader] == [b"flushed", b"accepted"]
                assert reader.committed() == {"named": {0: 1}}
        with Reader(store.path, "named", **options) as reader:
            assert [message.value for message in reader] == [b"accepted"]
            reader.commit()
            assert reader.committed() == {"named": {0: 2}}
        assert values(store.path, "named", name="billing") == []


def test_a_new_name_that_begins_at_the_latest_keeps_what_is_not_flushed(store: commitlog.Store) -> None:
    with store.producer() as producer:
        producer.send("new", b"flushed").wait("flushed", 60)
        with stopped(store, "committer"):
            producer.send("new", b"accepted")
            with Reader(store.path, "new", isolation="accepted", name="late", start="latest") as reader:
                assert list(reader) == []
        producer.flush()
    assert values(store.path, "new", name="late") == [b"accepted"]


def test_what_is_written_to_the_files_directly_is_read(tmp_path: Path) -> None:
    config = {"store": {**SMALL["store"], "write_path": "direct"}}
    with (
        commitlog.Store.open(tmp_path / "store", config) as store,
        store.producer() as producer,
        stopped(store, "committer"),
    ):
        for number in range(300):
            producer.send("direct", b"%d " % number + bytes(400))
        assert len(values(store.path, "direct", isolation="accepted")) == 300


@pytest.mark.parametrize("isolation", ["flushed", "committed"])
def test_a_reader_in_a_hurry_has_each_message_flushed(tmp_path: Path, isolation: Any) -> None:
    """Otherwise the stages of this store would rest for an hour. Nothing of it is left behind."""
    with commitlog.Store.open(tmp_path / "store", PATIENT) as store, store.producer() as producer:
        producer.send("quick", b"the first is due at once").wait("flushed", 60)
        with Reader(store.path, "quick", follow=True, hurry=True, isolation=isolation, start="latest") as reader:
            assert reader.poll() is None
            producer.send("quick", b"second")
            message = reader.poll(60)
            assert message is not None
            assert message.value == b"second"
        wait_until(
            lambda: "commitlog-followed-store" not in {each.name for each in threading.enumerate()}, "its thread"
        )


@pytest.mark.parametrize("lane", with_nightly([1], [0]))
def test_a_buffer_that_can_not_be_mapped_for_a_moment_gives_nothing_twice(
    store: commitlog.Store, monkeypatch: pytest.MonkeyPatch, lane: int
) -> None:
    """The other lane's messages are given out before the error. Then the reader goes on."""
    plain, looks = AcceptedBytes.copy, 0

    def copy(self: AcceptedBytes, where: int, end: int) -> bytes | None:
        nonlocal looks
        looks += self._lane == lane
        if self._lane == lane and looks == 2:
            raise DamagedFile("its write buffers can't be read: too many open files")
        return plain(self, where, end)

    with store.producer() as first, store.producer() as second, stopped(store, "committer"):
        for number in range(45):  # two segments
            for producer in first, second:
                producer.send("twice", b"%d" % number + bytes(2_000))
        with Reader(store.path, "twice", isolation="accepted", follow=True) as reader:
            monkeypatch.setattr(AcceptedBytes, "copy", copy)
            given: list[Message] = []
            errors = 0
            while len(given) < 90:
                try:
                    given.append(next(reader))
                except DamagedFile:
                    errors += 1
        assert len({(message.partition, message.offset) for message in given}) == 90
        assert errors == 1

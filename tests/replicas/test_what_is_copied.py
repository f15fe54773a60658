"""What a copy has besides the log: typed topics, trims, named readers, what retention has left."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.replicas.promotion import promote
from commitlog.watching.health import health
from commitlog.watching.snapshot import StoreWatch
from tests.backups.test_backup import trim
from tests.command_line import run
from tests.replicas.scene import SEGMENT_BYTES, Scene, await_copy, await_replicated, check_equal, log_of
from tests.waiting import wait_until


def files_of(path: Path) -> dict[str, bytes]:
    """The small files that a copy has to have."""
    patterns = ("topics/*/*.json", "topics/*/deleted", "readers/*.json", "lanes/*/trimmed.json")
    found = [file for pattern in patterns for file in path.glob(pattern) if not file.name.startswith(".")]
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


@pytest.mark.nightly
def test_rows_of_a_typed_topic_can_be_read_in_the_copy(scene: Scene) -> None:
    """Also those of a schema that grows while the copy follows."""
    with scene.open() as store, scene.follower():
        store.create_topic("sales", "id BIGINT")
        producer = store.producer()
        producer.send_rows("sales", [{"id": 1}])
        producer.flush()
        await_copy(scene)
        store.create_topic("sales", "id BIGINT, name STRING", evolve=True)
        producer.send_rows("sales", [{"id": 2, "name": "b"}])
        producer.flush()
        await_copy(scene)
        check_equal(scene)
        rows = commitlog.read_arrow(scene.copy, "sales").read_all().to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(1, None), (2, "b")]


def test_readers_trims_and_deletions_come_and_go(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        store.create_topic("sales", "id BIGINT")
        producer = store.producer()
        producer.send_rows("sales", [{"id": 1}])
        for number in range(10):
            producer.send("orders", b"%d" % number)
        producer.flush()
        for name in ("billing", "gone"):
            with commitlog.Reader(scene.primary, "orders", name=name) as reader:
                reader.commit(next(reader))
        wait_until(lambda: files_of(scene.copy) == files_of(scene.primary), "the copy has the readers")
        (scene.primary / "readers/gone.json").unlink()
        wait_until(lambda: files_of(scene.copy) == files_of(scene.primary), "the reader has gone there, too")
        assert "readers/billing.json" in files_of(scene.copy)
    promote(scene.copy)
    with commitlog.Reader(scene.copy, "orders", name="billing") as reader:
        assert next(reader).value == b"1"


def damage(path: Path) -> None:
    """Turns over a bit of a digit that matters: the checksum does not match any more."""
    data = bytearray(path.read_bytes())
    data[-12] ^= 1
    path.write_bytes(data)


def test_what_is_damaged_never_takes_the_place_of_an_intact_file(scene: Scene) -> None:
    """While the copy follows, and where it comes again. Health names each of the files."""
    names = ["readers/billing.json", "topics/gone/deleted", "topics/sales/1.json", "lanes/0/trimmed.json"]
    with scene.open() as store:
        store.create_topic("sales", "id BIGINT")
        store.create_topic("gone", "id BIGINT")
        with store.producer() as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number)
            producer.flush()
        trim(store.path, "orders", "last 5")
        assert run("topics", store.path, "--delete", "gone", "--yes").returncode == 0
        with commitlog.Reader(scene.primary, "orders", name="billing") as reader:
            reader.commit(next(reader))
        with scene.follower():
            wait_until(lambda: files_of(scene.copy) == files_of(scene.primary), "the copy has all of them")
            intact = files_of(scene.copy)
            for name in names:
                damage(scene.primary / name)
            rest = {name for name in names if not name.startswith("topics/sales")}  # a schema is sent once
            wait_until(lambda: not_copied(scene.primary) == rest, "they are named")
        with scene.follower():
            wait_until(lambda: not_copied(scene.primary) == {*names}, "they are named again")
            with store.producer() as producer:
                await_replicated(producer.send("orders", b"more"))
            assert files_of(scene.copy) == intact
            for name in names:
                (scene.primary / name).write_bytes(intact[name])
            wait_until(lambda: not_copied(scene.primary) <= {"topics/sales/1.json"}, "it has healed")


def not_copied(path: Path) -> set[str]:
    """The names of the small files that health says are not copied."""
    with StoreWatch(path) as watch:
        reasons = health(watch.snapshot()).reasons
    texts = [reason.text for reason in reasons if reason.code == "file-not-copied"]
    return {text.partition("keep the ")[2].partition(" that they have")[0] for text in texts}


@pytest.mark.nightly
def test_what_was_removed_while_the_copy_was_away_goes_from_it(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        producer = store.producer()
        producer.send("orders", b"one")
        producer.flush()
        with commitlog.Reader(scene.primary, "orders", name="billing") as reader:
            reader.commit(next(reader))
        wait_until((scene.copy / "readers/billing.json").exists, "the copy has the reader")
    (scene.primary / "readers/billing.json").unlink()
    with scene.open(), scene.follower():
        wait_until(lambda: not (scene.copy / "readers/billing.json").exists(), "the reader has gone there, too")


@pytest.mark.nightly
def test_retention_deletes_in_the_copy_too(scene: Scene) -> None:
    scene.sections["retention"] = {"max_bytes": 6 * SEGMENT_BYTES, "interval_ms": 20}
    with scene.open() as store, scene.follower():
        producer = store.producer()
        for number in range(3000):
            producer.send("orders", b"%4d" % number * 50)
            if number % 200 == 0:
                producer.flush()
        producer.flush()
        await_copy(scene)

        def starts(path: Path) -> list[str]:
            return sorted(file.name for file in (path / "lanes/0/commitlog").iterdir())

        wait_until(lambda: starts(scene.copy)[0] == starts(scene.primary)[0] != f"{0:020d}", "the same first segment")
        await_copy(scene)
        check_equal(scene)


@pytest.mark.nightly
def test_lanes_that_come_later_are_copied(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        first = store.producer()
        first.send("orders", b"one")
        first.flush()
        await_copy(scene)
        second = store.producer()
        second.send("orders", b"two").wait("replicated", timeout=60)
        assert sorted(log_of(scene.copy)) in ([0], [0, 1])
        await_copy(scene)
        assert sorted(log_of(scene.copy)) == [0, 1]


@pytest.mark.nightly
def test_what_is_trimmed_or_deleted_stays_so_on_a_promoted_copy(scene: Scene) -> None:
    with scene.open() as store, scene.follower():
        producer = store.producer()
        for number in range(10):
            producer.send("orders", b"%d" % number)
            producer.send("other", b"%d" % number)
        producer.flush()
        await_copy(scene)
        trim(scene.primary, "orders", '{"0": 7}')
        trim(scene.primary, "other")
        wait_until(lambda: files_of(scene.copy) == files_of(scene.primary), "the copy has the marks")
    promote(scene.copy)
    with scene.open(scene.copy, listen=""), commitlog.Reader(scene.copy, "orders") as reader:
        assert [bytes(message.value) for message in reader] == [b"7", b"8", b"9"]
    assert "other" not in TopicIndex(StoreView(scene.copy)).topics()

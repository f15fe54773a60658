"""A store that is renamed, or replaced, while it runs.

Nothing is made at its old path, and nothing is lost or doubled.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.appending.attachment import Attachment
from commitlog.disk.file_channel import DISK
from commitlog.inspecting.verify import verify_store
from commitlog.opening.stray_pools import stray_pools
from commitlog.shm.layout import STAGES, Lane
from commitlog.stages.store_channel import StoreChannel
from tests.builders.made_lane import image
from tests.crash.scene import await_stages_gone, is_running, kill, pid_of
from tests.faults.bench import bench
from tests.faults.test_disk import CONFIG
from tests.nightly import with_nightly
from tests.waiting import wait_until


class Sent:
    """A producer, and which of its messages were accepted, by topic, in order."""

    def __init__(self, path: Path) -> None:
        self.producer = commitlog.Producer(path)
        self.bodies: dict[str, list[bytes]] = {}

    def send(self, topic: str) -> commitlog.Receipt:
        body = b"%s %d" % (topic.encode(), len(self.bodies.get(topic, ())))
        receipt = self.producer.send(topic, body)
        self.bodies.setdefault(topic, []).append(body)
        return receipt

    def until_refused(self) -> errors.CommitLogError:
        """Sends to ever new topics until the store is stopped."""
        refused: list[errors.CommitLogError] = []

        def is_refused() -> bool:
            try:
                self.send(f"new-{len(self.bodies)}")
            except errors.CommitLogError as error:
                refused.append(error)
            return bool(refused)

        wait_until(is_refused, "the store to stop")
        return refused[0]


def everything_is_there(path: Path, sent: Sent) -> None:
    """After a start: each message once, and each topic goes on at its next offset."""
    with commitlog.Store.open(path, CONFIG) as store:
        producer = store.producer()
        for topic, bodies in sent.bodies.items():
            receipt = producer.send(topic, b"last")
            assert receipt.offset == len(bodies)
        receipt.wait("flushed", 60)
        with commitlog.Reader(path) as reader:
            found: dict[str, list[bytes]] = {}
            for message in reader:
                assert message.offset == len(found.setdefault(message.topic, []))
                found[message.topic].append(message.value)
    assert found == {topic: [*bodies, b"last"] for topic, bodies in sent.bodies.items()}
    assert verify_store(path).good


@contextlib.contextmanager
def running(path: Path) -> Iterator[tuple[commitlog.Store, Sent]]:
    """A store with two topics, whose first messages are in their queues."""
    store = commitlog.Store.open(path, CONFIG)
    sent = Sent(path)
    try:
        for topic in ("orders", "payments") * 20:
            sent.send(topic)
        sent.producer.flush(timeout=60)
        wait_until(lambda: store.statistics().lanes[0].dispatched == sent.producer.statistics().wrote, "dispatch")
        yield store, sent
    finally:
        sent.producer.close()
        with contextlib.suppress(errors.CommitLogError):
            store.close()


@pytest.mark.leaves_pools
@pytest.mark.parametrize("back", with_nightly([True], [False]))
def test_it_stops_by_name_and_goes_on_where_it_is_started(tmp_path: Path, back: bool) -> None:
    """The error's text has the way out: move it back, or start it at its new place."""
    path, other = tmp_path / "store", tmp_path / "elsewhere"
    with running(path) as (store, sent):
        stages = [pid_of(path, name) for name in STAGES]
        path.rename(other)
        refused = sent.until_refused()
        assert isinstance(refused, errors.StoreStopped | errors.StoreMoved)
        with pytest.raises(errors.StoreMoved, match="move the directory back, or start the store at its new place"):
            store.close()
        assert not any(map(is_running, stages))
        assert not path.exists()
        assert stray_pools() == [] or not back  # the pool knows where its store was
        sent.producer.close()
        if back:
            other.rename(path)
        everything_is_there(path if back else other, sent)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_everything_killed_after_the_rename(tmp_path: Path) -> None:
    """With a producer that sends to new topics meanwhile."""
    path, other = tmp_path / "store", tmp_path / "elsewhere"
    with running(path) as (store, sent):
        pids = [pid_of(path, name) for name in ("", *STAGES)]
        path.rename(other)
        with contextlib.suppress(errors.CommitLogError):
            for number in range(20):
                sent.send(f"new-{number}")
        row = sent.producer._lease.row
        wait_until(
            lambda: row[Lane.DISPATCHED] == row[Lane.WROTE] or not is_running(pids[-1]),
            "the dispatcher to place them somewhere, or to leave",
        )
        for pid in pids:
            kill(pid)
        sent.producer.close()
        with contextlib.suppress(errors.CommitLogError):
            store.close()
        await_stages_gone(other)
        assert not path.exists()
        other.rename(path)
        everything_is_there(path, sent)


def _another_store(path: Path, _old: Path) -> None:
    with commitlog.Store.open(path, CONFIG) as store:
        store.producer().send("theirs", b"x").wait("flushed", 60)


def _a_copy(path: Path, old: Path) -> None:
    shutil.copytree(old, path)


@pytest.mark.nightly
@pytest.mark.leaves_pools
@pytest.mark.parametrize(
    "make", with_nightly([_another_store], [Path.mkdir, _a_copy]), ids=["another store", "empty", "a copy"]
)
def test_what_is_in_its_old_place_is_not_touched(tmp_path: Path, make: Callable[..., None]) -> None:
    """Two renames swap two stores, whose stages have opened files by path until then."""
    path, other, aside = tmp_path / "store", tmp_path / "elsewhere", tmp_path / "aside"
    with running(path) as (store, sent):
        make(aside, path) if make is not Path.mkdir else aside.mkdir()
        before = image(aside)
        path.rename(other)
        aside.rename(path)
        sent.until_refused()
        with pytest.raises(errors.StoreMoved):
            store.close()
        assert image(path) == before
        sent.producer.close()
        path.rename(aside)
        other.rename(path)
        everything_is_there(path, sent)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_wait_ends_while_another_store_runs_in_the_old_place(tmp_path: Path) -> None:
    """The supervisor there is another store's: nobody will flush what was sent."""
    path, other = tmp_path / "store", tmp_path / "elsewhere"
    with running(path) as (store, sent):
        path.rename(other)
        with pytest.raises(errors.StoreMoved):
            store.close()
        receipt = sent.send("orders")
        with commitlog.Store.open(path, CONFIG):
            for wait in (lambda: receipt.wait(timeout=60), lambda: sent.producer.flush(timeout=60)):
                with pytest.raises(errors.StoreStopped):
                    wait()
        sent.producer.close()
        everything_is_there(other, sent)


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_a_stop_that_comes_first_keeps_the_pool_too(tmp_path: Path) -> None:
    """It says why. The directory in the old place is not taken for the store."""
    path, other = tmp_path / "store", tmp_path / "elsewhere"
    with running(path) as (store, sent):
        sent.producer.close()
        path.rename(other)
        path.mkdir()
        with pytest.raises(errors.StoreMoved, match="was renamed, removed or replaced"):
            store.close()
        assert list(path.iterdir()) == []
        path.rmdir()
        other.rename(path)
        everything_is_there(path, sent)


def test_the_stages_make_nothing_above_the_lane(tmp_path: Path) -> None:
    """Rounds by hand, so that nobody notices the move.

    Each missing path is a fault, which ends when the directory is back.
    """
    path, other = tmp_path / "store", tmp_path / "elsewhere"
    with bench(path) as made:
        producer = made.producer()
        producer.send("orders", b"0")
        made.settle()
        path.rename(other)
        producer.send("orders", b"1")
        with pytest.raises(errors.StoreMoved):  # not offset 0
            producer.send("new", b"0")
        for _ in range(3):
            made.turn()
            made.clock.step(1)
            for stage in made.stages.values():
                stage.on_wait_end()
        assert not path.exists()
        with pytest.raises(errors.CommitLogError):
            made.producer()
        assert not path.exists()
        other.rename(path)
        assert producer.send("new", b"0").offset == 0
        made.settle()
        assert made.lane(Lane.DISPATCHER_FAULT) == 0
        with commitlog.Reader(path) as reader:
            assert [message.value for message in reader] == [b"0", b"1", b"0"]


@pytest.mark.parametrize("make", [shutil.copytree, lambda _old, new: new.mkdir()], ids=["a copy", "empty"])
def test_a_lessee_learns_nothing_from_another_directory(tmp_path: Path, make: Callable[..., None]) -> None:
    """A directory comes into the store's place during the search for the lane's end."""
    path, other = tmp_path / "store", tmp_path / "elsewhere"
    with bench(path) as made:
        with made.producer() as producer:
            producer.send("orders", b"0")
            made.settle()
        attachment = Attachment(path, made.clock)
        lease = attachment.lease()
        path.rename(other)
        make(other, path)
        with pytest.raises(errors.StoreMoved, match="was renamed, removed or replaced"):
            lease.log_end()
        lease.release()
        attachment.close()
        shutil.rmtree(path)
        other.rename(path)


def test_a_directory_is_made_below_one_that_is_there(tmp_path: Path) -> None:
    DISK.create_directory(tmp_path / "a/b", below=tmp_path)
    DISK.create_directory(tmp_path / "a/b", below=tmp_path / "a/b")
    assert DISK.make_directory(tmp_path / "a/b/c/d", below=tmp_path / "a") == [tmp_path / "a/b/c", tmp_path / "a/b/c/d"]
    with pytest.raises(FileNotFoundError) as raised:
        DISK.create_directory(tmp_path / "x/y/z", below=tmp_path / "x")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_stage_opens_nothing_in_another_directory(tmp_path: Path) -> None:
    """Whatever the call. What comes into the place during an open is neither written nor synced."""
    path, other, theirs = tmp_path / "store", tmp_path / "elsewhere", tmp_path / "theirs"
    for directory in (path, theirs):
        directory.mkdir()
        (directory / "file").write_bytes(b"x")
    channel = StoreChannel(path)
    channel.close(channel.open(path / "file"))
    before = image(theirs)

    class Swapping(StoreChannel):
        """Swaps the directory after the first look of an open."""

        def _check(self) -> None:
            super()._check()
            if path.exists() and not other.exists():
                path.rename(other)
                theirs.rename(path)

    with pytest.raises(FileNotFoundError, match="the store is not here any more"):
        Swapping(path).open(path / "file", write=True)
    for call in (
        lambda: channel.open(path / "new", write=True, create=True),
        lambda: channel.unlink(path / "file"),
        lambda: channel.rename(path / "file", path / "new"),
        lambda: channel.create_directory(path / "new", below=path),
        lambda: channel.replace_file(path / "file", b"y"),
    ):
        with pytest.raises(FileNotFoundError, match="the store is not here any more"):
            call()
    assert image(path) == before
    path.rename(theirs)
    other.rename(path)
    channel.replace_file(path / "file", b"y")

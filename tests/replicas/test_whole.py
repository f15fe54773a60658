"""A copy that has lost a part of its log: it heals before it counts, and a promotion says it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

import commitlog
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReadingWarning
from commitlog.inspecting.verify import verify_store
from commitlog.record.crc import crc32
from commitlog.record.record_layout import Buffer
from commitlog.replicas.promotion import promote, recover_all
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from tests.nightly import with_nightly
from tests.replicas.scene import SEGMENT_BYTES, Scene, await_copy, await_replicated, check_equal, flushed_of, log_of
from tests.waiting import wait_until

MESSAGES = 300


def fill(store: commitlog.Store) -> None:
    with store.producer() as producer:
        for number in range(MESSAGES):
            producer.send("orders", b"%d " % number * 256)
        producer.flush()


def segments(copy: Path) -> list[Path]:
    return sorted((copy / "lanes/0/commitlog").glob("[0-9]*"))


def segment(copy: Path, number: int) -> Path:
    return segments(copy)[number]


def lose(number: int) -> Callable[[Path], None]:
    return lambda copy: segment(copy, number).unlink()


def shorten(copy: Path) -> None:
    with segment(copy, 1).open("r+b") as file:
        file.truncate(100)


def zero_begin(copy: Path) -> None:
    with segment(copy, 1).open("r+b") as file:
        file.write(bytes(4096))


def lose_lane(copy: Path) -> None:
    shutil.rmtree(copy / "lanes/0")


def lose_positions(copy: Path) -> None:
    lose(1)(copy)
    (copy / "lanes/0/positions").unlink()


LOSSES = {
    "middle": lose(1), "first": lose(0), "last": lose(-1), "lane": lose_lane,
    "shortened": shorten, "zeroed": zero_begin, "positions": lose_positions,
}  # fmt: skip


def readable(path: Path) -> int:
    with commitlog.Reader(path, topic="orders") as reader:
        return sum(1 for _ in reader)


@pytest.mark.parametrize("loss", with_nightly(["middle"], ["last", "lane", *list(LOSSES)]))
def test_a_copy_gets_back_what_it_has_lost(scene: Scene, loss: str) -> None:
    """It is the primary's log again, byte for byte, and a sound store when it is promoted."""
    scene.copied(fill)
    LOSSES[loss](scene.copy)
    with scene.open() as store, scene.follower():
        with store.producer() as producer:
            await_replicated(producer.send("orders", b"more"))
        await_copy(scene)
        check_equal(scene)
    made = promote(scene.copy)
    assert not made.lacks
    assert readable(scene.copy) == MESSAGES + 1
    assert verify_store(scene.copy).good


@pytest.mark.parametrize("loss", with_nightly(["lane"], ["middle", *list(LOSSES)]))
def test_a_promotion_says_what_the_copy_has_lost(scene: Scene, loss: str) -> None:
    """What is lost is damage in the new store, also a whole lane, so it is never just not there."""
    scene.copied(fill)
    LOSSES[loss](scene.copy)
    made = promote(scene.copy)
    assert made.lacks[0] >= SEGMENT_BYTES // 8
    assert not verify_store(scene.copy).good


@pytest.mark.parametrize("loss", with_nightly(["last"], ["middle", "last zeroed"]))
def test_what_a_killed_copy_has_lost_behind_its_positions(scene: Scene, loss: str) -> None:
    """Positions are recorded once in a second. Before, recovery took the hole for damage."""
    scene.copied(fill)
    ends = flushed_of(scene.copy)
    lane, facts = StoreDirectory(scene.copy).lane_directory(0), StoreDirectory(scene.copy).load()
    positions = PositionsFile(lane, facts.id, DISK)
    known = positions.load()
    assert known is not None
    positions.store(replace(known, flushed_where=100, dispatched_where=0, drained=False, entries=-1))
    if loss == "middle":
        lose(1)(scene.copy)
    elif loss == "last":
        segment(scene.copy, ends[0] // SEGMENT_BYTES).unlink()
    else:
        with segment(scene.copy, ends[0] // SEGMENT_BYTES).open("r+b") as file:
            file.write(bytes(4096))
    with scene.open(), scene.follower():
        await_copy(scene)
        check_equal(scene)
    assert verify_store(scene.copy).good


@pytest.mark.nightly
@pytest.mark.parametrize("size", with_nightly([SEGMENT_BYTES], [1 << 19]))
def test_damage_that_only_the_copy_has_noted_heals(scene: Scene, size: int) -> None:
    """A promotion that was killed has noted it. Before, that passed for the store's damage.

    The damage is in a segment that is asked for, or in the last one, whose rest comes again.
    """
    scene.sections["store"] = {"segment_bytes": size}
    with scene.open() as store, scene.follower():
        fill(store)
        await_copy(scene)
    with segment(scene.copy, 0).open("r+b") as file:
        file.seek(2_000)
        file.write(b"\xff" * 64)
    lane = StoreDirectory(scene.copy).lane_directory(0)
    positions = PositionsFile(lane, StoreDirectory(scene.copy).load().id, DISK)
    known = positions.load()
    assert known is not None
    positions.store(replace(known, dispatched_where=0, drained=False, entries=-1))
    recover_all(StoreDirectory(scene.copy), StoreDirectory(scene.copy).load(), lambda line: None)
    assert list(lane.quarantine.glob("corrupt-*"))
    with scene.open() as store, scene.follower():
        with store.producer() as producer:
            await_replicated(producer.send("orders", b"more"))
        await_copy(scene)
        check_equal(scene)
    assert not list(lane.quarantine.glob("corrupt-*"))
    assert verify_store(scene.copy).good


@pytest.mark.nightly
def test_what_the_store_has_lost_is_told_by_a_new_copy(scene: Scene) -> None:
    """Of a topic that ends in the damage, too: the log does not tell the copy of that."""
    with scene.open() as store, store.producer() as producer:
        for number in range(MESSAGES):
            producer.send("orders", b"%d " % number * 256)
            if number in (0, MESSAGES // 2):
                producer.send("gone", b"the message")
    (lost,) = (one for one in segments(scene.primary)[1:] if b"the message" in one.read_bytes())
    lost.unlink()
    with scene.open(), scene.follower():
        await_copy(scene)
        check_told(scene.copy)
    promote(scene.copy)
    check_told(scene.copy)


def check_told(path: Path) -> None:
    with pytest.warns(ReadingWarning, match="lane 0 is damaged from offset"):
        assert commitlog.read_arrow(path, "gone").read_all().num_rows == 1


class FullDisk(FileChannel):
    """No segment takes anything."""

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).parent.name == "commitlog":
            raise OSError(errno.ENOSPC, "full")
        super().pwrite(fd, data, offset)


def test_an_older_copy_put_back_says_what_it_lacks(scene: Scene) -> None:
    """It has met the store once more, which knows what it had acknowledged, and got no further."""
    scene.copied(fill)
    shutil.copytree(scene.copy, older := scene.path / "older")
    before = flushed_of(older)[0]
    with scene.open() as store, scene.follower():
        fill(store)
        await_copy(scene)
        mark = StoreDirectory(scene.copy)
        had = flushed_of(scene.copy)[0]
        wait_until(lambda: load_mark(mark).acknowledged == {0: had}, "it is noted")  # type: ignore[union-attr]
    shutil.rmtree(scene.copy)
    older.rename(scene.copy)
    certificate, key = scene.certificates.make("of-copy")
    credentials = Credentials(certificate, key, scene.certificates.authority)
    kept = Replica(scene.copy, f"localhost:{scene.port}", credentials, "copy", channel=FullDisk())
    with scene.open():
        thread = threading.Thread(target=kept.run)
        thread.start()
        try:
            wait_until(lambda: load_mark(mark).acknowledged == {0: had}, "it has heard it")  # type: ignore[union-attr]
        finally:
            kept.stop()
            thread.join()
    verified = verify_store(scene.copy)
    assert [one.reason for lane in verified.lanes for one in lane.findings] == [
        f"this copy had acknowledged the log up to {had:,}: it lacks {had - before:,} bytes, which `commitlog replica` "
        f"asks its store for"
    ]
    assert promote(scene.copy).lacks == {0: had - before}


def flip(copy: Path) -> None:
    """One bit in the middle of a segment: it is there, and begins with a record."""
    with segment(copy, 1).open("r+b") as file:
        file.seek(SEGMENT_BYTES // 2)
        byte = file.read(1)[0]
        file.seek(SEGMENT_BYTES // 2)
        file.write(bytes([byte ^ 1]))


def sums_of(copy: Path) -> Path:
    return copy / "lanes/0/segments.json"


def without_sums(copy: Path) -> None:
    """As in a copy that an older package has made."""
    flip(copy)
    sums_of(copy).unlink()


def damaged_sums(copy: Path) -> None:
    flip(copy)
    sums_of(copy).write_bytes(sums_of(copy).read_bytes().replace(b'"lane":0', b'"lane":1'))


CHANGES = {"a bit": flip, "a bit, and no checksums": without_sums, "a bit, and a damaged checksum": damaged_sums}


@pytest.mark.parametrize("change", with_nightly(["a bit"], list(CHANGES)))
def test_a_segment_whose_bytes_have_changed_comes_again(scene: Scene, change: str) -> None:
    """The copy finds it while it follows, and the checksums are those of the store's files."""
    scene.copied(fill)
    CHANGES[change](scene.copy)
    with scene.open(), scene.follower():
        wait_until(lambda: log_of(scene.copy) == log_of(scene.primary), "it has healed")
        await_copy(scene)
        whole = {str(int(file.name)): f"{crc32(file.read_bytes()):08x}" for file in whole_segments(scene.primary)}
        wait_until(lambda: orjson.loads(sums_of(scene.copy).read_bytes())["segments"] == whole, "all have a checksum")
        check_equal(scene)
    assert not promote(scene.copy).lacks
    assert verify_store(scene.copy).good
    assert not sums_of(scene.copy).exists()


def whole_segments(store: Path) -> list[Path]:
    end = flushed_of(store)[0]
    files = (store / "lanes/0/commitlog").glob("[0-9]*")
    return [file for file in sorted(files) if int(file.name) + SEGMENT_BYTES <= end]


@pytest.mark.parametrize("change", with_nightly(["a bit"], ["a bit, and a damaged checksum"]))
def test_a_promotion_says_which_bytes_have_changed(scene: Scene, change: str) -> None:
    """Also without --verify-all. Before, only a reader found it, when it came there."""
    scene.copied(fill)
    CHANGES[change](scene.copy)
    assert promote(scene.copy).lacks == {0: SEGMENT_BYTES}


@pytest.mark.nightly
def test_damage_within_a_segment_is_found_where_all_is_read(scene: Scene) -> None:
    scene.copied(fill)
    with segment(scene.copy, 1).open("r+b") as file:
        file.seek(SEGMENT_BYTES // 2)
        file.write(b"\xff" * 64)
    shutil.copytree(scene.copy, scene.path / "promoted")
    assert promote(scene.path / "promoted", verify_all=True).lacks == {0: SEGMENT_BYTES}
    with scene.open(), scene.replica(None, "--verify-all") as command:
        wait_until(lambda: "following" in command.said(), "it follows")
        await_copy(scene)
        check_equal(scene)

"""Older files under a newer pool, segments removed or emptied: healed from memory, or refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CorruptRecord, DamagedFile, PoolNotAdopted
from commitlog.inspecting.verify import verify_store
from tests.builders.killed import kill_store
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools

SEGMENT = 1 << 16
CONFIG: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": SEGMENT, "max_lanes": 2},
    "flusher": {"positions_interval_ms": 50},
}


class Killed:
    """A store that was killed when everything was flushed.

    `copies` of its first lane were made on the way, after so many segments.
    """

    def __init__(self, directory: Path, segments: int, *copied_at: float) -> None:
        self.path = directory / "store"
        self.copies = {at: directory / f"copy {at}" for at in copied_at}
        store = commitlog.Store.open(self.path, CONFIG)
        self.sent = 0
        with commitlog.Producer(self.path) as producer:
            for at, copy in self.copies.items():
                self._send(store, producer, int(at * SEGMENT))
                shutil.copytree(self.path / "lanes/0", copy)
            self._send(store, producer, segments * SEGMENT)
        kill_store(store)
        self.log = self.path / "lanes/0/commitlog"

    def _send(self, store: commitlog.Store, producer: commitlog.Producer, until: int) -> None:
        where = 0
        while where < until:
            where = producer.send("orders", b"%08d" % self.sent * 10).physical_offset
            self.sent += 1
        producer.flush()

        def is_recorded() -> bool:
            (lane,) = store.statistics().lanes
            file = PositionsFile(StoreDirectory(self.path).lane_directory(0), "", DISK)
            known = file.load()
            made = len(list((self.path / "lanes/0/commitlog").iterdir()))
            if made < lane.wrote // SEGMENT + 3:
                return False  # two are made ahead, and the lane is copied next
            return known is not None and lane.dispatched == known.dispatched_where == known.flushed_where == lane.wrote

        wait_until(is_recorded, "positions")

    def segment(self, number: int) -> Path:
        return self.log / f"{number * SEGMENT:020d}"

    def put_back(self, copy: Path, *names: str) -> None:
        """Replaces what is there by what the copy has."""
        for name in names or ("commitlog",):
            self._put_back(copy, name)

    def _put_back(self, copy: Path, name: str) -> None:
        target, source = self.path / "lanes/0" / name, copy / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)

    def is_whole(self) -> None:
        """Opens the store, sends on, and finds everything once."""
        with commitlog.Store.open(self.path, CONFIG) as store, store.producer() as producer:
            assert producer.send("orders", b"more").offset == self.sent
            producer.flush()
            with commitlog.Reader(self.path) as reader:
                assert [message.offset for message in reader] == list(range(self.sent + 1))
        report = verify_store(self.path)
        assert report.good, report


def test_what_buffers_hold_is_written_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Older files of a log that is in the buffers completely: nothing is lost."""
    case = Killed(tmp_path, 2, 0.5)
    case.put_back(case.copies[0.5])
    case.is_whole()
    assert caplog.text.count("written back from memory") == 3


_HARMS = [(how, number) for how in ("missing", "empty", "zeros", "cut", "flipped") for number in (-1, -2)]


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "number"), _HARMS)
def test_a_harmed_segment_is_written_back(
    how: str, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last segment and the one before it; also with older positions and queues."""
    case = Killed(tmp_path, 5)
    last = max(file for file in case.log.iterdir() if any(file.read_bytes()))
    file = case.log / f"{int(last.name) + (number + 1) * SEGMENT:020d}"
    data = file.read_bytes()
    file.unlink()
    if how != "missing":
        flipped = data[:100] + bytes([data[100] ^ 8]) + data[101:]
        file.write_bytes({"empty": b"", "zeros": bytes(SEGMENT), "cut": data[:999], "flipped": flipped}[how])
    case.is_whole()
    assert f"{file.name}: of what was flushed" in caplog.text


@pytest.mark.nightly
def test_older_files_than_the_buffers_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The error names the file, each time. With the newer files back in place, all is as before."""
    case = Killed(tmp_path, 6, 0.5, 2.5, 3.5)
    newer = tmp_path / "newer"
    shutil.copytree(case.path / "lanes/0", newer)
    everything = ("commitlog", "positions", "consumequeue")
    assert len(case.copies) == 3
    for at, copy in case.copies.items():
        for names in (("commitlog",), everything):
            with subtests.test(copied_at=at, names=names):
                case.put_back(newer, *everything)
                case.put_back(copy, *names)
                with pytest.raises(
                    PoolNotAdopted, match=r"these files are older than the pool .* put the newer files back"
                ):
                    commitlog.Store.open(case.path, CONFIG)
    case.put_back(newer)  # positions and queues stay older
    case.is_whole()


@pytest.mark.nightly
def test_a_lane_without_buffers_is_older(tmp_path: Path) -> None:
    """The pool still says how far it was flushed: what its older files lack is damage."""
    case = Killed(tmp_path, 6, 2.5)
    case.put_back(case.copies[2.5], "commitlog", "positions", "consumequeue")
    place = StoreDirectory(case.path).load().pool
    assert place is not None
    Path(place.directory, "lane-0").unlink()
    commitlog.Store.open(case.path, CONFIG).close()
    assert not verify_store(case.path).good
    with pytest.raises((CorruptRecord, DamagedFile)), commitlog.Reader(case.path) as reader:
        list(reader)


@pytest.mark.nightly
def test_only_the_half_full_segment_is_older(tmp_path: Path) -> None:
    """It is right before what the buffers hold, whose files are missing.

    Those are healed, and this one is checked.
    """
    case = Killed(tmp_path, 5, 2.5)
    shutil.copyfile(case.copies[2.5] / f"commitlog/{2 * SEGMENT:020d}", case.segment(2))
    case.segment(3).unlink()
    with pytest.raises(PoolNotAdopted, match=f"{2 * SEGMENT:020d} ends at offset .* older than the pool"):
        commitlog.Store.open(case.path, CONFIG)


@pytest.mark.nightly
def test_a_segment_that_no_buffer_holds_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The store is left as it is, and the error names the file."""
    case = Killed(tmp_path, 6)
    file = case.segment(1)
    data = file.read_bytes()
    harms = {"missing": None, "empty": b"", "zeros": bytes(SEGMENT), "cut": data[:999]}
    for how, left in harms.items():
        with subtests.test(how=how):
            file.unlink()
            if left is not None:
                file.write_bytes(left)
            with pytest.raises(PoolNotAdopted, match=f"{file.name} (is missing|is empty|has 999 bytes), and all below"):
                commitlog.Store.open(case.path, CONFIG)
            file.write_bytes(data)
    case.is_whole()


@pytest.mark.nightly
def test_segments_made_ahead_are_made_again(tmp_path: Path) -> None:
    """They hold nothing."""
    case = Killed(tmp_path, 2)
    ahead = [file for file in case.log.iterdir() if not any(file.read_bytes())]
    assert ahead
    for file in ahead:
        file.unlink()
    case.is_whole()


@pytest.mark.nightly
def test_a_lane_without_its_directory_is_refused(tmp_path: Path) -> None:
    """With buffers or without."""
    case = Killed(tmp_path, 2)
    (case.path / "lanes/0").rename(tmp_path / "away")
    with pytest.raises(PoolNotAdopted, match=r"lane 0 is in .* and has no directory"):
        commitlog.Store.open(case.path, CONFIG)
    (tmp_path / "away").rename(case.path / "lanes/0")
    case.is_whole()

"""Segment files are lost: what readers raised before a start, every tool still says after it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CorruptRecord, DamagedFile, DataLoss, ReadingWarning
from commitlog.inspecting.verify import StoreReport, verify_store
from commitlog.message import Message
from commitlog.watching.health import health
from commitlog.watching.snapshot import StoreWatch
from tests.builders.hand_made import HandMadeLane, HandMadeStore

SEGMENT = 1 << 12
COUNT = 100
KEEPS = {"retention": {"reserved_hours": 1_000_000}}
"""The messages of stores made by hand are old."""


def remove(segment: Path) -> None:
    segment.unlink()


def empty(segment: Path) -> None:
    segment.write_bytes(b"")


def make_directory(segment: Path) -> None:
    segment.unlink()
    segment.mkdir()


def make_link(segment: Path) -> None:
    segment.rename(segment.with_name("elsewhere"))
    segment.symlink_to(segment.with_name("elsewhere"))


def shorten(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[: SEGMENT // 2])


Harm = Callable[[Path], None]
HARMS: dict[str, tuple[Harm, slice]] = {
    "first removed": (remove, slice(0, 1)),
    "first emptied": (empty, slice(0, 1)),
    "first a directory": (make_directory, slice(0, 1)),
    "first a link": (make_link, slice(0, 1)),
    "first too short": (shorten, slice(0, 1)),
    "first two removed": (remove, slice(0, 2)),
    "middle removed": (remove, slice(2, 3)),
    "middle too short": (shorten, slice(2, 3)),
    "last removed": (remove, slice(-1, None)),
    "last two emptied": (empty, slice(-2, None)),
    "last a directory": (make_directory, slice(-1, None)),
    "all removed": (remove, slice(None)),
}
LANES = {f"{kind}, {harm}": number for number, (kind, harm) in enumerate(
    (kind, harm) for kind in ("stopped", "killed") for harm in HARMS
)}  # fmt: skip


def make_lane(store: HandMadeStore, number: int, kind: str) -> HandMadeLane:
    """A lane with a topic of its own, in eight segments."""
    lane = store.lane(number)
    for row in range(COUNT):
        lane.append(f"t{number}", b"%d" % row * 70)
    lane.dispatch()
    lane.publish()
    if kind == "killed":
        directory = store.directory.lane_directory(number)
        directory.abort_file.touch()
        PositionsFile(directory, store.id, DISK).store(Positions(1, lane.end, lane.end, 0, 0, False, COUNT))
    return lane


def strict(path: Path, topic: str, **options: str) -> list[Message]:
    with commitlog.Reader(path, topic=topic, **options) as reader:  # type: ignore[arg-type]
        return list(reader)


@dataclass(frozen=True)
class Started:
    """A store of many harmed lanes that was started and stopped again."""

    path: Path
    intact: dict[int, list[bytes]]
    """Lane → the values that are still in its files."""
    before: dict[int, bool]
    """Lane → whether a strict reader has raised an error before the start."""
    next_offsets: dict[int, int]
    """Lane → the offset of a message that was sent after the start, where one was."""
    verified: StoreReport
    """What `verify` said while the store ran."""


def harm_lane(lane: HandMadeLane, directory: LaneDirectory, harm: str) -> list[bytes]:
    """Harms a lane, and returns the values that are left."""
    change, which = HARMS[harm]
    chosen = sorted(directory.commitlog.iterdir())[which]
    starts = {int(segment.name) for segment in chosen}
    for segment in chosen:
        change(segment)
    room = SEGMENT // 2 if change is shorten else 0

    def is_left(place: int, size: int) -> bool:
        return place - place % SEGMENT not in starts or place % SEGMENT + size <= room

    return [record.body for record in lane.records if is_left(record.physical_offset, record.total_size)]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    path = tmp_path_factory.mktemp("lost") / "store"
    store = HandMadeStore(path, SEGMENT)
    intact, before = {}, {}
    for name, number in LANES.items():
        kind, _, harm = name.partition(", ")
        lane = make_lane(store, number, kind)
        intact[number] = harm_lane(lane, store.directory.lane_directory(number), harm)
    shutil.copytree(path, path.with_name("as-it-was"), symlinks=True)
    for number in LANES.values():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ReadingWarning)
                before[number] = len(strict(path, f"t{number}")) == COUNT
        except (CorruptRecord, DamagedFile):
            before[number] = True
    with commitlog.Store.open(path, KEEPS) as running:
        verified = verify_store(path)
        with running.producer() as producer:
            receipt = producer.send("t0", b"new")
            producer.flush()
    return Started(path, intact, before, {receipt.partition: receipt.offset}, verified)


# where a killed lane has lost its last file, readers of all topics are told
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(is damaged from offset|, 0 messages are known to be missing):commitlog.errors.ReadingWarning"
)
each_lane = pytest.mark.parametrize("number", LANES.values(), ids=LANES)


@each_lane
def test_readers_say_it(started: Started, number: int) -> None:
    """A strict reader raises, and so does one that reads columns. One with a name raises too."""
    assert started.before[number]
    for options in ({}, {"name": f"billing-{number}"}):
        with pytest.raises((CorruptRecord, DamagedFile)):
            strict(started.path, f"t{number}", **options)
    with pytest.raises((CorruptRecord, DamagedFile, DataLoss)):
        commitlog.read_arrow(started.path, f"t{number}").read_all()


@each_lane
def test_what_is_intact_is_read(started: Started, number: int) -> None:
    """All of it, with a warning that counts the rest."""
    with (
        pytest.warns(ReadingWarning, match=f"{COUNT - len(started.intact[number])} message"),
        commitlog.Reader(started.path, topic=f"t{number}", ignore_corrupt=True) as reader,
    ):
        assert [message.value for message in reader if message.value != b"new"] == started.intact[number]
    table = commitlog.read_arrow(started.path, f"t{number}", ignore_corrupt=True).read_all()
    assert [value for value in table["value"].to_pylist() if value != b"new"] == started.intact[number]


def test_tools_say_it(started: Started) -> None:
    """Of each lane: `verify` of a store that runs and of one that is stopped, and `health`."""
    lanes = set(LANES.values())
    for report in (started.verified, verify_store(started.path)):
        assert {lane.lane for lane in report.lanes if not lane.good} == lanes
    with StoreWatch(started.path) as watch:
        (reason,) = (one for one in health(watch.snapshot()).reasons if one.code == "damage-noted")
    assert set(reason.lanes) == lanes


@pytest.mark.nightly
def test_a_backup_says_it(started: Started, tmp_path: Path) -> None:
    """Of each lane, before a start and after one. The next one is no trouble."""
    for store in (started.path, started.path.with_name("as-it-was")):
        said = commitlog.backup(store, tmp_path / store.name).findings
        silent = [name for name, number in LANES.items() if not any(f"lane {number}:" in line for line in said)]
        assert not silent
        commitlog.backup(store, tmp_path / store.name)


def test_offsets_go_on(started: Started) -> None:
    """No offset is given out twice."""
    assert started.next_offsets == {0: COUNT}

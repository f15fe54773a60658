"""Recovery rebuilds damaged consume queues, and leaves the dispatcher's work to the dispatcher."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory
from commitlog.opening.adopted_queues import AdoptedQueues
from commitlog.opening.recovery import recover_lane
from tests.builders.hand_made import HandMadeStore
from tests.builders.made_lane import QUEUE_FILE, SEGMENT, MadeLane, check_again, crash, make_lane


@pytest.fixture
def lane(tmp_path: Path) -> MadeLane:
    return make_lane(tmp_path / "3")


@pytest.mark.parametrize(
    "harm",
    [
        "missing",
        "no files",
        "emptied",
        "short",
        "half an entry",
        "long",
        "garbage",
        "hole",
        "swapped",
        "doubled",
        "link",
    ],
)
def test_damaged_consume_queues_are_built_anew(lane: MadeLane, harm: str, tmp_path: Path) -> None:
    """Whatever was done to one, after a clean stop too, all its entries are right again."""
    directory = lane.directory.queue_path("orders")
    file = directory / f"{0:020d}"
    data = file.read_bytes()
    if harm == "missing":
        for path in (file, *directory.glob("*")):
            path.unlink(missing_ok=True)
        directory.rmdir()
        directory.parent.rmdir()
    elif harm == "no files":
        for path in directory.glob("*"):
            path.unlink()
    elif harm == "emptied":
        file.write_bytes(bytes(len(data)))
    elif harm == "short":
        file.write_bytes(data[:100])
    elif harm == "half an entry":
        file.write_bytes(data[:107])
    elif harm == "long":
        file.write_bytes(data + b"x" * 1000)
    elif harm == "garbage":
        file.write_bytes(data[:400] + b"\xee" * 200 + data[600:])
    elif harm == "hole":
        file.write_bytes(data[:100] + bytes(100) + data[200:])
    elif harm == "swapped":
        file.write_bytes(data[20:40] + data[:20] + data[40:])
    elif harm == "doubled":
        (directory / f"{QUEUE_FILE * 7:020d}").write_bytes(data)
    elif harm == "link":
        file.unlink()
        (tmp_path / "else").write_bytes(data)
        file.symlink_to(tmp_path / "else")
    found = lane.recover()
    assert found.dispatched == lane.end
    assert lane.entries("orders") == lane.expected_entries("orders")
    assert lane.entries("payments") == lane.expected_entries("payments")
    assert found.findings
    check_again(lane, found)
    assert lane.recover().findings == ()


def test_entries_not_written_before_the_crash_are_left_to_the_dispatcher(tmp_path: Path) -> None:
    """`dispatched` stays where it was recorded; what the queues have below it is right."""
    lane = make_lane(tmp_path / "3", 40)
    dispatched = lane.end
    for number in range(20):
        lane.append("orders", bytes([number]) * number, dispatch=False)
    crash(lane, lane.end, dispatched)
    found = lane.recover()
    assert (found.end, found.dispatched, found.findings) == (lane.end, dispatched, ())
    assert lane.entries("orders") == lane.expected_entries("orders", dispatched)


def test_damage_that_a_dispatcher_would_meet_is_passed_for_it(tmp_path: Path) -> None:
    """Entries above it are placed here."""
    lane = make_lane(tmp_path / "3", 30)
    dispatched = lane.end
    for number in range(30):
        lane.append("orders", bytes([number]) * number, dispatch=False)
    lane.write(lane.places[40][0], b"\xff" * 60)
    crash(lane, lane.end, dispatched)
    found = lane.recover()
    assert (found.end, found.dispatched) == (lane.end, lane.end)
    assert len(lane.entries("orders")) == len(lane.expected_entries("orders"))


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_a_rare_topics_queue_that_was_counted_is_missed(tmp_path: Path, harm: str) -> None:
    """Samples do not show that, but a stop had counted the entries. Its queue offsets go on."""
    lane = MadeLane(LaneDirectory(tmp_path / "3", 3))
    for number in range(120):
        lane.append("rare" if number in (23, 24) else "orders", b"x")
    lane.set_positions(lane.end, lane.end, drained=True, entries=120)
    directory = lane.directory.queue_path("rare")
    if harm == "gone":
        shutil.rmtree(directory.parent)
    else:
        file = directory / f"{0:020d}"
        file.write_bytes(file.read_bytes()[:20].ljust(QUEUE_FILE, b"\0"))
    found = lane.recover()
    assert lane.entries("rare") == lane.expected_entries("rare")
    assert lane.entries("orders") == lane.expected_entries("orders")
    assert "119 of 120" in found.findings[0] or "118 of 120" in found.findings[0]
    check_again(lane, found)


@pytest.mark.parametrize("lost", ["its first sector", "its second sector", "and its record"])
def test_an_entry_that_a_power_cut_tore_is_no_damage(tmp_path: Path, lost: str) -> None:
    """The entry was placed and not synced. It lies in two sectors, one of which is on the disk.

    The entry before it is not on the disk at all.
    """
    lane = MadeLane(LaneDirectory(tmp_path / "3", 3))
    for number in range(40):
        lane.append("orders", bytes([number]) * number)
    dispatched, flushed = lane.places[20][0], lane.places[30][0]
    file = lane.directory.queue_path("orders") / f"{0:020d}"
    data, sector = bytearray(file.read_bytes()), 512
    end = flushed
    if lost == "and its record":
        end = lane.places[25][0]
        lane.write(end, bytes(SEGMENT - end % SEGMENT))
        flushed = lane.places[22][0]
    cut = slice(25 * 20, sector) if lost == "its first sector" else slice(sector, 26 * 20)
    data[24 * 20 : 25 * 20], data[cut] = bytes(20), bytes(cut.stop - cut.start)
    data[26 * 20 :] = bytes(len(data) - 26 * 20)
    crash(lane, flushed, dispatched)
    file.write_bytes(data)
    found = lane.recover()
    assert [finding for finding in found.findings if "torn tail" not in finding] == []
    assert (found.end >= end, found.dispatched) == (True, dispatched)
    assert lane.entries("orders")[:20] == lane.expected_entries("orders")[:20]
    check_again(lane, found)
    if lost == "and its record":
        assert len(lane.entries("orders")) == 24


def test_queues_built_anew_after_many_deleted_messages_are_sound(tmp_path: Path) -> None:
    """The second recovery finds nothing to mend: the places of deleted messages are no damage."""
    store = HandMadeStore(tmp_path / "store")
    lane = store.lane(0)
    for _ in range(1500):
        lane.append("orders", b"x" * 100)
    store.publish()
    lane.forget_before(4)
    directory = store.directory.lane_directory(0)
    shutil.rmtree(directory.consumequeue)

    def found() -> tuple[str, ...]:
        end = recover_lane(directory, store.segment_bytes, DISK, lambda line: None, store_id=store.id)
        lane.publish(first=4 * store.segment_bytes)
        return end.findings

    assert found()
    assert not found()


def test_queues_built_beside_a_pool_have_no_entry_that_was_not_synced(tmp_path: Path) -> None:
    """Records behind that offset may be in memory only, and an entry proves that it is not so."""
    lane = make_lane(tmp_path / "3")
    synced = lane.places[20][0]
    shutil.rmtree(lane.directory.queue_path("orders"))
    AdoptedQueues(lane.directory, SEGMENT, QUEUE_FILE, 0, synced, -1, DISK, "").rebuild(lambda line: None)
    for topic in ("orders", "payments"):
        assert lane.entries(topic) == lane.expected_entries(topic, synced)

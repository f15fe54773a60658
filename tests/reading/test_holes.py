"""In a damaged log, good records before and around the damage, and in other lanes, are read.

Records behind it are read if that is asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CorruptRecord, DamagedFile, ReadingWarning
from commitlog.shm.layout import segment_start
from tests.builders.hand_made import HandMadeLane, HandMadeStore
from tests.builders.scrape import halted
from tests.builders.vector_store import load
from tests.command_line import run
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

SEGMENT = 1 << 12
COUNT = 100
BODY, SIZE, PLACE = 90, 2, 30
"""Bytes of a record: in its body, which only its CRC protects; in its size, its physical offset."""

Found = list[tuple[str, int]]


@pytest.fixture
def lane(tmp_path: Path) -> HandMadeLane:
    """Lane 3 of a store: 100 messages over several segments, every fifth of another topic."""
    return fill(HandMadeStore(tmp_path / "store", SEGMENT).lane(3))


def fill(lane: HandMadeLane) -> HandMadeLane:
    for row in range(COUNT):
        lane.append("orders" if row % 5 else "other", b"body of %d" % row)
    return lane


def publish(lane: HandMadeLane, dispatched: int, *, drained: bool) -> None:
    """So many records have an entry; properly stopped or not."""
    lane.dispatch(dispatched)
    lane.publish()
    if not drained:
        where = lane.records[dispatched].physical_offset if dispatched < COUNT else lane.end
        file = PositionsFile(lane.store.directory.lane_directory(3), "", DISK)
        file.store(Positions(1, lane.end, where, 0, 0, False))


def write(lane: HandMadeLane, where: int, change: Callable[[bytes], bytes], count: int = 1) -> None:
    start = segment_start(where, SEGMENT)
    with lane.store.directory.lane_directory(lane.number).segment_path(start).open("r+b") as file:
        file.seek(where - start)
        data = file.read(count)
        file.seek(where - start)
        file.write(change(data))


def flip(lane: HandMadeLane, number: int, at: int) -> None:
    write(lane, lane.records[number].physical_offset + at, lambda data: bytes([data[0] ^ 0x04]))


def zero(lane: HandMadeLane, number: int, count: int = 1) -> None:
    for record in lane.records[number : number + count]:
        write(lane, record.physical_offset, lambda data: bytes(len(data)), record.total_size)


def read(reader: Reader) -> tuple[Found, Exception | None]:
    """What is given out, and how it ends."""
    found: Found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)
        try:
            for message in reader:
                found.append((message.topic, message.offset))
        except (CorruptRecord, DamagedFile) as error:
            return found, error
    return found, None


def read_store(lane: HandMadeLane, *arguments: object, **options: object) -> tuple[Found, Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)
        with Reader(lane.store.path, *arguments, **options) as reader:  # type: ignore[arg-type]
            return read(reader)


def names(lane: HandMadeLane, *parts: range) -> Found:
    return [(lane.records[row].topic, lane.records[row].queue_offset) for part in parts for row in part]


HARMS: dict[str, tuple[Callable[[HandMadeLane], None], int, int]] = {
    "zeros": (lambda lane: zero(lane, 82, 6), 82, 88),
    "zeros to the end": (lambda lane: zero(lane, 82, COUNT - 82), 82, COUNT),
    "the first record": (lambda lane: zero(lane, 0), 0, 1),
    "a bit of a body": (lambda lane: flip(lane, 82, BODY), 82, 83),
    "a bit of a size": (lambda lane: flip(lane, 82, SIZE), 82, 83),
    "a bit of a place": (lambda lane: flip(lane, 82, PLACE), 82, 83),
    "a bit of the last one's size": (lambda lane: flip(lane, COUNT - 1, SIZE), COUNT - 1, COUNT),
}
STATES = {
    "stopped": (COUNT, True),
    "killed": (COUNT, False),
    "killed, half of it indexed": (COUNT // 2, False),
    "killed, nothing indexed": (0, False),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("state", STATES)
def test_good_records_around_damage(lane: HandMadeLane, harm: str, state: str) -> None:
    """Messages before the damage come without a warning, then the error, at each attempt.

    With ignore_corrupt the messages behind it come as well.
    """
    dispatched, drained = STATES[state]
    publish(lane, dispatched, drained=drained)
    harm_it, first, behind = HARMS[harm]
    harm_it(lane)
    reaches_the_end = behind == COUNT and not drained  # of a store that was killed: it may be its torn tail
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)
        reader = Reader(lane.store.path)
    with reader:
        found, error = read(reader)
        assert found == names(lane, range(first))
        if error is None:
            assert reaches_the_end
            assert "size" in harm
        else:
            assert f"at offset {lane.records[first].physical_offset}" in str(error)
            assert "ignore_corrupt" in str(error)
            assert "/commitlog/0000" in str(error)
            with pytest.raises(CorruptRecord):
                next(reader)
    for start in (0, 1):
        found, error = read_store(lane, start=start, ignore_corrupt=True)
        expected = names(lane, range(first), range(behind, COUNT))
        assert (found, error) == ([name for name in expected if name[1] >= start], None)


@pytest.mark.parametrize("state", STATES)
def test_what_was_left_out_is_counted(lane: HandMadeLane, state: str) -> None:
    """In one warning, with the first place."""
    dispatched, drained = STATES[state]
    publish(lane, dispatched, drained=drained)
    flip(lane, 20, BODY)
    zero(lane, 82, 6)
    with warnings.catch_warnings(record=True) as said, Reader(lane.store.path, ignore_corrupt=True) as reader:
        warnings.simplefilter("always")
        assert len(list(reader)) == COUNT - 7
    texts = [str(warning.message) for warning in said if "left out" in str(warning.message)]
    assert len(texts) == 1
    assert "lane 3: 2 damaged places are left out (ignore_corrupt), 7 messages are known to be missing" in texts[0]
    assert f"at offset {lane.records[20].physical_offset}" in texts[0]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("topic", ["orders", "other"])
def test_a_topic_and_a_start(lane: HandMadeLane, state: str, topic: str) -> None:
    """A start behind the damage works by offset, by time or by number.

    A start before it works as well.
    """
    dispatched, drained = STATES[state]
    publish(lane, dispatched, drained=drained)
    zero(lane, 40, 6)
    flip(lane, 60, PLACE)
    wanted = [record for record in lane.records if record.topic == topic]
    good = [r for r in wanted if r not in lane.records[40:46] and r is not lane.records[60]]
    later = [r for r in wanted if r.physical_offset > lane.records[60].physical_offset]
    assert len({r.queue_offset for r in later}) > 3
    before = [r for r in wanted if r.physical_offset < lane.records[40].physical_offset]
    found, error = read_store(lane, topic)
    assert found == [(topic, r.queue_offset) for r in before]
    assert isinstance(error, CorruptRecord)
    assert read_store(lane, topic, ignore_corrupt=True) == ([(topic, r.queue_offset) for r in good], None)
    expected = [(topic, r.queue_offset) for r in later]
    assert read_store(lane, topic, start=later[0].queue_offset) == (expected, None)
    assert read_store(lane, topic, start=f"last {len(later)}") == (expected, None)
    for start in (wanted[3].queue_offset, later[1].queue_offset):
        found, error = read_store(lane, topic, start=start, ignore_corrupt=True)
        assert (found, error) == ([(topic, r.queue_offset) for r in good if r.queue_offset >= start], None)


@pytest.mark.parametrize("state", STATES)
def test_other_lanes_are_given_out_completely(tmp_path: Path, state: str) -> None:
    """Before the error of the damaged one."""
    dispatched, drained = STATES[state]
    store = HandMadeStore(tmp_path / "store", SEGMENT)
    lanes = [fill(store.lane(number)) for number in (2, 3, 4)]
    for number in (2, 4):
        store.lane(number).dispatch()
        store.lane(number).publish()
    publish(lanes[1], dispatched, drained=drained)
    zero(lanes[1], 10, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)
        with Reader(store.path) as reader:
            found: list[tuple[int, str, int]] = []
            with pytest.raises(CorruptRecord, match="lane 3"):
                found.extend((message.partition, message.topic, message.offset) for message in reader)
            for lane, count in zip(lanes, (COUNT, 10, COUNT), strict=True):
                assert [rest for number, *rest in found if number == lane.number] == list(
                    map(list, names(lane, range(count)))
                )
        with Reader(store.path, ignore_corrupt=True) as reader:
            assert len(list(reader)) == 3 * COUNT - 2


@pytest.mark.parametrize("length", [-1, 0, 100, 2000, SEGMENT - 1])
@pytest.mark.parametrize("state", STATES)
def test_a_segment_that_is_gone_or_short(lane: HandMadeLane, state: str, length: int) -> None:
    """As in a copy that broke off: whole records are given out, and the error names the file."""
    dispatched, drained = STATES[state]
    publish(lane, dispatched, drained=drained)
    segment = lane.store.directory.lane_directory(3).segment_path(SEGMENT)
    kept = SEGMENT + length
    lost = [r for r in lane.records if r.physical_offset // SEGMENT == 1 and r.physical_offset + r.total_size > kept]
    good = [(r.topic, r.queue_offset) for r in lane.records if r not in lost]
    if length < 0:
        segment.unlink()
    else:
        segment.write_bytes(segment.read_bytes()[:length])
    found, error = read_store(lane)
    if not lost:  # the rest of the segment is BLANK
        assert (found, error) == (good, None)
        return
    assert found == good[: len(found)]
    assert len(found) == lane.records.index(lost[0])
    assert isinstance(error, DamagedFile | CorruptRecord)
    assert segment.name in str(error)
    assert "ignore_corrupt" in str(error)
    assert read_store(lane, ignore_corrupt=True) == (good, None)


def test_queues_of_a_copy_that_are_older_than_its_positions(lane: HandMadeLane) -> None:
    """A copy of a running store, as `cp -a` makes it.

    Nothing is missing, and nothing is counted that does not exist.
    """
    lane.dispatch(90)
    lane.dispatched = COUNT
    publish(lane, 0, drained=False)
    PositionsFile(lane.store.directory.lane_directory(3), "", DISK).store(Positions(1, lane.end, lane.end, 0, 0, False))
    assert read_store(lane) == (names(lane, range(COUNT)), None)
    assert read_store(lane, "orders", start="last 5") == (
        [(t, o) for t, o in names(lane, range(COUNT)) if t == "orders"][-5:],
        None,
    )


CONFIG = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}, "flusher": {"positions_interval_ms": 50}}


def send(producer: commitlog.Producer, start: int, count: int) -> None:
    for number in range(start, start + count):
        producer.send("orders", b"%d" % number)
    producer.flush()


def harm_live(path: Path, lane: int, number: int) -> None:
    """Flips a bit of the body `number` in the segment files of a lane."""
    for segment in sorted((path / f"lanes/{lane}/commitlog").iterdir()):
        at = segment.read_bytes().find(b"\x00\x00\x00%c%d\x06orders" % (len(str(number)), number))
        if at >= 0:
            with segment.open("r+b") as file:
                file.seek(at + 4)
                file.write(b"!")
            return
    raise AssertionError(f"no body {number}")


@pytest.mark.parametrize("isolation", with_nightly(["committed"], ["flushed"]))
def test_a_following_reader_of_a_running_store(isolation: Literal["flushed", "committed"], tmp_path: Path) -> None:
    """The reader raises the error once for each attempt, and gives out messages of other lanes.

    A reader that ignores damage goes on.
    """
    path = tmp_path / "store"
    with commitlog.Store.open(path, CONFIG) as store, store.producer() as first, store.producer() as second:
        send(first, 0, 300)
        harm_live(path, first.lane, 200)
        with (
            Reader(path, isolation=isolation, follow=True) as reader,
            Reader(path, isolation=isolation, follow=True, ignore_corrupt=True) as patient,
        ):
            got = [next(reader).value for _ in range(200)]
            assert got == [b"%d" % number for number in range(200)]
            for attempt in range(3):
                with pytest.raises(CorruptRecord, match="ignore_corrupt"):
                    next(reader)
                send(second, 1000 + attempt, 1)
                assert next(reader).value == b"%d" % (1000 + attempt)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ReadingWarning)
                values = [next(patient).value for _ in range(302)]
                assert sorted(values) == sorted([b"%d" % n for n in [*range(200), *range(201, 300), 1000, 1001, 1002]])
                send(first, 300, 1)
                assert next(patient).value == b"300"
        with Reader(path, start="last 100") as reader:
            assert [m.value for m in reader if m.partition == first.lane] == [b"%d" % n for n in range(201, 301)]


@pytest.mark.leaves_pools
def test_zeros_before_the_dispatcher_are_named(tmp_path: Path) -> None:
    """It can't get past them, and says so; readers can, and see what comes behind."""
    path = tmp_path / "store"
    store = commitlog.Store.open(path, CONFIG)
    with store.producer() as producer:
        dispatcher = pid_of(path, "dispatcher")
        os.kill(dispatcher, signal.SIGSTOP)
        try:
            send(producer, 0, 100)
            (segment,) = [s for s in (path / "lanes/0/commitlog").iterdir() if any(s.read_bytes()[:100])]
            with segment.open("r+b") as file:
                file.write(bytes(200))
        finally:
            os.kill(dispatcher, signal.SIGCONT)
        log = path / "logs/dispatcher.log"
        wait_until(lambda: "zeros where a record should be" in log.read_text(), "the dispatcher to say so")
        send(producer, 100, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReadingWarning)
            with Reader(path, ignore_corrupt=True) as reader:
                values = [int(message.value) for message in reader]
        assert values == [*range(values[0], 110)]
        assert 0 < values[0] < 5
    store.close()


def recorded(path: Path) -> int:
    """Up to where `positions` says that records are in the consume queues."""
    found = PositionsFile(StoreDirectory(path).lane_directory(0), "", DISK).load()
    return found.dispatched_where if found else -1


@pytest.mark.parametrize("then", with_nightly(["was killed"], ["was stopped", "runs"]))
def test_a_copy_with_a_hole(tmp_path: Path, then: str) -> None:
    """`cat` prints up to the hole and names it. --skip-corrupt prints what is behind it too."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    with commitlog.Store.open(path, CONFIG) as store:
        with store.producer() as producer:
            send(producer, 0, 1800)
        wait_until(lambda: recorded(path) == store.statistics().lanes[0].wrote, "all to be recorded")
        if then != "was stopped":
            with halted(path):
                shutil.copytree(path, copy)
        if then == "was killed":  # at another moment: its consume queues are behind
            for queue in (copy / "lanes/0/consumequeue/orders").rglob("0*"):
                if queue.is_file():
                    queue.write_bytes(queue.read_bytes()[: 1000 * 20].ljust(queue.stat().st_size, b"\0"))
    if then == "was stopped":
        shutil.copytree(path, copy)
    harmed = "1700"
    segment, at = next(
        (segment, at)
        for segment in sorted((copy / "lanes/0/commitlog").iterdir())
        if (at := segment.read_bytes().find(harmed.encode() + b"\x06orders")) >= 0
    )
    with segment.open("r+b") as file:
        file.seek(at - 88)
        file.write(bytes(1000))

    done = run("cat", copy)
    assert done.stdout.split() == [b"%d" % number for number in range(1700)]
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"[CorruptRecord]" in done.stderr
    assert b"--skip-corrupt" in done.stderr
    assert segment.name.encode() in done.stderr
    done = run("cat", copy, "--skip-corrupt")
    assert done.returncode == 0
    given = [int(value) for value in done.stdout.split()]
    assert given[:1700] == list(range(1700))
    assert given[-1] == 1799
    assert len(given) > 1780
    assert b"%d messages are known to be missing" % (1800 - len(given)) in done.stderr


def test_rocketmq_roots(tmp_path: Path) -> None:
    """A damaged record, and damaged entries, of a RocketMQ are passed over likewise."""
    root = load("rolls").unpack(tmp_path / "root")
    with Reader(root) as reader:
        everything = [(message.partition, message.offset, message.physical_offset) for message in reader]
    where = next(place for queue, offset, place in everything if (queue, offset) == (0, 4))
    segment = root / "commitlog" / f"{where // SEGMENT * SEGMENT:020d}"
    data = bytearray(segment.read_bytes())
    data[where % SEGMENT + 28] ^= 1
    segment.write_bytes(data)
    file = root / "consumequeue" / "rolls" / "0" / f"{0:020d}"
    entries = bytearray(file.read_bytes())
    entries[9 * 20 : 10 * 20] = bytes(20)
    entries[18 * 20 : 19 * 20] = b"\x7f" * 20
    file.write_bytes(entries)
    other = [place for place in everything if place[0] == 1]
    with Reader(root) as reader:
        found = []
        for _ in range(4 + len(other)):
            message = next(reader)
            found.append((message.partition, message.offset, message.physical_offset))
        assert found == [place for place in everything if place in other or place[1] < 4]
        for _ in range(2):
            with pytest.raises(CorruptRecord, match="ignore_corrupt"):
                next(reader)
    with Reader(root, start=5) as reader:
        expected = [place[1] for place in everything if place[1] >= 5 and (place[0] == 1 or place[1] < 9)]
        assert [next(reader).offset for _ in expected] == expected
    bad = [(0, 4), (0, 9), (0, 18)]
    with pytest.warns(ReadingWarning, match="3 damaged places are left out.*3 messages"):  # noqa: SIM117
        with Reader(root, ignore_corrupt=True) as reader:
            assert [(m.partition, m.offset) for m in reader] == [p[:2] for p in everything if p[:2] not in bad]


def harmed(tmp_path: Path, number: int, field: str, *, crc: bool) -> HandMadeLane:
    """A lane in which a bit is flipped of what says where a message belongs."""
    lane = HandMadeStore(tmp_path / "store", SEGMENT).lane(3)
    for row in range(COUNT):
        lane.append("orders" if row % 5 else "other", b"body of %d" % row, crc=crc)
    publish(lane, COUNT, drained=True)
    flip(lane, number, {"topic": 89 + len(lane.records[number].body), "queue offset": 27, "transaction": 39}[field])
    return lane


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("field", ["topic", "queue offset", "transaction"])
def test_a_message_that_is_missing_from_its_queue(tmp_path: Path, crc: bool, field: str) -> None:
    """It is an error for every reader of its topic, and no reader gets it as another one."""
    lane = harmed(tmp_path, 42, field, crc=crc)
    everything = set(names(lane, range(COUNT)))
    bad = names(lane, range(42, 43))[0]
    for topic in (None, bad[0]):
        wanted = {name for name in everything if topic in (None, name[0])}
        found, error = read_store(lane, topic)
        if error is None:  # only the sys_flag is damaged and nothing covers it: the message itself is good
            assert (field, crc) == ("transaction", False)
            assert set(found) == wanted
            continue
        assert set(found) <= wanted - {bad}
        assert f"at offset {lane.records[42].physical_offset}" in str(error)
        told = pytest.warns(ReadingWarning, match="1 damaged place is left out .* 1 message is known to be missing")
        with told, Reader(lane.store.path, topic, ignore_corrupt=True) as reader:
            assert {(message.topic, message.offset) for message in reader} == wanted - {bad}
    if field != "transaction":  # what goes by the consume queues does not look at these bits
        with pytest.raises(CorruptRecord, match=f"at offset {lane.records[42].physical_offset}"):
            commitlog.read_arrow(lane.store.path, bad[0]).read_all()


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("field", ["topic", "queue offset"])
@pytest.mark.parametrize("number", [0, 95, COUNT - 1], ids=["first", "last of other", "last"])
def test_a_message_at_the_end_of_its_queue(tmp_path: Path, number: int, field: str, crc: bool) -> None:
    """An entry at the end names it: the queues are not believed, and a warning names the record."""
    lane = harmed(tmp_path, number, field, crc=crc)
    bad = names(lane, range(number, number + 1))[0]
    for topic in (None, bad[0]):
        with (
            pytest.warns(
                ReadingWarning, match=f"at offset {lane.records[number].physical_offset}: the record of topic"
            ),
            Reader(lane.store.path, topic) as reader,
        ):
            found, error = read(reader)
        assert bad not in found
        assert isinstance(error, CorruptRecord) or topic == bad[0]  # its other messages are good

"""Reads stopped stores whose consume queues are damaged, missing or short.

The result is all rows or a named error, never fewer rows.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.errors import ReadingWarning
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from tests.builders.hand_made import BEGIN_MS, HandMadeLane, HandMadeStore
from tests.command_line import run
from tests.nightly import with_nightly

ROWS = 90
ENTRY = 20

pytestmark = pytest.mark.usefixtures("look_each_time")


@pytest.fixture
def lane(tmp_path: Path) -> HandMadeLane:
    """Three topics, one of them rare, over several segments; dispatched, closed properly."""
    made = HandMadeStore(tmp_path / "store", 1 << 12).lane(0)
    for row in range(ROWS):
        made.append("rare" if row in (40, 41) else ("even", "odd")[row % 2], b"%d" % row)
    made.store.publish()
    return made


def queue_file(lane: HandMadeLane, topic: str) -> Path:
    return lane.store.directory.lane_directory(0).queue_path(topic) / f"{0:020d}"


def overwrite(lane: HandMadeLane, topic: str, entry: int, data: bytes) -> None:
    with queue_file(lane, topic).open("r+b") as file:
        file.seek(entry * ENTRY)
        file.write(data)


def entry_of(lane: HandMadeLane, topic: str, offset: int) -> bytes:
    return queue_file(lane, topic).read_bytes()[offset * ENTRY : (offset + 1) * ENTRY]


def expected(lane: HandMadeLane, topic: str | None = None) -> list[tuple[str, int]]:
    """All that is not deleted, in log order."""
    return [(record.topic, record.queue_offset) for record in kept(lane) if topic in (None, record.topic)]


def kept(lane: HandMadeLane) -> list:
    first = StoreView(lane.store.path).limits(0).first
    return [record for record in lane.records if record.physical_offset >= first]


def read(lane: HandMadeLane, topic: str | None = None, start: str | int = "earliest") -> list[tuple[str, int]]:
    with Reader(lane.store.path, topic, start=start) as reader:
        return [(message.topic, message.offset) for message in reader]


def ranges(lane: HandMadeLane) -> dict[str, tuple[int, int]]:
    with closing(StoreView(lane.store.path)) as view:
        index = TopicIndex(view)
        index.refresh()
        found = {topic: (known.first, known.end) for topic in index.topics() for known in index.ranges(topic).values()}
        return {topic: (first, end) for topic, (first, end) in found.items() if first < end}


def true_ranges(lane: HandMadeLane) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for record in kept(lane):
        found[record.topic] = (found.get(record.topic, (record.queue_offset,))[0], record.queue_offset + 1)
    return found


def lose_topic(lane: HandMadeLane) -> None:
    shutil.rmtree(lane.store.directory.lane_directory(0).queue_path("even").parent)


def lose_rare_topic(lane: HandMadeLane) -> None:
    shutil.rmtree(lane.store.directory.lane_directory(0).queue_path("rare").parent)


def lose_all(lane: HandMadeLane) -> None:
    shutil.rmtree(lane.store.directory.lane_directory(0).consumequeue)


def lose_file(lane: HandMadeLane) -> None:
    queue_file(lane, "odd").unlink()


def empty_file(lane: HandMadeLane) -> None:
    queue_file(lane, "odd").write_bytes(b"")


def cut_file(lane: HandMadeLane) -> None:
    with queue_file(lane, "odd").open("r+b") as file:
        file.truncate(17 * ENTRY + 3)


def cut_file_between_entries(lane: HandMadeLane) -> None:
    with queue_file(lane, "odd").open("r+b") as file:
        file.truncate(20 * ENTRY)


def zero_tail(lane: HandMadeLane) -> None:
    overwrite(lane, "even", 30, bytes(ENTRY * 100))


def zero_rare(lane: HandMadeLane) -> None:
    overwrite(lane, "rare", 1, bytes(ENTRY))


def directory_for_file(lane: HandMadeLane) -> None:
    queue_file(lane, "odd").unlink()
    queue_file(lane, "odd").mkdir()


def file_for_directory(lane: HandMadeLane) -> None:
    shutil.rmtree(queue_file(lane, "odd").parent)
    queue_file(lane, "odd").parent.write_bytes(b"x")


def file_for_all(lane: HandMadeLane) -> None:
    lose_all(lane)
    lane.store.directory.lane_directory(0).consumequeue.write_bytes(b"x")


def other_topics_queue(lane: HandMadeLane) -> None:
    shutil.copyfile(queue_file(lane, "even"), queue_file(lane, "odd"))


def shifted(lane: HandMadeLane) -> None:
    data = queue_file(lane, "even").read_bytes()
    queue_file(lane, "even").write_bytes(data[ENTRY:] + bytes(ENTRY))


def one_too_many(lane: HandMadeLane) -> None:
    overwrite(lane, "even", true_ranges(lane)["even"][1], entry_of(lane, "even", 5))


DAMAGES = [
    lose_topic, lose_rare_topic, lose_all, lose_file, empty_file, cut_file, cut_file_between_entries, zero_tail,
    zero_rare, directory_for_file, file_for_directory, file_for_all, other_topics_queue, shifted, one_too_many,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("deleted", [0, 2])
def test_nothing_is_missing(lane: HandMadeLane, damage: Callable[[HandMadeLane], None], deleted: int) -> None:
    """Also after retention. Each reader is told, once."""
    if deleted:
        lane.forget_before(deleted)
    damage(lane)
    with pytest.warns(ReadingWarning, match="commitlog run"):
        assert ranges(lane) == true_ranges(lane)
    with pytest.warns(ReadingWarning, match="commitlog run"):
        assert read(lane) == expected(lane)
    for topic in true_ranges(lane):
        wanted = expected(lane, topic)
        for start, rows in (("earliest", wanted), ("last 7", wanted[-7:]), (wanted[1][1], wanted[1:])):
            with pytest.warns(ReadingWarning):
                assert read(lane, topic, start) == rows


def test_the_first_file_is_lost(tmp_path: Path) -> None:
    """Retention has deleted nothing, so the queue does not begin later."""
    path = tmp_path / "store"
    config = {"dispatcher": {"queue_file_entries": 1000}}
    with commitlog.Store.open(path, config) as store, store.producer() as producer:
        producer.send_batch("orders", [b"x"] * 1500)
        producer.flush()
    (path / f"lanes/0/consumequeue/orders/0/{0:020d}").unlink()
    for topic in ("orders", None):
        with (
            pytest.warns(ReadingWarning, match=r"the files of \[0, 20000\) are missing"),
            Reader(path, topic) as reader,
        ):
            assert [message.offset for message in reader] == list(range(1500))


@pytest.mark.parametrize("deleted", with_nightly([2], [0, 1]))
@pytest.mark.parametrize("what", ["hole", "junk", "early", "late", "swap"])
def test_one_damaged_entry_anywhere(lane: HandMadeLane, what: str, deleted: int) -> None:
    """One entry is damaged, at every place in turn.

    Messages that are asked for by offset or time come too. If entries are believed, they are right.
    """
    if deleted:
        lane.forget_before(deleted)
    truth, random_bytes = true_ranges(lane), random.Random(7).randbytes
    first, end = truth["even"]
    for entry in range(first, end):
        good = entry_of(lane, "even", entry)
        other = entry_of(lane, "even", (entry + 9) % end)
        bad = {
            "hole": bytes(ENTRY),
            "junk": random_bytes(ENTRY),
            "early": bytes(8) + good[8:],
            "late": (lane.end - 120).to_bytes(8, "big") + good[8:],
            "swap": other,
        }[what]
        overwrite(lane, "even", entry, bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReadingWarning)
            assert ranges(lane) == truth
            assert read(lane, "even", entry) == expected(lane, "even")[entry - first :]
            time = BEGIN_MS + 1000 * next(
                number
                for number, record in enumerate(lane.records)
                if (record.topic, record.queue_offset) == ("even", entry)
            )
            with closing(StoreView(lane.store.path)) as view:
                index = TopicIndex(view)
                index.refresh()
                assert index.find_by_time("even", 0, time) == entry
        overwrite(lane, "even", entry, good)
    assert ranges(lane) == truth  # and no warning


def test_queues_that_a_walk_does_not_go_on_from(lane: HandMadeLane) -> None:
    """Messages that are not dispatched yet must follow those that are.

    If they do not, entries are missing that nobody had counted.
    """
    dispatched = lane.end
    lane.append("even", b"more")
    positions = Positions(1, lane.end, dispatched, 0, 0, drained=True)
    PositionsFile(lane.store.directory.lane_directory(0), lane.store.id, DISK).store(positions)
    overwrite(lane, "even", true_ranges(lane)["even"][1] - 2, bytes(ENTRY))
    with pytest.warns(ReadingWarning, match="ends before offset"):
        assert ranges(lane) == true_ranges(lane)


def test_entries_that_name_known_damage(lane: HandMadeLane) -> None:
    """Recovery leaves entries for records that are lost.

    If these entries are the first ones, the index is still right.
    """
    lane_directory = lane.store.directory.lane_directory(0)
    lost = lane.records[0]
    with lane_directory.segment_path(0).open("r+b") as file:
        file.write(bytes(lost.total_size))
    lane_directory.quarantine.mkdir()
    (lane_directory.quarantine / f"corrupt-{0:020d}.json").write_text("{}")
    assert ranges(lane) == true_ranges(lane)


def test_it_is_said_once_on_the_command_line(lane: HandMadeLane) -> None:
    """One line on standard error, all rows on standard output."""
    lose_topic(lane)
    done = run("cat", lane.store.path)
    assert done.stdout.split() == [record.body for record in lane.records]
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"commitlog: lane 0: ")
    assert b"[ReadingWarning]" in done.stderr


@pytest.mark.parametrize("command", ["cat", "stat"])
def test_lost_positions_are_not_an_empty_store(lane: HandMadeLane, command: str) -> None:
    """The reader is told how to get at what is there; and then it is there."""
    lane.store.directory.lane_directory(0).positions_file.unlink()
    with pytest.warns(ReadingWarning, match="commitlog run"), Reader(lane.store.path) as reader:
        assert list(reader) == []
    done = run(command, lane.store.path)
    assert done.returncode == (3 if command == "stat" else 0)  # stat says that it was killed
    assert done.stderr.count(b"\n") == 1
    assert b"commitlog run" in done.stderr


@pytest.mark.parametrize("more", [0, 1])
def test_a_store_that_was_killed_may_have_more(lane: HandMadeLane, more: int) -> None:
    """Without a pool, and with positions of a running store, a reader warns if there is more."""
    cut = lane.records[-more].physical_offset if more else lane.end
    positions = Positions(1, cut, cut, 0, 0, drained=False)
    PositionsFile(lane.store.directory.lane_directory(0), lane.store.id, DISK).store(positions)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert read(lane) == expected(lane)[: len(lane.records) - more]
    assert [warning.category for warning in said] == [ReadingWarning] * more

"""`dump` and `verify` of sound and damaged stores, RocketMQ's and ours.

They are called as functions and as commands.
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli import main
from commitlog.cli.app import app
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StoreNotFound
from commitlog.inspecting.dump import dump_records
from commitlog.inspecting.verify import verify_store
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.quantities import counted
from tests.builders.hand_made import small_store
from tests.builders.made_lane import MadeLane, image, make_lane
from tests.builders.vector_store import NAMES, VectorStore
from tests.children import without_privileges
from tests.waiting import wait_until

SMALL: dict[str, Any] = {"store": {"segment_bytes": 1 << 16, "max_lanes": 2}}


@pytest.fixture
def lane(tmp_path: Path) -> MadeLane:
    return make_lane(tmp_path / "3")


def unpack(name: str, directory: Path) -> Path:
    """The files of a store that RocketMQ wrote."""
    for path, content in VectorStore(name).files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


@pytest.mark.parametrize("name", NAMES)
def test_dump_says_what_rocketmq_says(name: str, tmp_path: Path) -> None:
    """Each object equals RocketMQ's, with its names in the same order. The store is unchanged."""
    store, root = VectorStore(name), unpack(name, tmp_path)
    before = image(root)
    found = list(dump_records(root))
    assert found == store.expected
    assert [list(record) for record in found] == [list(record) for record in store.expected]
    assert image(root) == before


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_rocketmqs_stores_good(name: str, tmp_path: Path) -> None:
    """All records and entries are good.

    The only torn tail is the one that RocketMQ's own test made.
    """
    store, root = VectorStore(name), unpack(name, tmp_path)
    report = verify_store(root)
    (lane,) = report.lanes
    assert lane.lane is None
    assert lane.records == len(store.expected)
    assert report.good == (name != "torn")
    if name == "torn":
        assert "torn tail" in lane.findings[0].reason


def test_a_store_of_ours_running_and_stopped(tmp_path: Path) -> None:
    """Lanes by number; what is flushed is shown of a running one."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL) as store, store.producer() as one, store.producer() as two:
        for number in range(100):
            (one, two)[number % 2].send("orders", b"x" * number)
        one.flush()
        two.flush()
        running = list(dump_records(path))
        assert verify_store(path).good
    assert running == list(dump_records(path))
    assert [(r["queueId"], r["queueOffset"]) for r in running] == [(lane, n) for lane in (0, 1) for n in range(50)]
    assert running[:50] == list(dump_records(path / "lanes" / "0"))
    report = verify_store(path)
    assert report.good
    assert [(lane.lane, lane.records, lane.entries) for lane in report.lanes] == [(0, 50, 50), (1, 50, 50)]
    assert verify_store(path / "lanes" / "1").lanes[0].records == 50


SHORT: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 16, "max_lanes": 1},
    "retention": {"max_bytes": 8 << 16, "interval_ms": 10},
    "flusher": {"positions_interval_ms": 10},
    "allocator": {"interval_ms": 10},
    "dispatcher": {"queue_file_entries": 1000, "interval_ms": 10, "linger_ms": 0},
}
"""Of which retention leaves half a megabyte."""


def send_some(producer: commitlog.Producer) -> None:
    producer.send_batch("t", [bytes(40)] * 300)


def overtake(store: commitlog.Store, producer: commitlog.Producer) -> None:
    """Sends until retention has removed every segment that is there now."""
    segments = [store.path / "lanes/0/commitlog" / name for name in os.listdir(store.path / "lanes/0/commitlog")]

    def gone() -> bool:
        send_some(producer)
        return not any(segment.exists() for segment in segments)

    wait_until(gone, "retention to pass the reader")


def test_verify_of_a_store_whose_segments_retention_removes(tmp_path: Path) -> None:
    """Segments that are removed meanwhile are no damage, and neither are their entries.

    `verify` goes on with what is left.
    """
    with commitlog.Store.open(tmp_path / "store", SHORT) as store, store.producer() as producer:
        for _ in range(10):
            send_some(producer)
        producer.flush(timeout=60)
        looked: list[int] = []

        def overtake_once(where: int) -> None:
            if not looked:
                overtake(store, producer)
            looked.append(where)

        report = verify_store(store.path, progress=overtake_once)
        assert report.good, report.lanes[0].findings
        assert looked
        producer.flush(timeout=60)
        assert verify_store(store.path).good


@pytest.mark.nightly
def test_dump_of_a_store_whose_segments_retention_removes(tmp_path: Path) -> None:
    """What is left follows; what went is not there."""
    with commitlog.Store.open(tmp_path / "store", SHORT) as store, store.producer() as producer:
        for _ in range(10):
            send_some(producer)
        producer.flush(timeout=60)
        records = dump_records(store.path)
        offsets = [next(records)["queueOffset"]]
        overtake(store, producer)
        offsets += [record["queueOffset"] for record in records]
        assert offsets == sorted(set(offsets))


def test_without_store_json_the_messages_are_there(tmp_path: Path) -> None:
    """A damaged store.json is a finding; the segment size shows in the files."""
    path = tmp_path / "store"
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        for _ in range(200):
            producer.send("orders", b"x" * 1000)
    StoreDirectory(path).file.write_text("{}")
    report = verify_store(path)
    assert report.findings
    assert report.lanes[0].records == 200
    assert len(list(dump_records(path))) == 200


def test_damage_is_named_with_file_and_offset(lane: MadeLane) -> None:
    """A flipped bit in a body, an entry of another record, a torn tail behind what was flushed."""
    start = lane.places[20][0]
    byte = lane.read(start + 90, start + 91)[0]
    lane.write(start + 90, bytes([byte ^ 4]))
    queue = lane.directory.queue_path("orders") / f"{0:020d}"
    data = queue.read_bytes()
    queue.write_bytes(data[:40] + data[20:40] + data[60:])
    lane.write(lane.end, b"something")
    report = verify_store(lane.directory.path)
    (found,) = report.lanes
    assert found.records == len(lane.records) - 1
    assert [finding.offset for finding in found.findings] == [40, start, lane.end]
    assert found.findings[1].file.endswith("commitlog/00000000000000000000") == (start < lane.segment_bytes)
    assert "torn tail" in found.findings[2].reason


def test_entries_that_are_missing_or_too_many_are_found(lane: MadeLane) -> None:
    """Below what was dispatched; and past the log's end."""
    shutil.rmtree(lane.directory.queue_path("payments").parent)
    lane.directory.segment_path(lane.end - lane.end % lane.segment_bytes).unlink()
    lane.set_positions(lane.end, lane.end)
    reasons = " ".join(finding.reason for finding in verify_store(lane.directory.path).lanes[0].findings)
    assert "entries are missing" in reasons
    assert "the segment file is missing" in reasons or "flushed was" in reasons
    assert "past the log's end" in reasons


def test_a_first_segment_that_is_missing_is_told_from_one_that_retention_took(lane: MadeLane) -> None:
    """Retention writes to `positions` where the log begins, before it removes a file."""
    first = lane.directory.segment_path(0)
    first.unlink()
    (found,) = verify_store(lane.directory.path).lanes
    assert [(finding.file, finding.offset) for finding in found.findings] == [(str(first), 0)]
    assert "missing" in found.findings[0].reason
    lane.set_positions(lane.end, lane.end, first=lane.segment_bytes)
    assert verify_store(lane.directory.path).good


@pytest.mark.parametrize("kept", [0, 1, 20, 59, 60])
def test_what_lies_behind_the_recorded_end_is_not_counted_good(lane: MadeLane, kept: int) -> None:
    """Records of a store that was killed are good, but nobody reads them.

    They are counted separately.
    """
    end = lane.places[kept][0] if kept < 60 else lane.end
    lane.set_positions(end, end)
    report = verify_store(lane.directory.path)
    (found,) = report.lanes
    assert report.good
    assert (found.records, found.records_behind) == (kept, 60 - kept)
    assert (found.records_bytes, found.bytes_behind) == tuple(
        sum(b - a for a, b in some) for some in (lane.places[:kept], lane.places[kept:])
    )
    assert found.end == end
    said = CliRunner().invoke(app, ["verify", str(lane.directory.path)]).stdout
    assert (f"recorded end: {counted(60 - kept, 'record')}, " in said) == (kept < 60)


def test_a_gap_behind_the_recorded_end_is_a_torn_tail(lane: MadeLane) -> None:
    """Recovery will cut there, though good records follow."""
    lane.set_positions(lane.places[20][0], lane.places[20][0])
    lane.write(lane.places[30][0], bytes(10))
    (found,) = verify_store(lane.directory.path).lanes
    assert (found.records, found.records_behind) == (20, 39)
    assert [finding.offset for finding in found.findings] == [lane.places[30][0]]
    assert "torn tail" in found.findings[0].reason


def test_a_value_that_does_not_unpack_is_dumped_as_it_is(lane: MadeLane) -> None:
    """The record says why; it is whole by its CRCs, so it is no damage."""
    lane.append("zip", b"no zlib", sys_flag=1)
    *others, dumped = dump_records(str(lane.directory.path))
    assert "plainBodyError" not in others[0]
    assert dumped["plainBody"] is None
    assert "zlib" in dumped["plainBodyError"].lower()
    assert dumped["body"] == "bm8gemxpYg=="


def test_commands(lane: MadeLane) -> None:
    """JSON for programs, lines for people; the exit code says whether all is good."""
    runner, path = CliRunner(), str(lane.directory.path)
    dumped = runner.invoke(app, ["dump", path, "--json"])
    assert [orjson.loads(line) for line in dumped.stdout.splitlines()] == list(dump_records(path))
    assert len(runner.invoke(app, ["dump", path]).stdout.splitlines()) == len(lane.records)
    good = runner.invoke(app, ["verify", path, "--json"])
    assert good.exit_code == 0
    assert orjson.loads(good.stdout)["lanes"][0]["records"] == len(lane.records)
    lane.write(lane.places[3][0] + 50, b"\xff" * 30)
    bad = runner.invoke(app, ["verify", path])
    assert bad.exit_code == 1
    assert f"at offset {lane.places[3][0]}" in bad.stdout


def test_verify_says_how_far_it_is_when_it_takes_long(lane: MadeLane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a second on standard error, so that JSON stays JSON; nothing where it is quick."""
    runner, arguments = CliRunner(), ["verify", str(lane.directory.path), "--json"]
    now = SYSTEM_CLOCK.monotonic_ns()
    monkeypatch.setattr(SYSTEM_CLOCK, "monotonic_ns", lambda: now)
    quick = runner.invoke(app, arguments)
    monkeypatch.setattr(SYSTEM_CLOCK, "monotonic_ns", itertools.count(now, 600_000_000).__next__)
    slow = runner.invoke(app, arguments)
    assert quick.stderr == ""
    assert set(slow.stderr.splitlines()) == {"verify is at 0 MB"}
    assert slow.stdout == quick.stdout


def run_here(*words: str) -> str:
    """The exit code of a command in this process, and what it says on standard error."""
    sys.argv, sys.stderr = ["commitlog", *words], io.StringIO()
    sys.stdout = io.TextIOWrapper(io.BytesIO())
    try:
        main()
    except SystemExit as end:
        return f"{end.code}: {sys.stderr.getvalue()}"
    return "0: "


@pytest.mark.parametrize("closed", ["commitlog", "commitlog/00000000000000004096", "consumequeue"])
def test_what_one_may_not_read_is_named_in_one_line(closed: str, tmp_path: Path) -> None:
    """A part of a RocketMQ's store may not be read, which is no traceback.

    The test gives up root's privileges.
    """
    root = unpack("rolls", tmp_path / "store")
    for command in ("verify", "dump", "cat"):
        assert CliRunner().invoke(app, [command, str(root)]).exit_code == 0  # nothing is left to be imported
    (root / closed).chmod(0)
    try:
        for command in ("verify", "dump", "cat") if closed.startswith("commitlog") else ("verify", "cat"):
            said = without_privileges(partial(run_here, command, str(root)))
            assert said.startswith("1: commitlog: ")
            assert f"{root / closed}: Permission denied" in said
            assert said.count("\n") == 1
    finally:
        (root / closed).chmod(0o700)


def test_a_directory_without_a_log_is_named(tmp_path: Path) -> None:
    """Neither a store nor a RocketMQ root."""
    for function in (verify_store, lambda path: list(dump_records(path))):
        with pytest.raises(StoreNotFound):
            function(tmp_path)


@pytest.mark.parametrize("name", ["quarantine", "tmp", "consumequeue"])
def test_verify_names_a_file_in_place_of_a_directory(name: str, tmp_path: Path) -> None:
    """A start refuses such a lane."""
    store = small_store(tmp_path / "store")
    place = store.directory.lane_directory(0).path / name
    if place.is_dir():
        place.rename(tmp_path / "away")
    place.write_text("somebody's")
    report = verify_store(store.path)
    named = [found for lane in report.lanes for found in lane.findings if "not a directory" in found.reason]
    assert [found.file for found in named] == [str(place)]
    assert not report.good

"""Random damage: what is called good afterwards was written, whatever happened to the files."""

from __future__ import annotations

import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CommitLogError
from commitlog.inspecting.dump import dump_records
from commitlog.inspecting.log_root import LogRoot
from commitlog.inspecting.verify import verify_lane, verify_store
from commitlog.record.record import decode
from tests.builders.made_lane import SEGMENT, MadeLane, image, make_lane
from tests.builders.random_damage import Damage, damage, damages

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1_000)
TEN_TIMES = pytest.mark.parametrize("turn", range(10))

positions = st.sampled_from(["end", "middle", "none", "beyond", "stopped"])


@pytest.fixture(scope="module", autouse=True)
def template_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not handed to the tests themselves: hypothesis would print all of it."""
    _templates.append(make_lane(tmp_path_factory.mktemp("template") / "3"))
    yield
    _templates.clear()


_templates: list[MadeLane] = []


def copy_of_template(path: Path) -> MadeLane:
    """A lane for each example."""
    (template,) = _templates
    shutil.copytree(template.directory.path, path)
    return MadeLane(
        LaneDirectory(path, 3),
        places=template.places,
        records=template.records,
        topics=template.topics,
        end=template.end,
    )


def set_positions(lane: MadeLane, kind: str) -> int:
    """How much of the lane is known as flushed.

    It is the recorded position, or all of a lane that was stopped properly and lost its positions.
    """
    middle = lane.places[len(lane.places) // 2][0]
    flushed = {"end": lane.end, "middle": middle, "none": 0, "beyond": lane.end + 3 * SEGMENT + 5, "stopped": lane.end}[
        kind
    ]
    lane.directory.positions_file.unlink()
    if kind == "none":
        lane.directory.abort_file.touch()
    elif kind != "stopped":
        lane.set_positions(flushed, min(flushed, middle))
    return flushed


def check_damaged_log(damages: list[Damage], kind: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        lane = copy_of_template(Path(directory) / "3")
        flushed = set_positions(lane, kind)
        damage(lane.directory.path, damages, "commitlog")
        root = LogRoot(lane.directory.path, 3, SEGMENT)
        before = set(lane.kept())
        assert verify_lane(root).records == len(before)
        verify_store(lane.directory.path)  # has to guess the size of segments
        for _ in dump_records(lane.directory.path):
            pass
        try:
            found = lane.recover()
        except CommitLogError:
            assert set(lane.kept()) == before
            return
        after = set(lane.kept())
        assert after <= before
        lost = before - after
        # what verifies and ends below what was flushed is never lost, nor is anything before the
        # first damage above it
        assert all(lane.places[number][1] > flushed for number in lost)
        assert not lost or min(lost) > max(after, default=-1)
        assert found.end <= found.allocated or found.end % SEGMENT == 0
        assert 0 <= found.dispatched <= found.end
        check_queues(lane, after, found.dispatched)
        files = image(lane.directory.path)
        again = lane.recover()
        assert (again.first, again.end, again.allocated) == (found.first, found.end, found.allocated)
        assert image(lane.directory.path) == files


def check_queues(lane: MadeLane, kept: set[int], dispatched: int) -> None:
    """Each record that is kept and dispatched has its entry.

    No entry names a place that is not that of a written record. The entry has the tags that are in
    the log: see `MadeLane.kept` for a record whose properties have changed.
    """
    numbers = {start: number for number, (start, _) in enumerate(lane.places)}
    for topic in ("orders", "payments"):
        entries = lane.entries(topic)
        expected = lane.expected_entries(topic)
        for number, (start, size, _) in enumerate(expected):
            if start < dispatched and numbers[start] in kept:
                assert entries[number] == (start, size, decode(lane.read(start, start + size)).tags_code)


def check_damaged_queues(damages: list[Damage]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        lane = copy_of_template(Path(directory) / "3")
        damage(lane.directory.path, damages, "consumequeue")
        before = image(lane.directory.commitlog)
        verify_store(lane.directory.path)
        found = lane.recover()
        assert found.end == lane.end
        assert image(lane.directory.commitlog) == before
        report = verify_store(lane.directory.path)
        if not report.good:
            # a flip that leaves a plausible entry is found by verify, and put right when the queues
            # are built anew
            assert all("wrong" in finding.reason for finding in report.lanes[0].findings)
            lane.directory.positions_file.unlink()
            lane.recover()
        for topic in ("orders", "payments"):
            assert lane.entries(topic) == lane.expected_entries(topic)


@FEW
@given(damages=damages, kind=positions)
@example(damages=[("splice", 0.0, 0.49566251290540736, b"p")], kind="end")  # properties in good order in a CRC's place
@example(
    damages=[
        ("flip", 0.0, 0.0, b"\0"),
        ("flip", 0.5, 0.0, b"\0"),
        ("flip", 0.5, 0.5, b"\0"),
        ("flip", 0.5, 0.07421875, b"\0"),
    ],
    kind="middle",
)  # the first record of each segment that is left
@example(
    damages=[("cut", 0.0, 0.65234375, b"\0"), ("lengthen", 0.0, 0.0, b"\3")], kind="none"
)  # TAGS becomes "t" and some \3, its record loses its CRC
@example(
    damages=[*[("cut", 0.75, 0.375, b"\0")] * 3, ("flip", 0.75, 0.01171875, b"\3")],
    kind="end",
)  # the last record that is left claims to reach beyond what was flushed
def test_damaged_logs(damages: list[Damage], kind: str) -> None:
    """Verify, dump and recovery agree and keep what was flushed.

    A second recovery changes nothing.
    """
    check_damaged_log(damages, kind)


@FEW
@given(damages=damages)
def test_damaged_consume_queues(damages: list[Damage]) -> None:
    """They come back from the log, byte for byte."""
    check_damaged_queues(damages)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@TEN_TIMES
@MANY
@given(damages=damages, kind=positions)
def test_damaged_logs_many(turn: int, damages: list[Damage], kind: str) -> None:
    """The same, 10,000 times in all."""
    check_damaged_log(damages, kind)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@TEN_TIMES
@MANY
@given(damages=damages)
def test_damaged_consume_queues_many(turn: int, damages: list[Damage]) -> None:
    """The same, 10,000 times in all."""
    check_damaged_queues(damages)


@pytest.mark.parametrize("content", [b"\xda\xa3\x20\xa7" * (SEGMENT // 4), b"\xda" * SEGMENT, os.urandom(SEGMENT)])
def test_a_segment_of_nothing_but_magic_takes_no_time_and_no_memory(tmp_path: Path, content: bytes) -> None:
    """Every place looks like a record's start a little."""
    lane = make_lane(tmp_path / "3")
    lane.directory.segment_path(SEGMENT).write_bytes(content)
    tracemalloc.start()
    lane.recover()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20
    assert lane.kept() == [n for n, (start, _) in enumerate(lane.places) if start // SEGMENT != 1]

"""Every kind of bad bytes in a log once by hand, below and above what was flushed."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.errors import RecoveryError
from commitlog.record.record import encode_blank
from commitlog.record.record_layout import MAGIC_V1, MAGIC_V2
from tests.builders.made_lane import SEGMENT, MadeLane, image, make_lane
from tests.nightly import with_nightly

BAD = 20
FIELD_ENDS = [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84, 88]
LENGTHS = [0, 1, -1, 87, 2**31 - 1, -(2**31), SEGMENT, SEGMENT * 100]


def _cut(end: int) -> Callable[[bytes], bytes]:
    return lambda record: record[:end].ljust(len(record), b"\0")


def _length(value: int) -> Callable[[bytes], bytes]:
    return lambda record: struct.pack(">i", value) + record[4:]


def _body_length(value: int) -> Callable[[bytes], bytes]:
    return lambda record: record[:84] + struct.pack(">i", value) + record[88:]


def _magic(value: int) -> Callable[[bytes], bytes]:
    return lambda record: record[:4] + struct.pack(">I", value) + record[8:]


def _put(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda record: record[:at] + data + record[at + len(data) :]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    **{f"cut after {end}": _cut(end) for end in FIELD_ENDS},
    **{f"total {value}": _length(value) for value in LENGTHS},
    **{f"body {value}": _body_length(value) for value in LENGTHS},
    "other magic": _magic(MAGIC_V1 + 1),
    "version 2": _magic(MAGIC_V2),
    "no magic": _magic(0),
    "other queue": _put(12, struct.pack(">i", 4)),
    "other queue offset": _put(20, struct.pack(">q", -1)),
    "other place": _put(28, struct.pack(">q", 0)),
    "far place": _put(28, struct.pack(">q", 2**62)),
    "IPv6 flag": _put(36, struct.pack(">i", 0x30)),
    "all ones": lambda record: b"\xff" * len(record),
    "all zeros": lambda record: bytes(len(record)),
    "BLANK": lambda record: encode_blank(len(record)) + record[8:],
    "record of another place": lambda record: record[:28] + struct.pack(">q", 77) + record[36:],
    "last byte": lambda record: record[:-1] + b"\x03",
    "CRC's name": lambda record: record[:-20] + b"__CRC33#" + record[-12:],
    "a byte slipped into the CRC's name": lambda record: record[:-16] + b"\x33" + record[-16:-1],
    "a byte lost from the CRC's name": lambda record: record[:-16] + record[-15:] + b"\x02",
    "no CRC": lambda record: record[:-20] + bytes(20),
}


@pytest.mark.parametrize("harm", with_nightly(list(HARMS)[::2], list(HARMS)[1::2]))
def test_a_bad_record(harm: str, tmp_path: Path) -> None:
    """Below flushed its neighbours stay and it is named; above, the log ends before it."""
    lane = make_lane(tmp_path / "below" / "3")
    start, end = lane.places[BAD]
    bad = HARMS[harm](lane.records[BAD])
    assert len(bad) == end - start
    lane.write(start, bad)
    lane.set_positions(lane.end, 0)
    found = lane.recover()
    assert found.end == lane.end
    assert lane.kept() == [n for n in range(len(lane.records)) if n != BAD]
    assert any(f"at offset {start}" in line for line in found.findings)
    assert lane.read(start, end) == bad

    lane = make_lane(tmp_path / "above" / "3")
    lane.write(start, bad)
    lane.set_positions(start, 0)
    found = lane.recover()
    assert found.end == start
    assert lane.kept() == list(range(BAD))
    assert found.last_store_timestamp == 1_000_000 + BAD - 1


def _swapped(lane: MadeLane) -> None:
    one, two = lane.directory.segment_path(0), lane.directory.segment_path(SEGMENT)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def _doubled(lane: MadeLane) -> None:
    lane.directory.segment_path(SEGMENT).write_bytes(lane.directory.segment_path(0).read_bytes())


def _renamed(lane: MadeLane) -> None:
    lane.directory.segment_path(SEGMENT).rename(lane.directory.segment_path(SEGMENT + 1))


def _far_away(lane: MadeLane) -> None:
    lane.directory.segment_path(SEGMENT).rename(lane.directory.segment_path(SEGMENT << 40))


def _negative(lane: MadeLane) -> None:
    (lane.directory.commitlog / f"{2**64:020d}").write_bytes(bytes(SEGMENT))
    (lane.directory.commitlog / "-0000000000000004096").write_bytes(bytes(SEGMENT))


def _linked(lane: MadeLane) -> None:
    target = lane.directory.path / "elsewhere"
    lane.directory.segment_path(SEGMENT).rename(target)
    lane.directory.segment_path(SEGMENT).symlink_to(target)


def _a_directory(lane: MadeLane) -> None:
    lane.directory.segment_path(SEGMENT).unlink()
    lane.directory.segment_path(SEGMENT).mkdir()


@pytest.mark.parametrize(
    ("harm", "bad"),
    [
        (_swapped, {0, 1}),
        (_doubled, {1}),
        (_renamed, {1}),
        (_far_away, {1}),
        (_negative, set()),
        (_linked, {1}),
        (_a_directory, {1}),
    ],
)
def test_bad_segments(harm: Callable[[MadeLane], None], bad: set[int], tmp_path: Path) -> None:
    """Flushed records are kept wherever they are at their place.

    Nothing is removed, and the log goes on where it was.
    """
    lane = make_lane(tmp_path / "3")
    lane.set_positions(lane.end, 0)
    harm(lane)
    before = image(lane.directory.commitlog)
    found = lane.recover()
    assert lane.kept() == [n for n, (start, _) in enumerate(lane.places) if start // SEGMENT not in bad]
    assert found.findings
    assert found.end == lane.end
    if harm is not _far_away:
        assert image(lane.directory.commitlog) == before


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "tmp", "lock", "positions", "quarantine"])
def test_a_file_in_place_of_a_directory_and_the_other_way_round(part: str, tmp_path: Path) -> None:
    """A named error, or the lane as it was; never a traceback of something else."""
    lane = make_lane(tmp_path / "3")
    lane.recover()
    path = lane.directory.path / part
    if path.is_dir():
        path.rename(tmp_path / "away")
        path.write_text("x")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    if part == "quarantine":
        path.rmdir()
        path.write_text("x")
        lane.write(lane.end, b"torn")
    with pytest.raises(RecoveryError):
        lane.recover()


@pytest.mark.parametrize(
    "rest", [{"end": 100.5}, {"dirty_end": "60"}, {"copy": 5}, {"end": 10**300}, {"moves": [[1, 2]]}, {}]
)
def test_a_plan_of_a_cut_that_nobody_made_changes_nothing(rest: dict[str, object], tmp_path: Path) -> None:
    """Numbers that are none; bytes of which no copy was kept."""
    lane = make_lane(tmp_path / "3")
    cut = {"end": 100, "dirty_end": 900, "copy": "torn", "note": "n", "moves": [], "reason": "", "records_after": 0}
    lane.directory.quarantine.mkdir()
    (lane.directory.quarantine / "cut.json").write_text(json.dumps(cut | rest))
    before = image(lane.directory.commitlog)
    assert lane.recover().end == lane.end
    assert image(lane.directory.commitlog) == before


def test_positions_of_another_lane_or_of_nowhere(tmp_path: Path) -> None:
    """One behind the log only means that more is walked. One within a record is another log's."""
    lane = make_lane(tmp_path / "3")
    lane.set_positions(lane.end, lane.places[30][0] + 7)
    with pytest.raises(RecoveryError, match="not the log that was flushed here"):
        lane.recover()
    for flushed, dispatched in ((lane.end, 0), (lane.end * 9, lane.end * 8), (1 << 60, 0)):
        os.unlink(lane.directory.positions_file)
        lane.set_positions(flushed, dispatched)
        found = lane.recover()
        assert lane.kept() == list(range(len(lane.records)))
        assert found.end >= lane.end
        assert 0 <= found.dispatched <= found.end
        for topic in ("orders", "payments"):
            assert lane.entries(topic) == lane.expected_entries(topic)

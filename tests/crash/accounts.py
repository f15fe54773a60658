"""Compares what writers noted with what the store's files hold, record by record."""

from __future__ import annotations

import mmap
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from commitlog.disk.checkpoint import PositionsFile
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import StoreDirectory
from commitlog.record.scan import scan
from commitlog.record.table import Stop

Place = tuple[int, str, int, int, int]
"""Lane, topic, queue offset, physical offset, CRC-32 of the body."""


@dataclass(frozen=True)
class Account:
    """What is in the files; `places` are in the log order of each lane."""

    places: list[Place]

    @property
    def messages(self) -> int:
        return len(self.places)


def read_notes(files: list[Path]) -> list[Place]:
    """What the writers saw accepted.

    A kill may cut the last line of a file, where a page of it ends: such a line claims nothing.
    """
    places = []
    for file in files:
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
        for line in whole.splitlines():
            lane, topic, offset, physical, crc = line.split()
            places.append((int(lane), topic, int(offset), int(physical), int(crc)))
    return places


def read_store(path: Path) -> Account:
    """Every record of every lane, CRCs checked. Fails where a log ends in anything but zeros."""
    directory = StoreDirectory(path)
    places: list[Place] = []
    for number in directory.lane_numbers():
        lane_directory = directory.lane_directory(number)
        ended = False
        # a writer that was stopped as soon as it had its lane wrote nothing there
        for name in sorted(os.listdir(lane_directory.commitlog)) if lane_directory.commitlog.exists() else ():
            before = len(places)
            stop = _read_segment(lane_directory.commitlog / name, number, places)
            assert stop in (Stop.ZERO, Stop.BLANK), f"{lane_directory.commitlog / name}: {stop}"
            assert not (ended and len(places) > before), (
                f"{lane_directory.commitlog / name}: records after the log's end"
            )
            ended = ended or stop is Stop.ZERO
    return Account(places)


def _read_segment(file: Path, lane: int, places: list[Place]) -> Stop:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        where = 0
        while True:
            table = scan(mapping, where, len(mapping), int(file.name), lane, check_crc=True)
            for i in range(len(table)):
                at, size = int(table.body_positions[i]), int(table.body_sizes[i])
                topic = table.topics[int(table.topic_index[i])]
                physical = int(table.physical_offsets[i])
                places.append((lane, topic, int(table.queue_offsets[i]), physical, zlib.crc32(mapping[at : at + size])))
            if table.stop is not Stop.FULL:
                return table.stop
            where = table.stop_position


def retired_below(path: Path) -> dict[int, int]:
    """Lane → the log offset below which retention has deleted.

    The store has to be stopped properly.
    """
    directory = StoreDirectory(path)
    retired = {}
    for number in directory.lane_numbers():
        positions = PositionsFile(directory.lane_directory(number), "", DISK).load()
        if positions is not None:
            retired[number] = positions.first_where
    return retired


def check(notes: list[Place], account: Account, deaths: int, retired: Mapping[int, int] = MappingProxyType({})) -> None:
    """All accepted messages are there, unchanged, once, in order, queue offsets without a gap.

    `deaths`: how many writers may have died between the publish and their note. `retired`: lane →
    the log offset below which messages may be missing, because retention has recorded it; a segment
    below it may still be there.
    """
    notes = [place for place in notes if place[3] >= retired.get(place[0], 0)]
    places = [place for place in account.places if place[3] >= retired.get(place[0], 0)]
    counted = Counter(places)
    doubled = [place for place, count in counted.items() if count > 1]
    assert not doubled, f"doubled: {doubled[:5]}"
    missing = [place for place in notes if place not in counted]
    assert not missing, f"{len(missing)} accepted and lost: {missing[:5]}"
    unnoted = len(places) - len(notes)
    assert 0 <= unnoted <= deaths, f"{unnoted} messages that nobody noted, {deaths} writers died"
    expected: dict[tuple[int, str], int] = {}
    for lane, topic, offset, _, _ in places:
        following = expected.get((lane, topic), offset if retired.get(lane) else 0)
        assert offset == following, f"lane {lane}, {topic}: offset {offset}, not {following}"
        expected[lane, topic] = offset + 1

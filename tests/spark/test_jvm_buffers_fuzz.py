"""Damage of a lane's write buffers, and of its words in shared memory, under the JVM's reader.

It reads what is accepted and in no file yet. Damaged bytes give the rows that Python finds once
they are in the files. Wrong words give no other rows than the right ones.
"""

from __future__ import annotations

import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.shm.layout import DIRECT_WINDOW, Lane
from commitlog.shm.write_buffers import buffers_path
from commitlog.spark.jvm_planner import reading
from commitlog.spark.jvm_stream import PlannedStream
from tests.builders.random_damage import change
from tests.faults.bench import SEGMENT_BYTES, Bench, bench
from tests.nightly import with_nightly
from tests.spark.fuzzed_reads import NUMBERS, Counts, Growing, JavaReads, check_growing, java_reads, random_damages

WORDS = [Lane.COMMITTED, Lane.FLUSHED, Lane.BUFFERS, Lane.SLOTS]
DIRECTS = range(Lane.DIRECT, Lane.DIRECT + DIRECT_WINDOW)
OPTIONS = {"subscribe": "orders", "includeHeaders": "true", "isolation": "accepted"}


class AcceptedLane:
    """A lane of which a part is flushed, and the rest is in its write buffers only."""

    def __init__(self, made: Bench) -> None:
        self._row = made.control.row(0)
        chance, producer = random.Random(3), made.producer()
        _send(producer, chance, 150)
        made.settle()
        of_store = OPTIONS | {"path": str(made.path)}
        schema = reading({"options": of_store})["schema"]
        stream = PlannedStream(of_store | {"startingOffsets": "earliest"}, {"schema": schema, "real_time": True})
        plan = stream.answer({"ask": "follow", "start": stream.answer({"ask": "initial"})["offset"], "parallelism": 1})
        _send(producer, chance, 250)
        pool = made.control.region.path.parent
        self._buffers = buffers_path(pool, 0)
        self._log = made.path / "lanes/0/commitlog"
        self._bytes = self._buffers.read_bytes()
        self._words = bytes(self._row)
        self._segments = {path: path.read_bytes() for path in self._log.iterdir()}
        self.growing = Growing(schema, plan, self._row[Lane.WROTE], 320)
        assert self.growing.begin < self.growing.end < self._row[Lane.SLOTS] * SEGMENT_BYTES  # a slot for each segment

    def harm(self, chance: random.Random) -> str:
        """Damages the buffers or the words, and returns how."""
        if chance.random() < 0.5:
            word = chance.choice([*WORDS, chance.choice(DIRECTS)])
            near = self._row[chance.choice(WORDS)] + chance.choice((-1, 0, 1, SEGMENT_BYTES))
            self._row[word] = chance.choice((near, *NUMBERS)) & ((1 << 64) - 1)
            return f"word {word}"
        if chance.random() < 0.5:
            data = bytearray(self._bytes)
            at, (form, size) = chance.randrange(self.growing.end - 8), chance.choice(((">I", 4), (">H", 2), (">Q", 8)))
            struct.pack_into(form, data, at, chance.choice(NUMBERS) & ((1 << 8 * size) - 1))
            self._buffers.write_bytes(data)
            return "a number"
        data = bytearray(self._bytes[: self.growing.end])
        for kind, _, how, content in random_damages(chance):
            if data:
                change(data, kind, how, content, self._bytes)
        self._buffers.write_bytes(data)
        return "bytes"

    def commit(self) -> None:
        """Puts the bytes of the buffers into the files, as far as they are there."""
        data = self._buffers.read_bytes()
        for path, known in self._segments.items():
            start = int(path.name)
            held = data[start : start + SEGMENT_BYTES]
            flushed = min(max(self.growing.begin - start, 0), SEGMENT_BYTES)
            path.write_bytes((known[:flushed] + held[flushed:]).ljust(SEGMENT_BYTES, b"\0"))

    def restore(self) -> None:
        SEGMENTS.clear()
        self._buffers.write_bytes(self._bytes)
        self._row.cast("B")[:] = self._words
        for path, known in self._segments.items():
            path.write_bytes(known)


def _send(producer: commitlog.Producer, chance: random.Random, count: int) -> None:
    for number in range(count):
        topic = "orders" if number % 5 else "other"
        key = None if number % 3 else f"key {number}"
        producer.send(topic, chance.randbytes(chance.randrange(600)), key=key, headers={"a": "b" * (1 + number % 7)})


@contextmanager
def accepted_lane(place: Path) -> Iterator[AcceptedLane]:
    with bench(place / "store") as made:
        yield AcceptedLane(made)


def fuzz(java: JavaReads, place: Path, cases: int, seed: int) -> Counts:
    """Tries so many cases. An AssertionError says which one it was."""
    counts = Counts()
    with accepted_lane(place) as lane:
        for case in range(cases):
            chance = random.Random(f"{seed} {case}")
            how = lane.harm(chance)
            try:
                _check(java, lane, chance, counts)
            except Exception as error:
                raise AssertionError(f"seed {seed}, case {case}, {how}: {error}") from error
            finally:
                lane.restore()
    return counts


def _check(java: JavaReads, lane: AcceptedLane, chance: random.Random, counts: Counts) -> None:
    part: dict[str, Any] = lane.growing.by_java(java, chance)
    lane.commit()
    check_growing(java, lane.growing, part, counts)


@pytest.mark.parametrize("cases", with_nightly([50], [20_000]))
def test_damage_of_write_buffers_never_gives_other_rows(java: JavaReads, tmp_path: Path, cases: int) -> None:
    counts = fuzz(java, tmp_path, cases, seed=cases)
    assert min(counts.whole, counts.handed_over, counts.errors) > cases / 20, counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, java_reads(Path(tempfile.mkdtemp(dir=place))) as started:
        print(fuzz(started, Path(place), int(sys.argv[1]), int(sys.argv[2])))

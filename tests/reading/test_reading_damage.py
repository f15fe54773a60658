"""Random damage to the consume queues of a stopped store.

A reader gets every message, or an error with a name.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.client.reader import Reader
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, new_store_id
from commitlog.errors import ReadingWarning
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.record.record import Record, decode
from tests.builders.made_lane import SEGMENT, MadeLane, make_lane
from tests.builders.random_damage import Damage, damage, damages

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1_000)
TEN_TIMES = pytest.mark.parametrize("turn", range(10))

_templates: list[MadeLane] = []


@pytest.fixture(scope="module", autouse=True)
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store that was closed properly, not an argument of tests: hypothesis would print it all."""
    path = tmp_path_factory.mktemp("template") / "store"
    lane = make_lane(path / "lanes" / "3")
    entries = sum(lane.next_offsets.values())
    lane.set_positions(lane.end, lane.end, drained=True, entries=entries)
    StoreDirectory(path).save(StoreFacts(new_store_id(), SEGMENT))
    _templates.append(lane)
    yield
    _templates.clear()


def check(harm: list[Damage], back: int) -> None:
    (lane,) = _templates
    records = [record for record in map(decode, lane.records) if not record.sys_flag & 4]
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore", ReadingWarning)
        store = Path(directory) / "store"
        shutil.copytree(lane.directory.path.parents[1], store)
        damage(store / "lanes" / "3", harm, "consumequeue")
        assert read(store) == [place(record) for record in records]
        with closing(StoreView(store)) as view:
            index = TopicIndex(view)
            index.refresh()
            for topic in ("orders", "payments"):
                expected = [record for record in records if record.topic == topic]
                known = index.ranges(topic)[3]
                assert (known.first, known.end) == (0, len(expected))
                assert read(store, topic) == [place(record) for record in expected]
                start = max(len(expected) - back, 0)
                assert read(store, topic, start) == [place(record) for record in expected[start:]]
                assert read(store, topic, f"last {back}") == [place(record) for record in expected[start:]]
                wanted = expected[min(start, len(expected) - 1)]
                assert index.find_by_time(topic, 3, wanted.store_timestamp) == wanted.queue_offset


def place(record: Record) -> tuple[str, int, int]:
    return record.topic, record.queue_offset, record.physical_offset


def read(store: Path, topic: str | None = None, start: str | int = "earliest") -> list[tuple[str, int, int]]:
    with Reader(store, topic, start=start) as reader:
        return [(message.topic, message.offset, message.physical_offset) for message in reader]


@FEW
@given(damages, st.integers(0, 60))
def test_damaged_consume_queues_are_read_past(harm: list[Damage], back: int) -> None:
    """All messages, by every way in."""
    check(harm, back)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@TEN_TIMES
@MANY
@given(damages, st.integers(0, 60))
def test_damaged_consume_queues_are_read_past_many(turn: int, harm: list[Damage], back: int) -> None:
    """The same, 10,000 times in all."""
    check(harm, back)

"""How fast messages of a topic come, by their store times."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from commitlog.reading.topic_facts import topic_facts
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from tests.builders.hand_made import BEGIN_MS, small_store


@pytest.mark.parametrize(
    ("now_ms", "recent"),
    [
        (BEGIN_MS - 3_600_000, 0),
        (BEGIN_MS - 1, 0),
        (BEGIN_MS, 1),
        (BEGIN_MS + 9_000, 10),
        (BEGIN_MS + 59_999, 60),
        (BEGIN_MS + 90_500, 60),
        (BEGIN_MS + 3_600_000, 0),
    ],
)
def test_the_rate_of_the_last_minute(tmp_path: Path, now_ms: int, recent: int) -> None:
    """Messages of the last minute count, and none that a clock ahead has stamped later than now."""
    store = small_store(tmp_path / "store", lanes=1, topics=("orders",))
    with closing(StoreView(store.path)) as view:
        index = TopicIndex(view)
        index.refresh()
        assert topic_facts(index, "orders", now_ms).messages_per_second == recent / 60

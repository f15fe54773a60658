"""The dispatcher's rounds: how far one goes."""

from __future__ import annotations

from pathlib import Path

from shm.layout import Lane
from tests.faults.bench import bench


def test_a_round_goes_on_across_segments_and_says_how_far(tmp_path: Path) -> None:
    """However small the segments: a dispatcher that rested after each would never catch up with its producers."""
    with bench(tmp_path / "store") as made:
        lanes = [made.producer(), made.producer()]
        for _ in range(30):
            made.turn("allocator", "flusher", "committer", "flusher")
            for producer in lanes:
                for _ in range(20):
                    producer.send("t", bytes(1000))
        for _ in range(5):
            made.turn("allocator", "flusher", "committer", "flusher")
        flushed = [made.lane(Lane.FLUSHED, producer.lane) for producer in lanes]
        assert min(flushed) > 5 * made.lane(Lane.SEGMENT_SIZE)
        assert made.stages["dispatcher"].work() == sum(flushed)
        assert [made.lane(Lane.DISPATCHED, producer.lane) for producer in lanes] == flushed
        assert made.stages["dispatcher"].work() == 0

"""A reader that lives for long keeps no space on the disk that retention has given back."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from tests.nightly import with_nightly


def deleted_segments() -> list[str]:
    """The files of logs that this process has mapped, and that nobody can open any more."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "/commitlog/0" in line and line.endswith(" (deleted)")]


@pytest.mark.parametrize("topic", with_nightly(["orders"], [None]))
def test_a_reader_that_follows_unmaps_deleted_segments(tmp_path: Path, topic: str | None) -> None:
    """They go at its next look, although no message comes that would need another segment."""
    config = {"store": {"segment_bytes": 1 << 16}}
    with (
        commitlog.Store.open(tmp_path / "store", config) as store,
        store.producer() as producer,
        commitlog.Reader(store.path, topic=topic, follow=True) as reader,
    ):
        for _ in range(60):
            producer.send("orders", bytes(5000))
            producer.flush("flushed")
            assert len(list(islice(reader, 1))) == 1
        done = CliRunner().invoke(app, ["trim", str(store.path), "--keep-bytes", "1", "--yes"])
        assert "deleted 4 segments" in done.output
        assert reader.poll(0.05) is None
        assert deleted_segments() == []

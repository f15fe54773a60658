"""Every test begins with no segment mapped, as a new worker does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_segments_mapped(shm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After `shm_root`, so that the look for leaks comes when the mappings are gone. Nothing is
    frozen, as a worker does at its first task: what a test leaves in cycles could not be collected.
    """
    from commitlog.spark import task_reading
    from commitlog.spark.rows.segments import SEGMENTS

    monkeypatch.setattr(task_reading, "_settled", True)
    yield
    SEGMENTS.clear()

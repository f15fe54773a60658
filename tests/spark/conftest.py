"""Every test begins with no segment mapped, as a new worker does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_segments_mapped(shm_root: Path) -> Iterator[None]:
    """After `shm_root`, so that the look for leaks comes when the mappings are gone."""
    yield
    from commitlog.spark.segments import SEGMENTS

    SEGMENTS.clear()

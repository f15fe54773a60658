"""The store of the tests of retention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.idle_store import idle_store
from tests.builders.retention_case import SEGMENT, Disk, RetentionCase


@pytest.fixture
def case(tmp_path: Path, shm_root: Path) -> Iterator[RetentionCase]:
    disk = Disk()
    with idle_store(tmp_path / "store", shm_root / "pool", (0, 3), segment_bytes=SEGMENT, channel=disk) as store:
        yield RetentionCase(store, disk)

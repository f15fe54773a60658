"""Every test begins with no segment mapped, as a new worker does. Tests of damage share a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.fuzzed_reads import JavaReads


@pytest.fixture(autouse=True)
def no_segments_mapped(shm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unmaps segments after each test, and freezes nothing.

    It comes after `shm_root`, so that leaks are looked for when the mappings are gone. A worker
    freezes objects at its first task; here, cycles that a test leaves could not be collected then.
    """
    from commitlog.columns import process_memory
    from commitlog.columns.mapped_segments import SEGMENTS

    monkeypatch.setattr(process_memory, "_settled", True)
    yield
    SEGMENTS.clear()


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaReads]:
    """The worker's one JVM without Spark: to compile and to start it costs as much as 400 cases."""
    from tests.spark.fuzzed_reads import java_reads

    with java_reads(tmp_path_factory.mktemp("classes")) as started:
        yield started

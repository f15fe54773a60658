"""Items at many positions: however the positions lie, each item is the bytes at its position."""

from __future__ import annotations

import numpy as np
import pytest

from commitlog.record.byte_ranges import crcs_of, gather
from commitlog.record.crc import CRC_MASK, crc32

DATA = np.random.default_rng(7).integers(0, 256, 10_000, np.uint8)


@pytest.mark.parametrize("step", [1, 3, 160, 0, -1, -160])
@pytest.mark.parametrize("count", [1, 31, 60])
def test_evenly_spaced(step: int, count: int) -> None:
    """Also backwards, and one position many times; the first and the last bytes are taken too."""
    width = 20
    first = 0 if step > 0 else len(DATA) - width
    positions = first + step * np.arange(count)
    expected = [DATA[at : at + width].tobytes() for at in positions.tolist()]
    assert gather(DATA, f"V{width}", positions).tolist() == expected
    crcs = crcs_of(DATA, positions, np.full(count, width))
    assert crcs.tolist() == [crc32(item) & CRC_MASK for item in expected]


def test_any_order() -> None:
    positions = np.random.default_rng(8).integers(0, len(DATA) - 8, 500)
    expected = [int.from_bytes(DATA[at : at + 8].tobytes(), "big", signed=True) for at in positions.tolist()]
    assert gather(DATA, ">i8", positions).tolist() == expected


def test_nothing() -> None:
    assert len(gather(DATA[:0], ">i8", np.empty(0, np.int64))) == 0
    assert len(crcs_of(DATA[:0], np.empty(0, np.int64), np.empty(0, np.int64))) == 0

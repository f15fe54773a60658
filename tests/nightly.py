"""Values of parametrized tests that prove once more what others prove: they are tried nightly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def with_nightly(daily: Iterable[Any], nightly: Iterable[Any]) -> list[Any]:
    """For `pytest.mark.parametrize`: all of these, the second ones under `-m nightly` only.

    A tuple is the values of several parameters.
    """
    marked = [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly) for value in nightly
    ]
    return [*daily, *marked]


by_url_nightly = pytest.mark.parametrize("both_ways", with_nightly(["path"], ["url"]), indirect=True)
"""For tests that run twice, by path and by URL: the second run is nightly."""

by_all_readers_nightly = pytest.mark.parametrize("both_ways", with_nightly(["path"], ["url", "python"]), indirect=True)
"""For tests of Spark that also run with a path that Python reads: that run is nightly, too."""

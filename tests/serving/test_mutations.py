"""Mutated requests to a real server; `python -m tests.serving.mutations 10000` sends more."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.csv
import pytest

from tests.serving.mutations import hunt


@pytest.fixture(scope="module", autouse=True)
def _pipe_of_pyarrow() -> None:
    """PyArrow's pipe for signals, which it keeps, is there before leaks are looked for."""
    pyarrow.csv.read_csv(io.BytesIO(b"a\n1"))


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "seed"), [(1_000, 38)])
def test_mutated_requests(tmp_path: Path, count: int, seed: int) -> None:
    """Each has an answer or an error of ours, and the server is as it was before."""
    outcomes = hunt(count, seed, tmp_path)
    assert {kind.partition(":")[0] for kind in outcomes} >= {"do_get", "do_put", "get_schema", "look", "stat"}

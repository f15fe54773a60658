"""Planted bugs: every check passes with the real stages, and fails with its mistake."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bench import Bench, bench
from tests.planted import checks
from tests.planted.bugs import BUGS, Bug


@contextlib.contextmanager
def with_bug(path: Path, bug: Bug, **settings: Any) -> Iterator[Bench]:
    """Benches with one mistake in them."""
    kinds = {kind.name: kind for kind in bug.stages}
    with pytest.MonkeyPatch.context() as patch:
        bug.patch(patch)
        with bench(path, kinds, bug.channel, **settings) as made:
            yield made


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_the_stages_as_they_are(check: Callable[[checks.Build, Path], None], tmp_path: Path) -> None:
    """Every check passes."""
    check(bench, tmp_path / "store")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_mistake_is_caught(bug: Bug, tmp_path: Path) -> None:
    """The check fails because of the mistake: without it, it passes."""
    with pytest.raises(AssertionError) as caught:
        bug.caught_by(partial(with_bug, bug=bug), tmp_path / "store")
    reason = str(caught.value).partition("\n")[0]
    print(f"{bug.name}: caught by {bug.caught_by.__name__}: {reason}")


def test_every_check_has_its_mistake() -> None:
    """A check that no planted bug fails would prove nothing."""
    assert {bug.caught_by for bug in BUGS} == set(checks.CHECKS)
    assert len(BUGS) >= 10

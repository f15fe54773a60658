"""The native core as the tests of crashes need it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.builders.package_tree import CRATE


@pytest.fixture(scope="session")
def failpoints_core() -> Path:
    """The native core with the cargo feature `failpoints`.

    `cargo test` of scripts/test builds the same dependencies at the same place, and no library.

    Where no native core is, none is built for the test either: scripts/setup has said why.
    """
    if not (CRATE / "_core.abi3.so").exists():
        pytest.skip("no native core is built here")
    target = CRATE / "target"
    command = ["cargo", "build", "--quiet", "--locked", "--features", "failpoints", "--target-dir", str(target)]
    subprocess.run(command, cwd=CRATE, check=True)
    return target / "debug" / "lib_core.so"

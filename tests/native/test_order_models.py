"""The memory order of weaker machines than this one, by loom and Miri; both find planted bugs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.floors import ROOT

MODELS = ROOT / "tests" / "native" / "order_models"
CRATE = ROOT / "commitlog" / "native"

pytestmark = pytest.mark.nightly


def cargo(crate: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CARGO_TARGET_DIR": str(crate / "target")}
    return subprocess.run(["cargo", *arguments], cwd=crate, env=environment, capture_output=True, text=True)


def has(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not has("cargo", "--version"), reason="there is no cargo")
def test_the_models_hold_in_all_orders() -> None:
    """Each model has a planted mistake, for which its own test asks."""
    done = cargo(MODELS, "test", "--locked")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("planted_") == 6


@pytest.mark.skipif(
    not has("cargo", "+nightly", "miri", "--version"), reason="there is no Miri (a nightly Rust has it)"
)
def test_miri_finds_no_access_without_order() -> None:
    done = cargo(CRATE, "+nightly", "miri", "test", "--locked", "memory")
    assert done.returncode == 0, done.stdout + done.stderr
    planted = cargo(CRATE, "+nightly", "miri", "test", "--locked", "memory", "--", "--ignored")
    assert planted.returncode != 0
    assert "Data race detected" in planted.stderr

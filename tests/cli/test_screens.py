"""The first screen of a run, and of `top`, in a real terminal of 80 x 24 and of 120 x 40."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.builders.hand_made import small_store
from tests.terminal import TMUX, terminal
from tests.waiting import wait_until

SIZES = pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
pytestmark = pytest.mark.skipif(TMUX is None, reason="no tmux here")

RUN = """
import sys
from dataclasses import replace
from commitlog.ingest.dashboard import Dashboard
from tests.ingest.test_display import FULL
display = Dashboard(sys.stdout)
cores = dict.fromkeys(("stages", "producers", "spark", "server", "job"), 12.34)
display.show(replace(FULL, phase="starting the streaming query", cpu_cores=cores))
input()
display.say("verdict      " + "exactly once " * 8)
display.close()
"""


@SIZES
def test_the_screen_of_a_run(width: int, height: int, tmp_path: Path) -> None:
    """Labels and words are whole, also in the lines of the report."""
    with terminal([sys.executable, "-c", RUN], width, height, tmp_path) as screen:
        wait_until(lambda: "had died" in "".join(screen()), "the whole screen")
        lines = screen()
    assert "…" not in "".join(lines)
    for label in ("pool    4 of 6 write", "send →  flushed p50", "Spark   batch 7", "cores   stages"):
        assert any(line.startswith(label) for line in lines), lines
    assert {"Ctrl-C", "memory", "90", "MB", "Busiest"} <= {*" ".join(lines).split()}


@pytest.mark.nightly
@SIZES
def test_the_screen_of_top(width: int, height: int, tmp_path: Path) -> None:
    """What is wrong can be read to its end, and the path of a store is cut in its middle."""
    path = small_store(tmp_path / ("a/very/long/path/" * 6) / "store").path
    with terminal([sys.executable, "-m", "commitlog.cli", "top", path], width, height, tmp_path) as screen:
        wait_until(lambda: "q quit" in "".join(screen()), "the whole screen")
        lines = screen()
    head, text = lines[0], " ".join(" ".join(lines).split())
    assert head.endswith("/store")
    assert "…" in head
    assert "commitlog run" in text[text.index("! ") :]
    assert not any(line.endswith("…") for line in lines)

"""The demo: what is killed goes on, the verdict is right, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import commitlog
from commitlog.demo import scene as scene_module
from commitlog.demo import show as show_module
from commitlog.demo.notebook_file import notebook
from commitlog.demo.scene import SCHEMA, Scene, Sent, by_producer, sales, totals
from commitlog.demo.show import Demo
from commitlog.system.clock import SignalEvent
from tests.builders.played_java import play_java
from tests.children import in_child
from tests.command_line import run
from tests.keys_and_screen import terminal
from tests.waiting import wait_until

SPARK_SECONDS = 200.0


@pytest.fixture(scope="module", autouse=True)
def runtime_of_polars() -> None:
    """Polars keeps threads and descriptors of its first query."""
    pl.DataFrame({"a": [1]}).group_by("a").agg(pl.len())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the demo's temporary files. It is empty afterwards, but for Java's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert [
        path.name for path in folder.iterdir() if path.suffix != ".sock" and not path.name.startswith("hsperf")
    ] == []


@pytest.mark.lasting
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("quick_java")
def test_kills_on_a_terminal(temporary: Path, tmp_path: Path) -> None:
    """A stage and a producer go on, Polars and Spark count the same, and the given store stays."""
    store = tmp_path / "store"
    with terminal("demo", "--store", store, "--seconds", "10m", columns=160) as screen:
        screen.see("rows accepted")
        screen.press("c")
        screen.see("killed the committer")
        screen.press("2")
        screen.see("nothing is lost")
        screen.see("rows/s, ", patience=SPARK_SECONDS)
        screen.press("q")
        assert screen.end(patience=SPARK_SECONDS) == 0, screen.shown.decode()
        said = screen.shown.decode()
    assert "2 kills; " in said
    assert "each row is there exactly once" in said
    assert f"the store stays: commitlog cat {store} --rows" in said
    rows = commitlog.read(store, "sales").count()
    assert f"the log has {rows:,}, Spark has read {rows:,}" in " ".join(said.split())
    run("destroy", store, "--yes")


@contextmanager
def plain_demo() -> Iterator[subprocess.Popen[str]]:
    """The demo without a terminal: it prints lines."""
    command = [sys.executable, "-P", "-m", "commitlog.cli", "demo", "--seconds", "10m"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.nightly
def test_ctrl_c_before_spark_has_started(temporary: Path) -> None:
    """It ends well at once, and its store is gone."""
    with plain_demo() as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    assert "rows accepted; Spark starts" in line
    assert (process.returncode, errors) == (0, "")
    assert said.splitlines()[-1] == "each row is there exactly once"
    assert "Spark has read 0: it had not started yet" in said


@pytest.mark.nightly
def test_spark_that_does_not_start(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes on. The end of Spark's log is shown, since the log goes with the folder."""
    play_java(tmp_path, monkeypatch, "echo 'no room for a heap' >&2; exit 1")
    with plain_demo() as process:
        assert process.stdout is not None
        while "Spark has failed: " not in (line := process.stdout.readline()):
            assert line, "it has ended"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (1, "")
    assert "each row is there exactly once\nSpark has not read all of them; the end of its log:\n" in said
    assert "no room for a heap" in said


@pytest.mark.parametrize(
    ("sent", "accepted", "killed", "fits"),
    [
        (Sent(40, 40, 40), 40, False, True),
        (Sent(40, 40, 40), 40, True, True),
        (Sent(60, 60, 60), 40, True, True),  # accepted in the moment of the kill
        (Sent(60, 60, 60), 40, False, False),
        (Sent(20, 20, 20), 40, True, False),
        (Sent(41, 40, 40), 40, True, False),  # one is there twice
        (Sent(40, 40, 41), 40, True, False),  # one is missing in the middle
    ],
)
def test_what_is_lost_or_double(sent: Sent, accepted: int, killed: bool, fits: bool) -> None:
    assert sent.fits(accepted, killed=killed) == fits


def test_a_lost_row_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kill is told, and a row that the log lacks at the end makes the verdict bad."""
    with Scene(tmp_path / "store", tmp_path) as scene:
        wait_until(lambda: all(one.accepted for one in scene.producers), "rows of each producer")
        first = scene.producers[0]
        scene.kill_producer(0)
        scene.kill_stage("flusher")

        def told() -> bool:
            scene.look(by_producer(sales(scene.path)))
            return len(scene.events) == 2

        wait_until(told, "what became of the two")
        assert any(event.startswith("killed the flusher (pid ") for event in scene.events)
        assert any(f"killed producer 1 (pid {first.process.pid})" in event for event in scene.events)
        assert scene.is_good
        wait_until(lambda: scene.producers[0].accepted, "rows of the one in its place")
        assert [*sorted(scene.finish())] == [1, 2, 3, 4]
        assert scene.is_good
        whole = sales(scene.path)
        assert sum(rows for rows, _ in totals(whole).values()) == len(whole) >= scene.accepted
        for lost in (first, scene.producers[0], scene.producers[2]):
            scene.is_good = True
            rows = whole.filter((pl.col("producer") != lost.number) | (pl.col("sequence") != 5))
            monkeypatch.setattr(scene_module, "sales", lambda path, rows=rows: rows)
            scene.finish()
            assert not scene.is_good
            assert f"producer {lost.number}: " in scene.events[-1]


@pytest.mark.nightly
def test_the_screen_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 × 24: no line is wider, and of the events the last ones are shown, as a whole."""
    play_java(tmp_path, monkeypatch, "exec cat")  # it ends as Java does, when its standard input ends
    with Demo(tmp_path / "store", tmp_path, SignalEvent(), lambda _: "q") as demo:
        demo.run(60)
        demo.scene.events += [f"event {number} " + "word " * 20 for number in range(9)]
        lines = demo.screen("1 s of 120", 80, 24)
        assert len(lines) <= 23
        assert max(map(len, lines)) < 80
        shown = [line for line in lines if line.startswith("• ")]
        assert shown[-1].startswith("• event 8 word")
        assert len(lines) - lines.index(shown[0]) == 2 * len(shown) > 2


@pytest.mark.nightly
def test_ctrl_c_while_polars_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars has a handler of its own meanwhile, and raises KeyboardInterrupt."""

    def interrupted(_rows: pl.DataFrame) -> Any:
        raise KeyboardInterrupt

    play_java(tmp_path, monkeypatch, "exec cat")
    ended = SignalEvent()
    with Demo(tmp_path / "store", tmp_path, ended, lambda _: "") as demo:
        with monkeypatch.context() as patch:
            patch.setattr(show_module, "totals", interrupted)
            demo.run(600)
        assert ended.is_set()
        assert demo.judge()


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path where something is, a notebook that is there, and an environment without the extra."""
    there = tmp_path / "demo.ipynb"
    assert run("demo", "--notebook", there).stdout.decode().startswith(f"{there} is written")
    for words in (("--notebook", there), ("--store", there)):
        refused = run("demo", *words)
        assert refused.returncode == 1
        assert refused.stderr.decode().startswith(f"commitlog: {there}")
        assert "[StoreRefused]" in refused.stderr.decode()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "polars" else find(name))
    refused = run("demo")
    assert "the demo needs polars: `pip install polars`" in refused.stderr.decode()


# ---- the notebook ------------------------------------------------------------------------------

RUNNER = """
import sys
class Shown:
    def update(self, table): print(table)
def display(table, display_id): return Shown()
names = {"display": display}
for cell in sys.stdin.read().split("\\0"):
    exec(compile(cell, "cell", "exec"), names)
"""


def cells(kind: str) -> list[str]:
    return [cell["source"] for cell in notebook()["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_one_of_jupyter(tmp_path: Path) -> None:
    """Texts between the code, and nothing of the page that still has to be filled in."""
    file = tmp_path / "demo.ipynb"
    run("demo", "--notebook", file)
    written = json.loads(file.read_bytes())
    assert written == notebook()
    assert (written["nbformat"], written["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in written["cells"]}) == len(written["cells"]) > 12
    assert cells("markdown")[0].startswith("# commitlog in two minutes")
    assert SCHEMA in cells("code")[0]
    assert not any("```" in source or "$" in source for source in [*cells("code"), *cells("markdown")])


def test_a_notebook_that_can_not_be_written(tmp_path: Path) -> None:
    """There is no directory for it, or no room: nothing stays, and the error names the file."""
    file = tmp_path / "demo.ipynb"

    def without_room() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return run("demo", "--notebook", file).stderr.decode()

    assert in_child(without_room).startswith(f"commitlog: {file}: File too large; give a file in a directory")
    assert not file.exists()
    refused = run("demo", "--notebook", tmp_path / "missing" / "demo.ipynb")
    assert refused.returncode == 1
    assert b"missing/demo.ipynb: No such file or directory; give a file" in refused.stderr


def run_cells(code: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", RUNNER]
    return subprocess.run(command, input="\0".join(code), capture_output=True, text=True, timeout=SPARK_SECONDS)


@pytest.mark.nightly
def test_a_notebook_that_is_left_early_leaves_nothing(temporary: Path) -> None:
    """No store, no shared memory and no producer, though its last cells have not run."""
    *before, table = cells("code")[:3]
    assert "ended.wait(1)" in table
    without_rests = table.replace("ended.wait(1)", "ended.wait(0)")  # so it reads when the store goes
    done = run_cells([*before, without_rests, "raise SystemExit('enough')"])
    assert done.stderr == "enough\n"


@pytest.mark.nightly
@pytest.mark.lasting
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("quick_java")
def test_the_notebook_runs(temporary: Path) -> None:
    """Cell by cell, as Jupyter runs them, with its `display`."""
    done = run_cells(cells("code"))
    assert done.returncode == 0, done.stderr
    assert "nothing is lost" in done.stdout
    assert "StopReport(drained=True, kept=())" in done.stdout

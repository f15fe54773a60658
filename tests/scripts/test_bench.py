"""scripts/bench: every part runs, its JSON is as report.py says, and missing rivals are named."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from scripts.benchmarks.__main__ import PARTS, ROOT, main
from scripts.benchmarks.harness import Bench, Metric
from scripts.benchmarks.settings import Settings
from tests.waiting import wait_until

ABSENT = ("Kafka", "LMDB", "RocketMQ", "sixteen")  # what a quick run without other packages can't judge

ROWS = {
    "recover": {"full scan, 100 B", "full scan, 10 B to 4 KB", "two lanes side by side"},
    "stages": {"committer, from send to committed", "kill -9 of a stage, until data moves again"},
    "spark": {"stream, 50 messages/s, commitlog's session"},
}
"""Comparisons that every run has, whatever else is installed."""


def bench(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/bench with an empty cache of the user, where the jars of others would be.

    So it runs the same on every machine.
    """
    command = [sys.executable, "-P", "-m", "scripts.benchmarks", "--directory", str(tmp_path), *words]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"  # quicker to start
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs(part: str, tmp_path: Path) -> None:
    """Tiny: every contestant takes its turns, every target finds its numbers."""
    report, pictures = tmp_path / "report.json", tmp_path / "pictures"
    words = ["--quick", "--scale", "0.001", "--repeats", "1", "--json", str(report), "--plot", str(pictures)]
    done = bench(tmp_path, part, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = orjson.loads(report.read_bytes())
    assert (found["format"], found["quick"], found["repeats"], list(found["parts"])) == (1, True, 1, [part])
    assert found["machine"].keys() >= {"cores", "kernel", "python", "file_system", "load", "versions"}
    groups = found["parts"][part]["groups"]
    assert {group["name"] for group in groups} >= ROWS.get(part, set())
    assert groups
    for group in groups:
        check_group(group)
    for skipped in found["parts"][part]["skipped"]:
        assert f"skipped: {part}: {skipped['name']}: {skipped['reason']}" in done.stdout
    missing = [target["what"] for target in found["targets"] if target["found"] is None]
    assert not [what for what in missing if not any(name in what for name in ABSENT)]
    assert (pictures / f"{part}.png").read_bytes().startswith(b"\x89PNG")
    left = {path.name for path in tmp_path.iterdir()} - {"cache", "report.json", "pictures"}
    assert not left
    if part == "append":
        has_every_way_to_send_a_batch(groups)


def has_every_way_to_send_a_batch(groups: list[dict[str, Any]]) -> None:
    by_name = {group["name"]: group for group in groups}
    for size in (100, 1024):
        names = {contestant["name"] for contestant in by_name[f"send_batch, {size} B"]["contestants"]}
        for kind in ("", "numpy, ", "Arrow, "):
            for batch in ("100", "1,000"):
                assert names >= {f"{kind}batches of {batch}", f"{kind}batches of {batch}, body CRC only"}


def check_group(group: dict[str, Any]) -> None:
    names = [contestant["name"] for contestant in group["contestants"]]
    assert group["floor"] == names[0]
    assert len(names) > 1
    for contestant in group["contestants"]:
        assert len(contestant["samples"]) == 1
        assert contestant["measured"]
        for summary in contestant["measured"].values():
            assert summary["min"] <= summary["median"] <= summary["max"]


def test_contestants_take_turns_and_a_broken_one_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns: list[str] = []

    def turn(name: str, value: float) -> dict[str, float]:
        turns.append(name)
        if name == "broken":
            raise OSError("no disk")
        return {"time": value * len(turns)}

    shown: list[str] = []
    one = Bench("test", Settings(tmp_path, repeats=2), lambda part, group: shown.append(group.name))
    with one.clock() as part:
        contestants = {name: lambda name=name: turn(name, 2.0) for name in ("floor", "broken", "ours")}
        group = one.compare("a group", (Metric("time", "s"),), "floor", contestants)
    assert turns == ["floor", "broken", "ours", "floor", "ours", "floor", "ours"]
    assert part.failed == {"broken (a group)": "OSError: no disk"}
    assert group.values("floor", "time") == [8.0, 12.0]
    assert group.values("ours", "time") == [10.0, 14.0]
    summary = group.summary("ours", "time")
    assert summary is not None
    assert (summary["min"], summary["median"], summary["max"]) == (10.0, 12.0, 14.0)
    assert summary["ratio"] == 1.2
    assert (summary["ratio_min"], summary["ratio_max"]) == (14 / 12, 10 / 8)
    assert shown == ["a group"]
    assert "no disk" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "no part nothing"),
        (["append", "--against", "mysql"], "there are"),
        (["append", "--repeats", "0"], "--repeats"),
        (["append", "--markdown", "FILE"], "--markdown wants a full run"),
        (["--from", "nowhere.json"], "--from nowhere.json"),
        (["dispatch", "--quick", "--json", "/dev/null/report.json"], "--json /dev/null/report.json"),
        (["dispatch", "--quick", "--json", "/dev"], "--json /dev"),
        (["dispatch", "--quick", "--plot", "/dev/null"], "--plot /dev/null"),
        (["--from", "nowhere.json", "--plot", "/dev/null"], "--plot /dev/null"),
        (["dispatch", "--quick", "--directory", "/dev/null/here"], "--directory /dev/null/here"),
        (["dispatch", "--quick", "--scale", "nan"], "--scale"),
        (["dispatch", "--quick", "--scale", "inf"], "--scale"),
    ],
)
def test_a_wrong_word_is_answered_in_a_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--directory", str(tmp_path), *words])
    code = ended.value.code
    said = capsys.readouterr().err if code == 2 else str(code)  # a text is what Python prints, and ends with 1
    assert says in said.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_it_in_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    """A terminal interrupts everything that runs in it, while the stage alone is just being filled.

    Its segments are small, so that they fit into any shared memory.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "scripts.benchmarks",
        "dispatch",
        "--directory",
        str(tmp_path),
        "--scale",
        "0.4",
    ]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: list(tmp_path.glob("*/*/store/lanes")))
    os.killpg(running.pid, signal.SIGINT)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    assert said.splitlines()[-1] == "bench: interrupted; nothing is left behind"
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_benchmarks_md_is_made_of_its_run(tmp_path: Path) -> None:
    """The text between the markers comes from the JSON file beside the pictures.

    The prose stays.
    """
    results, copy = tmp_path / "scripts/benchmarks/results", tmp_path / "BENCHMARKS.md"
    shutil.copytree(ROOT / "scripts/benchmarks/results", results)
    written = (ROOT / "BENCHMARKS.md").read_text()
    copy.write_text(re.sub(r"(<!-- bench: \w+ -->\n).*?(<!-- end -->)", r"\1\2", written, flags=re.DOTALL))
    assert len(copy.read_text()) < len(written) / 2
    done = bench(tmp_path, "--from", str(results / "bench.json"), "--markdown", str(copy))
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == written
    for picture in re.findall(r"!\[.*\]\((.*)\)", written):
        assert (ROOT / picture).is_file()


def test_a_file_without_markers_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine.md"
    mine.write_text("my own words\n")
    done = bench(tmp_path, "--from", str(ROOT / "scripts/benchmarks/results/bench.json"), "--markdown", str(mine))
    assert done.returncode == 1
    assert "mine.md has no lines <!-- bench: parts -->" in done.stderr
    assert mine.read_text() == "my own words\n"


def test_a_quick_run_fills_nothing(tmp_path: Path) -> None:
    run, copy = tmp_path / "quick.json", tmp_path / "mine.md"
    found = orjson.loads((ROOT / "scripts/benchmarks/results/bench.json").read_bytes())
    run.write_bytes(orjson.dumps({**found, "quick": True}))
    done = bench(tmp_path, "--from", str(run), "--markdown", str(copy))
    assert done.returncode == 1
    assert "quick.json is of a quick run" in done.stderr
    assert not copy.exists()

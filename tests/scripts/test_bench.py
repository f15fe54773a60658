"""scripts/bench: every part runs, its JSON is as report.py says, and missing rivals are named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from scripts.benchmarks.__main__ import PARTS, ROOT, main
from scripts.benchmarks.harness import Bench, Metric
from scripts.benchmarks.report import to_json
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
    assert (found["format"], found["quick"], found["repeats"], list(found["parts"])) == (2, True, 1, [part])
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


def written(path: Path, **changed: object) -> dict[str, Any]:
    """Writes the JSON file of a run of one part, in which one target was met and one missed."""
    part = Bench("append", Settings(path.parent, repeats=1), lambda part, group: None)
    times = {"os.write, the record": 1e-6, "send": 0.25e-6, "send, with key": 0.75e-6}
    metrics = (Metric("wall", "s"), Metric("rate", "messages/s", "higher"))
    with part.clock() as made:
        turns = {name: lambda time=time: {"wall": time, "rate": 1 / time} for name, time in times.items()}
        part.compare("send, 100 B", metrics, next(iter(times)), turns)
    versions = {"commitlog": "0.1.0"}
    machine = {"cores": 3, "processor": "a", "memory_bytes": 4 << 30, "kernel": "6", "python": "3.11", "load": [0.5]}
    here = machine | {"file_system": "ext4", "versions": versions}
    found = to_json(Settings(path.parent, repeats=1), here, [made]) | changed
    path.write_bytes(orjson.dumps(found))
    return found


def test_a_page_is_filled_from_a_run(tmp_path: Path) -> None:
    """The text between the markers comes from the run, and the prose stays."""
    run, page = tmp_path / "run.json", tmp_path / "page.md"
    found = written(run)
    page.write_text((ROOT / "BENCHMARKS.md").read_text())
    done = bench(tmp_path, "--from", str(run), "--markdown", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert f"of {found['finished'][:10]}: `scripts/bench all`" in text
    assert "3 cores (a), 4 GiB, Linux 6, Python 3.11, files on ext4; commitlog 0.1.0." in text
    assert "| `send` of 100 B, of the time of an `os.write` of the record | 0.25 | ≤ 0.5 |" in text
    assert "| append | 1 of 2 | send with a key, by os.write: 0.75, wanted ≤ 0.7 |" in text
    marked = re.compile(r"(<!-- bench: \w+ -->\n).*?(<!-- end -->)", flags=re.DOTALL)
    assert marked.sub(r"\1\2", text) == marked.sub(r"\1\2", (ROOT / "BENCHMARKS.md").read_text())


def test_a_file_without_markers_is_left_alone(tmp_path: Path) -> None:
    run, mine = tmp_path / "run.json", tmp_path / "mine.md"
    written(run)
    mine.write_text("my own words\n")
    done = bench(tmp_path, "--from", str(run), "--markdown", str(mine))
    assert done.returncode == 1
    assert "mine.md has no lines <!-- bench: results -->" in done.stderr
    assert mine.read_text() == "my own words\n"


def test_a_quick_run_fills_nothing(tmp_path: Path) -> None:
    run, copy = tmp_path / "quick.json", tmp_path / "mine.md"
    written(run, quick=True)
    done = bench(tmp_path, "--from", str(run), "--markdown", str(copy))
    assert done.returncode == 1
    assert "quick.json is of a quick run" in done.stderr
    assert not copy.exists()

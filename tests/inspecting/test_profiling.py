"""commitlog profile: stacks into shares and pictures, a stage alone, and errors of one line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from commitlog import Store
from commitlog.cli.profile import describe
from commitlog.inspecting import profiling
from commitlog.inspecting.flame_graph import flame_graph
from commitlog.inspecting.profiling import Clocks, Profile, ProfileRefused
from tests.command_line import run
from tests.waiting import wait_until

RAW = """\
run (a.py:1);work (a.py:2);pwrite (b.py:3) 30
run (a.py:1);work (a.py:9) 10
run (a.py:1);_poll (commitlog/stages/base_stage.py:4) 60
py-spy says something else
"""


def made() -> Profile:
    return Profile("committer", "alone", Clocks(2.0, 0.5, 1.0, 7), profiling.parse_stacks(RAW), {"rounds": 3})


def test_shares_are_of_what_was_not_asleep() -> None:
    assert made().functions() == [("pwrite (b.py)", 0.75), ("work (a.py)", 0.25)]


def test_the_table_says_where_the_time_went() -> None:
    text = "\n".join(describe(made()))
    for words in ("Python and C", "25.0%", "50.0%", "pwrite (b.py)", "75.0%", "rounds"):
        assert words in text


def test_the_picture_is_good_xml_with_a_box_a_frame() -> None:
    found = made()
    picture = ElementTree.fromstring(flame_graph("<title> & more", "", found.stacks, found.asleep))
    titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "run (a.py:1): 100.0%" in titles
    assert "pwrite (b.py:3): 30.0%" in titles
    assert len(titles) == 5


def test_an_empty_profile_has_a_picture_too() -> None:
    ElementTree.fromstring(flame_graph("nothing", "", []))


def test_no_profiler_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling, "_tool", lambda name: None)
    with pytest.raises(ProfileRefused, match=r"py-spy is not installed: `pip install py-spy` \(.*\[profile\]\)$"):
        profiling.profile_alone("committer", 1, tmp_path / "store", tmp_path / "draft", 1 << 16, 100)


def test_no_ptrace_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "py-spy"
    refusing.write_text("#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions'\nexit 1\n")
    refusing.chmod(0o700)
    monkeypatch.setattr(profiling, "_tool", lambda name: str(refusing))
    with (
        pytest.raises(ProfileRefused, match=r"ptrace of process \d+ is not allowed"),
        profiling.sampling(os.getpid(), 1, tmp_path / "draft"),
    ):
        pass


def play_profiler(directory: Path, monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    """Puts a program in py-spy's place that sees the same stack whatever it looks at."""
    playing = directory / "py-spy"
    playing.write_text(f"#!/bin/sh\nfor last do :; done\nsleep 1\necho '{stack}' >\"$last\"\n")
    playing.chmod(0o700)
    monkeypatch.setattr(profiling, "_tool", lambda name: str(playing) if name == "py-spy" else None)


@pytest.mark.usefixtures("shm_root")
def test_a_stage_of_a_running_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A store without replication has no ha_service that runs; nor can that one be run alone."""
    play_profiler(tmp_path, monkeypatch, "main (a.py:1);work (b.py:2) 5")
    store, out = tmp_path / "store", tmp_path / "out"
    with Store.open(store):
        found = run("profile", "flusher", "--store", str(store), "--seconds", "1", "--out", str(out))
        not_there = run("profile", "ha_service", "--store", str(store), "--out", str(out))
    assert (found.returncode, found.stderr) == (0, b"")
    assert re.search(rb"^flusher, .*store, process \d+$", found.stdout, re.MULTILINE)
    assert re.search(rb"^  work \(b\.py\) +100\.0%$", found.stdout, re.MULTILINE)
    assert re.search(rb"^  wakeups ", found.stdout, re.MULTILINE)
    ElementTree.fromstring((out / "profile-flusher.svg").read_text())
    assert not_there.returncode == 1
    assert b"store: its ha_service does not run; `commitlog stat` shows" in not_there.stderr
    assert run("profile", "ha_service").returncode == 2
    assert {path.name for path in out.iterdir()} == {"profile-flusher.svg"}


@pytest.mark.nightly
def test_a_stage_alone_with_a_profiler_that_sees_one_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real stage works on its prepared input, and only py-spy is a fake.

    Not every machine allows py-spy.
    """
    inner = ("Alone._rounds (commitlog/stages/alone.py:1)", "write_once (commitlog/disk/file_channel.py:5)")
    play_profiler(tmp_path, monkeypatch, ";".join(("main (commitlog/stages/alone.py:9)", *inner)) + " 5")
    found = profiling.profile_alone("committer", 1, tmp_path / "store", tmp_path / "draft", 1 << 16, 100)
    assert found.counters["passes"] >= 1
    assert found.counters["bytes"] > 0
    assert found.clocks.wall > 0
    assert found.stacks == [(inner, 5)]
    assert {path.name for path in tmp_path.iterdir()} == {"py-spy"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--segment-bytes", "100"], "store.segment_bytes = 100"),
        (["--segment-bytes", "1048576", "--body-bytes", "9999999"], "MESSAGE_SIZE_EXCEEDED"),
        (["--body-bytes", "-1"], "--body-bytes"),
        (["--seconds", "inf"], "--seconds"),
        (["--out", "a-file"], "a-file"),
        (["--out", "a-file/below"], "a-file/below"),
    ],
)
def test_what_cannot_be_is_said_in_lines_and_leaves_nothing(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    player = tmp_path / "bin" / "py-spy"
    player.parent.mkdir()
    player.write_text("#!/bin/sh\nexit 1\n")
    player.chmod(0o700)
    monkeypatch.setenv("PATH", f"{player.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    done = run("profile", "committer", "--seconds", "1", *words)
    assert done.returncode in (1, 2)
    said = capfd.readouterr().err + done.stderr.decode()  # of the stage, which is a process, and of the command
    assert says in said
    assert "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"a-file", "bin"}


@pytest.mark.nightly
def test_ctrl_c_ends_a_stage_alone_without_a_word(tmp_path: Path) -> None:
    """A terminal interrupts all of its foreground processes.

    The stage must not end before it has cleaned up.
    """
    command = [sys.executable, "-m", "commitlog.cli", "profile", "committer", "--out", str(tmp_path)]
    command += ["--segment-bytes", "1048576"]
    player = tmp_path / "bin" / "py-spy"
    player.parent.mkdir()
    player.write_text("#!/bin/sh\nexec sleep 60\n")
    player.chmod(0o700)
    environment = {**os.environ, "PATH": f"{player.parent}{os.pathsep}{os.environ['PATH']}"}
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: (tmp_path / "profile-committer-store").exists())
    os.killpg(running.pid, signal.SIGINT)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    assert "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"bin"}

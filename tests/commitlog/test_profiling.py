"""commitlog profile: stacks into shares and pictures, a stage alone, and errors of one line."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import commitlog.profiling as profiling
from commitlog.cli.profile import describe
from commitlog.flame_graph import flame_graph
from commitlog.profiling import Clocks, Profile, ProfileRefused

RAW = """\
run (a.py:1);work (a.py:2);pwrite (b.py:3) 30
run (a.py:1);work (a.py:9) 10
run (a.py:1);_poll (stages/service_thread.py:4) 60
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
    with pytest.raises(ProfileRefused, match="py-spy is not installed"):
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


def test_a_stage_alone_with_a_profiler_that_sees_one_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real stage on its prepared input; only py-spy is played, since not every machine lets it in."""
    playing = tmp_path / "py-spy"
    stack = "main (stages/alone.py:9);Alone._rounds (stages/alone.py:1);write_once (commitlog/file_channel.py:5) 5"
    playing.write_text(f"#!/bin/sh\nfor last do :; done\nsleep 1\necho '{stack}' >\"$last\"\n")
    playing.chmod(0o700)
    monkeypatch.setattr(profiling, "_tool", lambda name: str(playing) if name == "py-spy" else None)
    found = profiling.profile_alone("committer", 1, tmp_path / "store", tmp_path / "draft", 1 << 16, 100)
    assert found.counters["passes"] >= 1
    assert found.counters["bytes"] > 0
    assert found.clocks.wall > 0
    assert found.stacks == [(("Alone._rounds (stages/alone.py:1)", "write_once (commitlog/file_channel.py:5)"), 5)]
    assert {path.name for path in tmp_path.iterdir()} == {"py-spy"}

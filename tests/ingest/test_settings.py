"""What can't work is refused before anything is made."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import IllegalArgument, IngestError
from commitlog.ingest.run_settings import Places, check_packages, choose


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Defaults are made in the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults(here: Path) -> None:
    """A minute of two producers at 2,000 messages a second each, in a new dated directory."""
    settings = choose(inputs=[])
    assert (settings.seconds, settings.producers, settings.rate, settings.live) == (60, 2, 2000, True)
    assert settings.out.parent.parent == here / "commitlog-runs"
    assert settings.report == settings.out / "report.json"
    assert settings.picture == settings.out / "report.png"
    assert settings.page == settings.out / "report.html"
    assert os.listdir(here) == []


def test_open_descriptors_have_names_for_other_processes() -> None:
    """A producer process would find its own under them: standard input would be empty."""
    read, write = os.pipe()
    try:
        settings = choose(inputs=["/dev/stdin", f"/dev/fd/{read}"])
    finally:
        os.close(read)
        os.close(write)
    assert settings.inputs == ("-", f"/proc/{os.getpid()}/fd/{read}")
    with pytest.raises(IllegalArgument, match="stdin can be read once only"):
        choose(inputs=["-", "/proc/self/fd/0"])


def test_two_names_of_one_file_are_not_tailed(here: Path) -> None:
    """Its lines would come twice. To read it twice to its end may be meant."""
    (here / "a").write_text("")
    (here / "b").symlink_to(here / "a")
    with pytest.raises(IngestError, match="--input b: is the same file as a; give one of them"):
        choose(inputs=["a", "b"], follow=True)
    assert len(choose(inputs=["a", "b"]).inputs) == 2


def test_input_is_read_to_its_end_by_default(here: Path) -> None:
    """As fast as it goes, no time limit, and no more producers than files."""
    (here / "a").write_text("")
    settings = choose(inputs=["a"], producers=4)
    assert (settings.seconds, settings.producers, settings.rate) == (None, 1, 0)
    assert settings.inputs == (str(here / "a"),)


def test_two_runs_in_one_second_get_two_directories() -> None:
    """The second does not write over the first."""
    first = choose(inputs=[])
    Places(first).make()
    assert choose(inputs=[]).out != first.out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"producers": 0}, "--producers 0"),
        ({"rate": -1}, "--rate -1"),
        ({"seconds": 0}, "--seconds 0"),
        ({"seconds": float("nan")}, "--seconds nan"),
        ({"follow": True}, "--input FILE"),
        ({"inputs": ["missing"]}, "missing: No such file"),
        ({"inputs": ["."]}, "is a directory"),
        ({"inputs": ["-", "-"]}, "only|once"),
        ({"report": Path("r.png")}, r"name a \.json file"),
        ({"report": Path("r.html")}, r"name a \.json file"),
    ],
)
def test_refused_options(here: Path, options: dict[str, Any], named: str) -> None:
    """One line that names the option and the way out; nothing is made."""
    with pytest.raises((IllegalArgument, IngestError), match=named):
        choose(**{"inputs": [], **options})
    assert os.listdir(here) == []


@pytest.mark.parametrize("mark", ["batch=3/part.parquet", "_checkpoint/metadata", "spark.log"])
def test_an_out_that_holds_another_run_is_refused(here: Path, mark: str) -> None:
    """Any trace of a run will do, and it is left as it was."""
    (here / "out" / mark).parent.mkdir(parents=True)
    (here / "out" / mark).write_text("theirs")
    settings = choose(inputs=[], out=Path("out"), store=Path("new/store"))
    with pytest.raises(IngestError, match="holds another run"):
        Places(settings).make()
    assert (here / "out" / mark).read_text() == "theirs"
    assert not (here / "new").exists()


def test_directories_that_were_made_for_nothing_go_again(here: Path) -> None:
    """`undo` removes what it made, and no more."""
    (here / "mine").mkdir()
    places = Places(choose(inputs=[], out=Path("mine/a/out"), store=Path("mine/b/store"), report=Path("c/r.json")))
    places.make()
    assert (here / "mine/a/out").is_dir()
    places.undo()
    assert os.listdir(here) == ["mine"]
    assert os.listdir(here / "mine") == []


def test_a_file_in_the_way(here: Path) -> None:
    """An out below a file, or that is one."""
    (here / "file").write_text("")
    for out in ("file", "file/out"):
        with pytest.raises(IngestError, match="--out"):
            Places(choose(inputs=[], out=Path(out), store=Path("s/store"))).make()
    assert os.listdir(here) == ["file"]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that has it, before anything starts."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("psutil", "rich") else find(name))
    with pytest.raises(IngestError, match=r"^psutil, rich not installed: `pip install psutil rich` \(.*\[ingest\]\)$"):
        check_packages()

"""Lines out of bytes, however they are cut; files that can't be read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import MessageTooLarge
from commitlog.text.lines import LineSplitter, why_unreadable, wrapped


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"x", b"\n"))))
def test_the_lines_do_not_depend_on_the_cuts(chunks: list[bytes]) -> None:
    splitter = LineSplitter("input", 1000)
    found = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()
    whole = b"".join(chunks)
    assert found == (whole.removesuffix(b"\n").split(b"\n") if whole else [])
    assert splitter.end() == []


def test_a_line_that_never_ends() -> None:
    splitter = LineSplitter("input", 10)
    assert splitter.feed(b"one\ntwo\n0123456789") == [b"one", b"two"]
    with pytest.raises(MessageTooLarge, match=r"MESSAGE_SIZE_EXCEEDED: input: line 3 is longer than 10 bytes"):
        splitter.feed(b"x")


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"x", b"\n"))))
def test_lines_that_are_too_long_are_passed_over(chunks: list[bytes]) -> None:
    """The same ones wherever the input is cut, and each is counted."""
    splitter = LineSplitter("input", 7, skips=True)
    found = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()
    whole = b"".join(chunks)
    lines = whole.removesuffix(b"\n").split(b"\n") if whole else []
    assert found == [line for line in lines if len(line) <= 7]
    assert splitter.skipped == len(lines) - len(found)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in (why_unreadable(str(tmp_path / "missing")) or "")
    assert f"is a directory; name the files in it ({tmp_path}/*)" == why_unreadable(f"{tmp_path}/")
    assert why_unreadable(__file__) is None


def test_a_pipe_is_left_to_its_writer(tmp_path: Path) -> None:
    """Who waits for a reader is not woken by a look, or it would find the pipe closed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"line\n"))
    writer.start()
    assert why_unreadable(str(pipe)) is None
    assert pipe.read_bytes() == b"line\n"
    writer.join()


def test_a_path_that_fits_only_without_an_indent() -> None:
    """The main job's last lines are paths behind labels. A terminal of 80 columns broke them."""
    path, longer = "/" + 70 * "x", "/" + 90 * "y"
    assert wrapped(f"table        {path}", 80, " " * 13) == ["table", path]
    assert wrapped(f"page         {longer} is it", 80, " " * 13) == ["page", longer, " " * 13 + "is it"]
    assert wrapped("picture      /short", 80, " " * 13) == ["picture      /short"]

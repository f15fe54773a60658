"""Paths that can't be used: one line says why, also where the system says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders.hand_made import HandMadeStore, small_store
from tests.command_line import run


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    return small_store(tmp_path / "store", rows=2)


@pytest.mark.parametrize(
    "words",
    [
        ("logs", "NAME"),
        ("destroy", "NAME"),
        ("bundle", "STORE", "NAME"),
        ("token", "list", "NAME"),
        ("token", "add", "NAME", "me"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long(store: HandMadeStore, words: tuple[str, ...]) -> None:
    places = {"NAME": store.path.parent / ("x" * 300), "STORE": store.path}
    done = run(*(places.get(word, word) for word in words))
    assert done.returncode == 1
    assert b": File name too long; " in done.stderr


def test_a_directory_that_may_not_be_read(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says so itself, with an error's name, not that it was called wrongly."""
    monkeypatch.setattr(os, "access", lambda *_, **_more: False)  # root may read everything
    for words in (("health",), ("health", "--json"), ("readers",), ("verify",), ("logs",)):
        done = run(words[0], store.path, *words[1:])
        assert b"Usage" not in done.stderr, done.stderr


def test_spaces_of_a_path_stay(tmp_path: Path) -> None:
    """What is to be pasted names the path that was given."""
    done = run("stat", tmp_path / "my  store")
    assert f"commitlog run '{tmp_path}/my  store'".encode() in done.stderr


@pytest.mark.parametrize("command", ["serve", "metrics", "ui"])
def test_stores_of_the_variable(tmp_path: Path, command: str) -> None:
    """Commands that take several stores part them by a colon, and by nothing else."""
    done = run(command, COMMITLOG_STORE=f"{tmp_path}/my store:{tmp_path}/other")
    assert f"{tmp_path}/my store: there is no store here".encode() in done.stderr


def test_what_is_in_the_place_of_a_file_of_tokens(tmp_path: Path) -> None:
    """`add` does not say that `add` makes one."""
    (tmp_path / "text").write_text("hello\n")
    for place, why in ((tmp_path, "Is a directory; "), (tmp_path / "text", "not a file of tokens (")):
        done = run("token", "add", place, "me")
        assert done.returncode == 1
        assert why.encode() in done.stderr
        assert b"makes one" not in done.stderr


@pytest.mark.parametrize("command", ["stop", "metrics"])
def test_a_url_in_the_place_of_a_directory(command: str) -> None:
    """It is shown as it was given, and nobody is told to make a store of this name."""
    done = run(command, "commitlog+tls://host:4433/events")
    assert done.returncode == 2
    assert b"commitlog: commitlog+tls://host:4433/events: this takes a directory" in done.stderr

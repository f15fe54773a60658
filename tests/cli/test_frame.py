"""What all commands have in common: groups, help, examples, completion, STORE from a variable."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from commitlog.cli.app import COMMANDS, GROUPS, app
from tests.builders.hand_made import HandMadeStore
from tests.command_line import run

WIDTH = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}


def help_of(*words: str) -> list[str]:
    done = CliRunner().invoke(app, [*words, "--help"], env=WIDTH)
    assert done.exit_code == 0
    return done.output.splitlines()


def examples(command: str) -> list[str]:
    """The lines of the indented block of a command's help."""
    text = help_of(command)
    end = next(number for number, line in enumerate(text) if line in ("Options:", "Arguments:"))
    return [line.strip() for line in text[:end] if line.startswith("      ")]


def test_help_has_every_command_in_its_group_in_one_line() -> None:
    """So nothing is cut off at 80 columns."""
    lines = help_of()
    assert max(map(len, lines)) <= 80
    for group, names in GROUPS.items():
        at = lines.index(f"{group}:")
        for number, name in enumerate(names, start=1):
            assert re.fullmatch(rf"  {name} +[A-Z].*\.", lines[at + number])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_that_are_understood(command: str) -> None:
    assert max(map(len, help_of(command))) <= 80
    group = typer.main.get_command(app)
    context = group.make_context("commitlog", [command], resilient_parsing=True)
    found = [part.strip() for line in examples(command) for part in line.split("|") if "commitlog" in part]
    assert any(line.startswith(f"commitlog {command}") for line in found)
    for line in found:
        words = shlex.split(line.partition(" > ")[0])[1:]
        group.get_command(context, words[0]).make_context(words[0], words[1:], parent=context)  # type: ignore[attr-defined]


def test_a_misspelt_command_is_named_with_the_one_that_is_meant() -> None:
    done = run("stats")
    assert done.returncode == 2
    assert b"there is no command 'stats'; did you mean stat?" in done.stderr


def test_a_topic_where_an_option_is_meant(store: HandMadeStore) -> None:
    done = run("cat", store.path, "orders")
    assert done.returncode == 2
    assert b"unexpected argument: orders; name a topic by --topic" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("top", "x", "--interval", "soon"), ("config", "nope"), ("top", "x", "--count", "a")]
)
def test_a_wrong_value_is_a_usage_error_in_plain_words(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Invalid value for" in done.output
    assert "Value error" not in done.output


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "commitlog", "--version"], capture_output=True, timeout=60)
    assert done.stdout == run("--version").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = CliRunner().invoke(app, [], prog_name="commitlog", env={"_COMMITLOG_COMPLETE": f"source_{shell}"})
    assert done.exit_code == 0
    assert "_COMMITLOG_COMPLETE=complete_" in done.output


def completed(line: str) -> list[str]:
    """What bash is told of a line that ends with the word to complete."""
    words = line.split(" ")
    environment = {"_COMMITLOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(app, [], prog_name="commitlog", env=environment).output.split()


def test_commands_options_and_words_are_completed() -> None:
    """Also those of a command whose module is imported only now."""
    assert completed("commitlog pro") == ["produce", "promote", "profile"]
    assert "--follow" in completed("commitlog cat --f")
    assert completed("commitlog config du") == ["durable"]


def test_the_store_may_come_from_the_variable(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    store.lane(0).append("orders", b"apple")
    store.publish()
    environment = {**os.environ, "COMMITLOG_STORE": str(store.path)}
    for command in ("cat", "stat", "topics", "readers", "verify", "dump"):
        done = CliRunner().invoke(app, [command], env=environment)
        assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, ["cat", str(tmp_path / "other")], env=environment).exit_code == 1


def test_names_in_the_store_are_completed(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store")
    for topic in ("orders", "others", "sales"):
        store.lane(0).append(topic, b"x")
    store.publish()
    assert completed(f"commitlog cat {store.path} --topic o") == ["orders", "others"]
    assert completed(f"commitlog cat {tmp_path}/nowhere --topic o") == []


def test_a_ctrl_c_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever command it comes."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("commitlog.cli.version.versions", interrupted)
    done = CliRunner().invoke(app, ["version"])
    assert (done.exit_code, done.output) == (130, "")

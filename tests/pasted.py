"""Whether a line that somebody is told to paste into a shell is a command at all."""

from __future__ import annotations

import re
import shlex

import typer
from typer.core import TyperGroup
from typer.main import get_command

from commitlog.cli.app import app
from commitlog.config import Config
from commitlog.config_file import load_config


def check_pasted(line: str) -> None:
    """Parses each command of ours in a line as the command line does, and runs none."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    parts = re.split(r" && |; ", line)
    assert any(part.startswith(("commitlog ", "mount -o remount,size=", "df -h ")) for part in parts), line
    for part in parts:
        program, name, *arguments = shlex.split(part)
        if program == "commitlog":
            command = group.get_command(typer.Context(group), name)
            assert command is not None, line
            command.make_context(name, arguments)


def check_knobs(text: str) -> None:
    """Each knob of a text has its section, and a value that a configuration may have."""
    for section, knob, value in re.findall(r"\[(\w+)\] (\w+) = (\d+)", text):
        assert hasattr(getattr(Config(), section), knob), text
        load_config({section: {knob: int(value)}})

"""Programs of the how-to pages.

A block of Python whose first line is a comment with a file's name is that file. All other blocks of
a page are one program.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")

PATIENT_SECONDS = 1_700.0
"""For a whole program of a user: where the load is 15, one with Spark takes minutes."""
patient = pytest.mark.timeout(PATIENT_SECONDS + 60)
"""For the tests of such programs. It is below `faulthandler_timeout` of pyproject.toml."""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in their order."""
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def files(page: Path) -> dict[str, str]:
    """The programs that have a name."""
    return {found[1]: text for text in blocks(page, "python") if (found := _FILE.match(text))}


def outputs(page: Path) -> dict[str, str]:
    """What the named programs print: the block of `text` that follows one, if there is one."""
    found, name = {}, ""
    for language, text in BLOCK.findall(page.read_text()):
        if language == "text":
            found[name] = text
        elif language == "python":
            name = named[1] if (named := _FILE.match(text)) else ""
    return {name: text for name, text in found.items() if name}


def examples(page: Path) -> tuple[str, str]:
    """The program of the blocks that have no name, and what it prints."""
    program, printed, is_file = [], [], False
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            is_file = _FILE.match(text) is not None
            program += [] if is_file else [text]
        elif language == "text":
            printed += [] if is_file else [text]
    return "\n".join(program), "".join(printed)


def write_files(page: Path, directory: Path) -> None:
    """Puts the programs that have a name into a directory."""
    for name, text in files(page).items():
        (directory / name).write_text(text)


def command(page: Path, beginning: str) -> list[str]:
    """The words of the one command line of a shell block that begins so."""
    lines = "".join(blocks(page, "sh")).splitlines()
    (line,) = (line for line in lines if line.startswith(beginning))
    return line.partition("#")[0].split()

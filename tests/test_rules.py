"""The sizes that CONTRIBUTING sets, and commands that can be pasted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.cli.app import COMMANDS
from tests.floors import ROOT

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
"""The lines of a function's statements: its signature and its docstring do not count."""
ROOMS = ("commitlog", "shm", "stages", "scripts", "tests")

LISTS = ("commitlog/errors.py",)
"""Files that list classes, each with its docstring. Such a file is as long as its list."""

pytestmark = pytest.mark.skipif(
    (ROOT / "PKG-INFO").exists(), reason="an sdist has copies in place of the links; the rules are held in a checkout"
)


def sources(ending: str) -> list[Path]:
    """The project's files of one language; the build of the native core is left out."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob(f"*{ending}") if "target" not in path.parts]
    return sorted(found)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(path: Path) -> Iterator[str]:
    """The functions of a file whose statements have too many lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if not statements:
                continue
            lines = (statements[-1].end_lineno or 0) - statements[0].lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{name(path)}:{node.lineno}: {node.name} has {lines} lines of statements"


def test_paths_in_commands_are_quoted() -> None:
    """A command of an error's text or a reason is pasted into a shell."""
    named = re.compile(rf"commitlog ({'|'.join(COMMANDS)}) \{{(?!for_shell\(|quoted\}}|action\}})")
    for path in (*(ROOT / "commitlog").rglob("*.py"), *(ROOT / "stages").rglob("*.py")):
        assert not [line for line in path.read_text().splitlines() if named.search(line)], path


def test_no_file_is_too_long() -> None:
    """A file of Python or Rust has at most 500 lines, but for lists."""
    lines = {name(path): len(path.read_text().splitlines()) for path in [*sources(".py"), *sources(".rs")]}
    assert len(lines) > 500, "the files were not found"
    too_long = {path: count for path, count in lines.items() if count > FILE_LINES_MAX and path not in LISTS}
    assert not too_long, "split them by what they know"


def test_no_function_is_too_long() -> None:
    """The statements of a function have at most 60 lines."""
    assert not [text for path in sources(".py") for text in long_functions(path)]

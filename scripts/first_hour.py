"""Runs docs/first-hour.md as its reader would, and draws what each step prints."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

PAGE = Path(__file__).parent.parent / "docs/first-hour.md"
ELSEWHERE = "# in a second terminal\n"
WIDTH = 84
_PART = re.compile(r"^```(sh|python)\n(.*?)^```|^!\[[^\]]*\]\((images/[^)]+)\)", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")


@dataclass
class Step:
    """Commands of the page, what they have printed, and the picture that shows it."""

    commands: list[str]
    picture: str
    printed: str


def steps(directory: Path) -> Iterator[Step]:
    """Runs the page in an empty directory, step by step.

    Raises CalledProcessError for a command that fails, other than by a signal or by what `health`
    says of a stopped store.
    """
    commands: list[str] = []
    printed = ""
    with _second_terminal(directory) as begin:
        for language, text, picture in _PART.findall(PAGE.read_text()):
            if language == "python":
                (directory / _FILE.match(text)[1]).write_text(text)  # type: ignore[index]  # each has a name
            elif text.startswith(ELSEWHERE):
                begin(text.removeprefix(ELSEWHERE).strip())
            elif text:
                commands = text.strip().splitlines()
                printed = "".join(f"$ {command}\n{_run(command, directory)}" for command in commands)
            elif commands:
                yield Step(commands, picture, printed)
                commands = []


def draw(step: Step, file: Path, title: str = "the first hour") -> None:
    """Draws a step as a terminal would show it."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), legacy_windows=False, highlight=False)
    for line in step.printed.rstrip("\n").split("\n"):
        console.print(Text(line, style="bold cyan" if line.startswith("$ ") else ""))
    picture = console.export_svg(title=title, unique_id=file.stem)
    picture = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    file.write_text(re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE))


def _environment() -> dict[str, str]:
    """That of a user: `commitlog` and `python` are those of this environment."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _run(command: str, directory: Path) -> str:
    """What a command prints. One that kills itself prints `Killed`, as a shell does."""
    done = subprocess.run(
        command, shell=True, cwd=directory, env=_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    is_killed = done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    says_stopped = command.startswith("commitlog health") and done.returncode == 2
    if done.returncode and not is_killed and not says_stopped:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    said = "Killed\n" if is_killed else done.stderr if "commitlog produce" in command else ""
    return (done.stdout + said).replace(f"{directory}/", "")


@contextmanager
def _second_terminal(directory: Path) -> Iterator[Callable[[str], None]]:
    """What begins a command in the background. It has ended, or is interrupted, at the end."""
    running: list[subprocess.Popen[str]] = []

    def begin(command: str) -> None:
        words = command.split()
        process = subprocess.Popen(words, cwd=directory, env=_environment(), stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout
        process.stdout.readline()  # it says that it runs

    try:
        yield begin
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

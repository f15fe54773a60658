"""A real terminal for tests: tmux, of any size."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TMUX = shutil.which("tmux")


@contextmanager
def terminal(words: Sequence[object], width: int, height: int, directory: Path) -> Iterator[Callable[[], list[str]]]:
    """Runs a command in a terminal. Gives what tells the lines that its screen shows now."""
    assert TMUX is not None
    tmux = [TMUX, "-S", str(directory / "tmux"), "-f", "/dev/null"]
    command = f"{shlex.join(map(str, words))}; cat"  # the terminal stays when the command has ended
    subprocess.run([*tmux, "new-session", "-d", "-x", str(width), "-y", str(height), command], check=True)

    def screen() -> list[str]:
        shown = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
        return shown.splitlines()

    try:
        yield screen
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)

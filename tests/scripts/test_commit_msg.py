"""The hook that looks at the message of a commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / "scripts/hooks/commit-msg"


def said(tmp_path: Path, message: str) -> str:
    """What the hook refuses a message with; empty where it lets it pass."""
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run([str(HOOK), str(file)], capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stderr)
    return done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "A thought\n\nWhy it was had.\n",
        f"{'ä' * 72}\n\nCharacters count, not bytes.\n",
        "# a comment of git\nA thought\n\nWhy.\n# another\n",
        "fixup! A thought\n",
    ],
)
def test_a_message_that_passes(tmp_path: Path, message: str) -> None:
    assert said(tmp_path, message) == ""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "the subject is empty"),
        (f"{'x' * 73}\n\nWhy.\n", "the subject has 73 characters, 72 are the most"),
        ("One thought; another one\n\nWhy.\n", "has two thoughts"),
        ("A thought.\n\nWhy.\n", "no full stop"),
        ("A thought\nWhy.\n", "the second line stays empty"),
        ("A thought\n\n  \n", "the body is missing"),
        ("A thought\n", "the body is missing"),
    ],
)
def test_a_message_that_is_refused(tmp_path: Path, message: str, reason: str) -> None:
    assert reason in said(tmp_path, message)

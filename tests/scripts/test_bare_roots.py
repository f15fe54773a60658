"""What scripts/test-bare asks debootstrap for: a stand-in writes its words down, and fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test-bare"


@pytest.mark.parametrize("mirror", ["", "http://mirror.example/ubuntu"])
def test_the_mirror_is_the_third_word(tmp_path: Path, mirror: str) -> None:
    """The fourth one is the script that makes the root, also where no mirror is given."""
    for name, lines in {"debootstrap": f'printf "%s\\n" "$@" >{tmp_path}/words\nexit 1', "id": "echo 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    words = [str(SCRIPT), str(tmp_path / "root"), "trixie", *filter(None, [mirror])]
    done = subprocess.run(words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert done.returncode == 1
    said = (tmp_path / "words").read_text().splitlines()
    suite, root, *others = [word for word in said if not word.startswith("--")]
    assert (suite, root) == ("trixie", str(tmp_path / "root"))
    asked, made_by = others
    assert (asked, Path(made_by).parent.name) == (mirror, "scripts")

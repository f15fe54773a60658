"""`scripts/setup` on a small project of its own.

It makes everything once, finds it done, repairs it, brings it up to date, and explains errors.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.wheels import write_wheel
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """\
import pathlib, shutil, signal
from wheels import write_wheel

def build_editable(directory, settings=None, metadata=None):
    library = pathlib.Path("commitlog/native/_core.abi3.so")
    if pathlib.Path("hold").exists():
        pathlib.Path("held").touch()
        signal.pause()
    if shutil.which("cargo"):
        library.write_text(pathlib.Path("commitlog/native/src/lib.rs").read_text())
    else:
        library.unlink(missing_ok=True)
        print("native core: left out: there is no Rust")
    return write_wheel(pathlib.Path(directory), "project", "1", {"project.pth": str(pathlib.Path.cwd())}).name
"""
UNREACHABLE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}


SETUP_SECONDS = 250  # several seconds of work, on a machine that is busy with other things


def _without_rust() -> list[str]:
    """The folders of PATH, without the machine's own Rust."""
    folders = os.environ["PATH"].split(os.pathsep)
    return [folder for folder in folders if not any(Path(folder, name).exists() for name in ("cargo", "rustc"))]


class Checkout:
    """A project that `scripts/setup` can set up without a network."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "scripts").mkdir(parents=True)
        self.packages = path.with_name("packages")
        self.packages.mkdir()
        shutil.copy(ROOT / "scripts" / "setup", path / "scripts")
        (path / "pyproject.toml").write_text(PROJECT)
        (path / "backend.py").write_text(BACKEND)
        shutil.copy(ROOT / "tests" / "scripts" / "wheels.py", path)
        self.sources = path / "commitlog" / "native" / "src" / "lib.rs"
        self.sources.parent.mkdir(parents=True)
        self.sources.write_text("one")
        self.library = path / "commitlog" / "native" / "_core.abi3.so"
        self.rust = path.with_name("rust")
        self.rust.mkdir()
        self.lock("1.0")

    def install_rust(self, version: str | None) -> None:
        """Puts a toolchain on PATH that says its version only. None takes it away."""
        for name in ("cargo", "rustc"):
            program = self.rust / name
            program.write_text(f"#!/bin/sh\necho {name} {version}\n")
            program.chmod(0o755 if version else 0o644)

    def lock(self, version: str) -> None:
        """Locks the one package that the project needs."""
        wheel = write_wheel(self.packages, "tiny", version, {"tiny.py": f"version = {version!r}\n"})
        checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (self.path / "requirements.lock").write_text(f"tiny=={version} \\\n    --hash=sha256:{checksum}\n")

    @property
    def environment(self) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        return known | {
            "LC_ALL": "C",  # a shell warns of one that is not installed
            "PATH": os.pathsep.join([str(self.rust), *_without_rust()]),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": self.packages.as_uri(),  # a list is split at spaces
            "PIP_NO_INDEX": "1",
        }

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.path / "scripts" / "setup"],
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def setup(self, **environment: str) -> tuple[int, str]:
        """Exit code and what was said."""
        with self.start(**environment) as process:
            said = process.communicate(timeout=SETUP_SECONDS)[0]
        return process.returncode, said

    @property
    def tiny_version(self) -> str:
        """Of the package in the environment; raises if that is not whole."""
        command = [str(self.path / ".venv" / "bin" / "python"), "-P", "-c", "import backend, tiny; print(tiny.version)"]
        return subprocess.run(command, cwd="/", stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


def put_java_that_is_not_prepared(checkout: Checkout) -> None:
    """Modules of the project that find Java, and can't prepare Spark for it."""
    package = checkout.path / "commitlog" / "spark" / "launching"
    package.mkdir(parents=True)
    (package / "java.py").write_text(
        "from types import SimpleNamespace\n\ndef find_java():\n    return SimpleNamespace(version=17, runtime='there')\n"
    )
    (package / "first_session.py").write_text("raise SystemExit('no room')\n")


@pytest.mark.nightly
def test_life_of_an_environment(checkout: Checkout) -> None:
    """Made; found done at once; brought up to date; left alone by an update that fails.

    It fails without a network, and where a hash is wrong. Spark is prepared once Java is
    found; if that fails, there is one line, and the setup is done.
    """
    put_java_that_is_not_prepared(checkout)
    code, said = checkout.setup()
    assert code == 0, said
    assert checkout.tiny_version == "1.0"
    assert "making .venv" in said
    assert "setup: Spark takes Java 17 of there\n" in said
    assert said.endswith("setup: Spark is not prepared: no room\nsetup: done\n")

    assert checkout.setup() == (0, "")

    checkout.lock("2.0")
    code, said = checkout.setup()
    assert code == 0, said
    assert checkout.tiny_version == "2.0"
    assert "making .venv" not in said

    lock = checkout.path / "requirements.lock"
    good = lock.read_text()
    write_wheel(checkout.packages, "tiny", "3.0", {})
    lock.write_text("tiny==3.0 --hash=sha256:" + "0" * 64 + "\n")
    code, said = checkout.setup()
    assert (code, checkout.tiny_version) == (1, "2.0"), said
    assert "DO NOT MATCH THE HASHES" in said.splitlines()[-1]
    lock.write_text("tiny==4.0 --hash=sha256:" + "0" * 64 + "\n")
    code, said = checkout.setup(PIP_NO_INDEX="0", **UNREACHABLE)
    assert (code, checkout.tiny_version) == (1, "2.0"), said
    assert "can't be reached" in said.splitlines()[-1]
    lock.write_text(good)
    assert checkout.setup() == (0, ""), "what failed has changed nothing"
    assert not (checkout.path / ".venv" / "tmp").exists()


@pytest.mark.nightly
def test_the_native_core_is_built_where_a_toolchain_is(checkout: Checkout) -> None:
    """Without one there is a line, once. After a change of sources or of Rust it is built again.

    The packages are left alone then.
    """
    code, said = checkout.setup()
    assert (code, said.count("setup: native core: left out: there is no Rust\n")) == (0, 1)
    assert checkout.setup() == (0, "")

    for version, sources in (("1.90.0", "one"), ("1.90.0", "two"), ("1.91.0", "two")):
        checkout.install_rust(version)
        checkout.sources.write_text(sources)
        code, said = checkout.setup()
        assert (code, checkout.library.read_text()) == (0, sources), said
        assert "bringing the native core up to date" in said
        assert "packages" not in said
        assert "left out" not in said
        assert checkout.setup() == (0, "")

    checkout.library.unlink()
    assert checkout.setup()[0] == 0
    assert checkout.library.exists(), "what somebody removed comes back"

    checkout.install_rust(None)
    assert checkout.setup() == (0, "")
    assert checkout.library.read_text() == "two", "a shell that does not find Rust keeps the library"
    checkout.sources.write_text("four")
    code, said = checkout.setup()
    assert (code, checkout.library.exists()) == (0, False), said
    assert "left out: there is no Rust" in said


@pytest.mark.nightly
def test_a_build_of_the_core_is_interrupted(checkout: Checkout) -> None:
    """The environment stays, and the next run builds the core alone."""
    assert checkout.setup()[0] == 0
    checkout.install_rust("1.90.0")
    (checkout.path / "hold").touch()
    checkout.sources.write_text("three")
    with checkout.start() as process:
        wait_until((checkout.path / "held").exists, what="the core is being built")
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "interrupted" in said
    (checkout.path / "hold").unlink()
    code, said = checkout.setup()
    assert (code, checkout.library.read_text()) == (0, "three"), "an interrupt leaves .venv, and the next run goes on"
    assert "packages" not in said


@pytest.mark.nightly
def test_killed_in_the_middle_it_is_made_again(checkout: Checkout) -> None:
    with checkout.start() as process:
        wait_until((checkout.path / ".venv" / "bin" / "python").exists, what="the making of .venv has begun")
        os.killpg(process.pid, signal.SIGKILL)
    assert not (checkout.path / ".venv" / "setup-stamp").exists()
    code, said = checkout.setup()
    assert code == 0, said
    assert checkout.tiny_version == "1.0"


def test_interrupted_it_leaves_nothing(checkout: Checkout) -> None:
    with checkout.start() as process:
        wait_until((checkout.path / ".venv" / "tmp").exists, what="packages are being installed")
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "interrupted" in said
    assert not (checkout.path / ".venv").exists()


@pytest.mark.nightly
def test_two_at_once_make_one(checkout: Checkout) -> None:
    with checkout.start() as one, checkout.start() as other:
        said = [process.communicate(timeout=SETUP_SECONDS)[0] for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), said
    assert checkout.tiny_version == "1.0"
    assert sum("making .venv" in text for text in said) == 1
    assert sum("waiting for it" in text for text in said) == 1


@pytest.mark.nightly
def test_no_network_is_one_line(checkout: Checkout) -> None:
    shutil.rmtree(checkout.packages)
    code, said = checkout.setup(PIP_NO_INDEX="0", **UNREACHABLE)
    assert code == 1
    assert "can't be reached" in said.splitlines()[-1]
    assert not (checkout.path / ".venv").exists()


def test_a_python_that_cannot_make_environments_names_the_package_to_install(
    checkout: Checkout, tmp_path: Path
) -> None:
    """As on a bare Debian: it is new enough, and has no ensurepip."""
    python = tmp_path / "bare-python"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\n')
    python.chmod(0o755)
    code, said = checkout.setup(PYTHON=str(python))
    assert (code, len(said.splitlines())) == (1, 1)
    assert "apt install python3-venv" in said


def test_no_python_is_one_line(checkout: Checkout) -> None:
    code, said = checkout.setup(PYTHON=str(checkout.path / "absent"))
    assert (code, len(said.splitlines())) == (1, 1)
    assert "3.11" in said

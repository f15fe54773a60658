"""Builds what a release consists of, twice, and compares; then tries it with each Python.

The sdist comes from the checkout, and all wheels from the sdist, so it is known to be whole. Zig is
the linker, because it links against any C library, for any machine: a wheel asks for the library of
manylinux 2.17.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
GLIBC = "2.17"
"""The oldest one that Rust's own library runs on."""
MACHINES = ("x86_64", "aarch64")
WHEEL_MB, SDIST_MB = 2, 4
"""A release is smaller than that."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


class Failed(Exception):
    """Why there is no release."""


@dataclass(frozen=True)
class Builder:
    """Builds in a directory of its own, which no byte of the results may depend on."""

    directory: Path

    @property
    def sources(self) -> Path:
        """The unpacked sdist."""
        (sources,) = (self.directory / "sources").iterdir()
        return sources

    @property
    def results(self) -> Path:
        return self.directory / "results"

    def build(self, machines: list[str]) -> None:
        hatchling("sdist", self.results, ROOT, os.environ)
        (sdist,) = self.results.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(self.directory / "sources", filter="data")
        hatchling("wheel", self.results, self.sources, os.environ | {"COMMITLOG_NATIVE": "off"})
        for machine in machines:
            hatchling("wheel", self.results, self.sources, os.environ | self.native(machine))

    def native(self, machine: str) -> dict[str, str]:
        """The variables with which the hook in commitlog/native builds for a kind of machine."""
        target = f"{machine}-unknown-linux-gnu"
        command = ["rustc", "--print", "target-libdir", "--target", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not Path(done.stdout.strip() or "/nowhere").is_dir():
            raise Failed(f"this Rust builds nothing for {machine}: rustup target add {target}")
        linker = self.directory / f"link-{machine}"
        linker.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ziglang cc -target {machine}-linux-gnu.{GLIBC} "$@"\n'
        )
        linker.chmod(0o755)
        places = {"cargo": os.environ.get("CARGO_HOME") or Path.home() / ".cargo", "sources": self.sources}
        flags = [f"--remap-path-prefix={place}={name}" for name, place in places.items()]  # a panic says where it was
        return {
            "COMMITLOG_NATIVE": "on",
            "CARGO_BUILD_TARGET": target,
            f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER": str(linker),
            "CARGO_TARGET_DIR": str(self.directory / "target"),
            "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
            # What sysconfig then says is the platform, so that the wheel has this tag.
            "_PYTHON_HOST_PLATFORM": f"manylinux_{GLIBC}_{machine}",
        }


def hatchling(what: str, directory: Path, cwd: Path, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", what, "-d", str(directory)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Failed(f"{what} can't be built: {' '.join(last)}")


def check_tag(wheel: Path) -> None:
    """What the library asks of a machine is what the wheel's name says, by auditwheel."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = re.search(r'following\s+platform\s+tag:\s+"(\w+)"', done.stdout)
    if said is None or not wheel.stem.endswith(said[1]):
        raise Failed(f"{wheel.name}: auditwheel says {said[1] if said else done.stdout + done.stderr}")


def check_size(file: Path) -> None:
    megabytes = WHEEL_MB if file.suffix == ".whl" else SDIST_MB
    if file.stat().st_size >= megabytes * 1e6:
        raise Failed(f"{file.name} has {file.stat().st_size / 1e6:.1f} MB, and may have {megabytes}")


def compare(one: Path, other: Path) -> None:
    """Two directories have the same files. Raises Failed."""
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        raise Failed(f"{one} and {other} have other files")
    for name in names:
        if (one / name).read_bytes() != (other / name).read_bytes():
            raise Failed(f"{name} has other bytes when it is built again")


def path_without_rust() -> str:
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(it for it in folders if not (Path(it, "cargo").exists() or Path(it, "rustc").exists()))


def find_python(version: str) -> str | None:
    """One on PATH, or else uv's own, which it fetches. None where there is none to be had."""

    def uv(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / ".venv" / "bin" / "uv"), "--no-config", "python", *words, version]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    find = ("find", "--system", "--python-preference=system")
    found = uv(*find)
    if found.returncode != 0 and uv("install").returncode == 0:
        found = uv(*find)
    return found.stdout.strip() or None


def try_with(version: str, dist: Path) -> bool:
    """Whether there was such a Python. Raises Failed where a wheel does not work with it."""
    python = find_python(version)
    if python is None:
        return False
    command = [python, "-P", str(ROOT / "scripts" / "try_wheels.py"), str(dist)]
    if subprocess.run(command, env=os.environ | {"PATH": path_without_rust()}, check=False).returncode != 0:
        raise Failed(f"Python {version} can't do with {dist} what README says")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/wheels", description="Builds a release, twice, and tries it.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="where it goes (dist)")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="this native wheel only; may be repeated")
    parser.add_argument(
        "--python", action="append", help="tries this version only, such as 3.13; may be repeated; none: tries none"
    )
    parser.add_argument("--work", type=Path, required=True, help=argparse.SUPPRESS)
    wish = parser.parse_args()
    machines, dist = wish.machine or list(MACHINES), wish.to.absolute()
    builders = [Builder(wish.work / name) for name in ("first", "the-second-one")]
    for builder in builders:
        builder.directory.mkdir()
        builder.build(machines)
    compare(*(builder.results for builder in builders))
    dist.mkdir(parents=True, exist_ok=True)
    for file in sorted(builders[0].results.iterdir()):
        check_size(file)
        if "manylinux" in file.name:
            check_tag(file)
        shutil.copyfile(file, dist / file.name)
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"{file.stat().st_size / 1e3:8.0f} kB  sha256 {checksum}  {file.name}", flush=True)
    missing = [python for python in wish.python or PYTHONS if python != "none" and not try_with(python, dist)]
    if missing:
        print(f"not tried, because uv finds none: Python {', '.join(missing)}")


if __name__ == "__main__":
    try:
        main()
    except Failed as reason:
        sys.exit(f"wheels: {reason}")

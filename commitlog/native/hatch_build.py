"""Builds the native core: a hook of hatchling's, which pyproject.toml names. No wheel holds it.

The core is optional. Where it can't be built, the package is plain Python, and one line says what
is lost and how to get it. COMMITLOG_NATIVE=off builds none. With COMMITLOG_NATIVE=on a build that
fails is an error. cargo's variables choose another machine and linker, as in scripts/wheels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CRATE = Path(__file__).parent
LIBRARY = "_core.abi3.so"


class NotBuilt(Exception):
    """Why there is no native core, and how to get it."""


class NativeCoreHook(BuildHookInterface[Any]):
    """Adds the native core to a wheel. An editable one gets it in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("COMMITLOG_NATIVE") or "auto"
        if wish not in ("auto", "on", "off"):
            raise ValueError(f"COMMITLOG_NATIVE={wish}: it is auto, on or off")
        library = None
        if wish != "off":
            try:
                library = built_library()
            except NotBuilt as reason:
                if wish == "on":
                    raise
                self.app.display_warning(
                    f"native core: left out: {reason}. Without it everything works, and appends and scans take longer"
                )
        if version == "editable":
            put_in_place(library)
        elif library is not None:
            build_data["force_include"][str(library)] = f"commitlog/native/{LIBRARY}"
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().translate(str.maketrans('-.', '__'))}"


def built_library() -> Path:
    """The library in the crate's target directory. Raises NotBuilt."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuilt("a free-threaded Python can't load it; another Python can")
    check_toolchain()
    cargo = ["cargo", "build", "--release", "--locked", "--message-format=json-render-diagnostics"]
    done = subprocess.run(cargo, cwd=CRATE, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
        raise NotBuilt(f"{' '.join(errors[:1]) or 'cargo failed'}; `cargo build` in commitlog/native says more")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    files = [file for message in messages for file in message.get("filenames", ()) if file.endswith("/lib_core.so")]
    return Path(files[-1])


def check_toolchain() -> None:
    """Raises NotBuilt where no Rust is, or an older one than Cargo.toml asks for."""
    wanted = tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]["rust-version"]
    way_out = f"install Rust {wanted} or newer (https://rustup.rs), then do this again"
    try:
        subprocess.run(["cargo", "--version"], cwd=CRATE, capture_output=True, check=True)
        said = subprocess.run(["rustc", "--version"], cwd=CRATE, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise NotBuilt(f"there is no Rust; {way_out}") from None
    found = said.split()[1]
    if [int(part) for part in found.split(".")[:2]] < [int(part) for part in wanted.split(".")]:
        raise NotBuilt(f"this Rust is {found}; {way_out}")


def put_in_place(library: Path | None) -> None:
    """Puts the library beside the checkout's modules, or takes an older one away.

    It is renamed into place: a process that has the old one loaded keeps it.
    """
    place = CRATE / LIBRARY
    if library is None:
        place.unlink(missing_ok=True)
        return
    new = place.with_name(f"{LIBRARY}.new")
    shutil.copyfile(library, new)
    new.replace(place)

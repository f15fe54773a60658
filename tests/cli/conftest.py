"""What tests of commands share."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

import commitlog


@pytest.fixture
def quick_spark_checks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `commitlog doctor` find a Java and a Python for Spark that only say which they are.

    Real ones take half a second of a core. This is for tests that look for something else.
    """
    place = tmp_path_factory.mktemp("spark")
    java = place / "java" / "bin" / "java"
    python = place / "python"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'java.specification.version = 17'; echo 'java.home = {place / 'java'}'\n")
    said = (*map(str, sys.version_info[:2]), commitlog.__version__, importlib.metadata.version("pyspark"))
    python.write_text(f"#!/bin/sh\necho {' '.join(said)}\n")
    for script in (java, python):
        script.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(place / "java"))
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))

"""A Java that does what a test wants in place of starting Spark."""

from __future__ import annotations

from pathlib import Path

import pytest


def play_java(directory: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """A Java of version 17 that does this instead of starting Spark."""
    java = directory / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    facts = f"echo 'java.specification.version = 17'; echo 'java.home = {directory / 'java'}'"
    java.write_text(f"#!/bin/sh\ncase $* in *-XshowSettings*) {facts} ;; *) {does} ;; esac\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(directory / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))

"""Jars of real servers, fetched with Maven once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from commitlog.spark.launching.java import cache_directory

FETCH_SECONDS = 600


def class_path(pom: Path, what: str, *tools: str) -> str:
    """The jars that a POM asks for. Skips the test, and says why, where they can't be had.

    `what` is what they are needed for; `tools` are programs besides Java and Maven.
    """
    for tool in ("java", "mvn", *tools):
        if not shutil.which(tool):
            pytest.skip(f"needs Java 17 (a JDK) and Maven to run {what}: {tool} is not here")
    # One too old knows no such option, and says nothing.
    version = subprocess.run(["java", "--version"], capture_output=True, text=True).stdout
    if int((re.findall(r"\d+", version) or [0])[0]) < 17:
        pytest.skip(f"needs Java 17 to run {what}, and `java` is {version or 'older'}")
    cache = cache_directory() / "maven"  # also of a user without a home
    cache.mkdir(parents=True, exist_ok=True)
    known = cache / f"class-path-{hash_of(pom)}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two Mavens do not share a repository
        if not known.exists() or not all(map(os.path.exists, known.read_text().split(":"))):
            _fetch(pom, what, known, cache / "repository")
    return known.read_text()


def _fetch(pom: Path, what: str, known: Path, repository: Path) -> None:
    """Has Maven fill its repository and writes the class path to `known`."""
    fresh = known.with_suffix(".new")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", "-DincludeScope=runtime"]
    command += [f"-Dmdep.outputFile={fresh}", f"-Dmaven.repo.local={repository}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
        reason = f"Maven could not fetch {what}: {(done.stdout + done.stderr)[-500:]}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"Maven could not fetch {what} in {FETCH_SECONDS} s"
    if reason:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    fresh.rename(known)


def hash_of(path: Path) -> str:
    """Eight characters that change with a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]

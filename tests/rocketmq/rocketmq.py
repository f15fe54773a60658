"""A real RocketMQ store, fetched with Maven once and kept in the user's cache.

It opens lanes of ours and says what it finds.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from commitlog.spark.launching.java import cache_directory

HERE = Path(__file__).parent
FETCH_SECONDS, RUN_SECONDS = 600, 90


def class_path(pom: str = "pom.xml") -> str:
    """The jars of RocketMQ's store, of the version that a POM here names.

    Skips the test, and says why, where they can't be had.
    """
    for tool in ("java", "javac", "mvn"):
        if not shutil.which(tool):
            pytest.skip(f"needs Java 17 (a JDK) and Maven to run a real RocketMQ: {tool} is not here")
    # One too old knows no such option, and says nothing.
    version = subprocess.run(["java", "--version"], capture_output=True, text=True).stdout
    if int((re.findall(r"\d+", version) or [0])[0]) < 17:
        pytest.skip(f"needs Java 17 to run a real RocketMQ, and `java` is {version or 'older'}")
    cache = cache_directory() / "rocketmq"  # also of a user without a home
    cache.mkdir(parents=True, exist_ok=True)
    known = cache / f"class-path-{hash_of(HERE / pom)}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two Mavens do not share a repository
        if not known.exists() or not all(map(os.path.exists, known.read_text().split(":"))):
            _fetch(HERE / pom, known, cache / "repository")
    return known.read_text()


def _fetch(pom: Path, known: Path, repository: Path) -> None:
    """Has Maven fill its repository and writes the class path to `known`."""
    fresh = known.with_suffix(".new")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={fresh}", f"-Dmaven.repo.local={repository}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
        reason = f"Maven could not fetch RocketMQ: {(done.stdout + done.stderr)[-500:]}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"Maven could not fetch RocketMQ in {FETCH_SECONDS} s"
    if reason:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    fresh.rename(known)


def hash_of(path: Path) -> str:
    """Eight characters that change with a file's content."""
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


@dataclass(frozen=True)
class Found:
    """What RocketMQ found: messages in log order, with the names of `dump`.

    Also index entries, and the results of its appends.
    """

    messages: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    appended: list[dict[str, Any]]
    end: int


def open_with_rocketmq(
    root: Path, segment_bytes: int, queue_file_bytes: int, output: Path, append: list[tuple[str, int, str]]
) -> Found:
    """Opens a store root, reads all of it, appends messages (topic, queue id, body), closes it."""
    command = ["java", "-Xmx512m", f"-Duser.home={output.parent}", "-cp", class_path(), str(HERE / "OpenStore.java")]
    command += [str(root), str(segment_bytes), str(queue_file_bytes), str(output)]
    for topic, queue_id, body in append:
        command += [topic, str(queue_id), body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines: dict[str, list[dict[str, Any]]] = {"message": [], "entry": [], "appended": [], "end": []}
    for line in output.read_bytes().splitlines():
        values = orjson.loads(line)
        lines[values.pop("kind")].append(values)
    return Found(lines["message"], lines["entry"], lines["appended"], lines["end"][0]["where"])

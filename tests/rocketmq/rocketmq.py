"""A real RocketMQ store, fetched with Maven once and kept in the user's cache.

It opens lanes of ours and says what it finds.
"""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from commitlog.spark.launching.java import cache_directory
from tests import maven

HERE = Path(__file__).parent
RUN_SECONDS = 90


def class_path(pom: str = "pom.xml") -> str:
    """The jars of RocketMQ, of the version that a POM here names.

    Skips the test, and says why, where they can't be had.
    """
    return maven.class_path(HERE / pom, "a real RocketMQ", "javac")


def program(name: str, pom: str = "pom.xml", *options: str) -> list[str]:
    """The command that runs a Java program of this directory, without its arguments.

    It is compiled once and kept beside the jars: Java would do it again in each process. The JVM
    lives for seconds, so it starts fast rather than becoming fast.
    """
    jars, source = class_path(pom), HERE / f"{name}.java"
    version = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    cache = cache_directory() / "maven"
    classes = cache / f"classes-{version}-{maven.hash_of(HERE / pom)}-{maven.hash_of(source)}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists():
            with tempfile.TemporaryDirectory(dir=cache) as fresh:
                made = Path(fresh, "classes")
                subprocess.run(["javac", "-cp", jars, "-d", made, source], capture_output=True, check=True)
                made.rename(classes)
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return ["java", *quick, *options, "-cp", f"{classes}:{jars}", name]


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
    command = program("OpenStore", "pom.xml", "-Xmx512m", f"-Duser.home={output.parent}")
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

"""What a check says, and what it looks at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.system.clock import SYSTEM_CLOCK, Clock

Severity = Literal["good", "note", "problem"]


class Code(StrEnum):
    """The names of findings. They do not change; docs/operate.md has a row for each."""

    CHECK = "check"
    PYTHON = "python"
    ASSERTIONS = "assertions"
    BYTECODE = "bytecode"
    PACKAGES = "packages"
    EXTRA = "extra"
    FOREIGN_MODULE = "foreign-module"
    NATIVE_CORE = "native-core"
    KERNEL = "kernel"
    SHARED_MEMORY = "shared-memory"
    LANES = "lanes"
    LOCKED_MEMORY = "locked-memory"
    DESCRIPTORS = "descriptors"
    PROCESSES = "processes"
    CLOCK_SOURCE = "clock-source"
    STRAY_POOL = "stray-pool"
    JAVA = "java"
    SPARK_HOME = "spark-home"
    SPARK_JAR = "spark-jar"
    WORKER_PYTHON = "worker-python"
    FILE_SYSTEM = "file-system"
    FILE_CALLS = "file-calls"
    FILE_TIME = "file-time"
    DISK_SPACE = "disk-space"
    STORE = "store"
    STORE_OWNER = "store-owner"
    STORE_POOL = "store-pool"
    STORE_TIME = "store-time"
    STORE_HEALTH = "store-health"


@dataclass(frozen=True)
class Finding:
    """What a check found: one sentence, and what to do where it is not good."""

    code: Code
    severity: Severity
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Surroundings:
    """What the checks look at. `store` is None where the user gave none."""

    store: Path | None = None
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = SYSTEM_CLOCK
    channel: FileChannel = DISK

    def text_of(self, file: str) -> str:
        """The text of a small file of the kernel's, or "" where it can't be read."""
        try:
            return self.channel.read_file(file).decode(errors="replace").strip()
        except OSError:
            return ""


def good(code: Code, text: str) -> Finding:
    return Finding(code, "good", text)


def note(code: Code, text: str, remedy: str) -> Finding:
    """Something that costs time or room, or is good to know."""
    return Finding(code, "note", text, remedy)


def problem(code: Code, text: str, remedy: str) -> Finding:
    """Something that does not work, or does not keep what it promises."""
    return Finding(code, "problem", text, remedy)

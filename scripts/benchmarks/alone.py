"""Stages alone (stages/alone.py), and floors: the same work with nothing around it."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from scripts.benchmarks import floors
from scripts.benchmarks.harness import Bench, Sample, Stopwatch


class StageAlone:
    """The process of a stage that works only when it is told to.

    `bytes` and `messages` are those of its input.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        ready = self._read()
        self.bytes: int = ready["bytes"]
        self.messages: int = ready["messages"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the stage ended with {self._process.wait()}")
        answer: dict[str, Any] = orjson.loads(line)
        return answer

    def _command(self, line: bytes) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._read()

    def turn(self) -> Sample:
        """One pass over input that has not been worked on."""
        self._command(b"prepare\n")
        found = self._command(b"go\n")
        cpu = found["user_seconds"] + found["system_seconds"]
        return {
            "rate": found["units"] / found["seconds"],
            "megabytes": found["bytes"] / found["seconds"] / 1e6,
            "user": found["user_seconds"] / found["units"] * 1e6,
            "system": found["system_seconds"] / found["units"] * 1e6,
            "busy": cpu / found["seconds"],
        }


@contextlib.contextmanager
def stage_alone(bench: Bench, name: str, body_bytes: int) -> Iterator[StageAlone]:
    with bench.room() as room:
        command = [sys.executable, "-P", "-m", "commitlog.stages.alone", name, str(room / "store")]
        command += [str(bench.settings.segment_bytes), str(body_bytes)]
        process = subprocess.Popen(  # not for the terminal's Ctrl-C: the stage cleans up at the end of its input
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin
        assert process.stdout
        try:
            yield StageAlone(process)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait(60)
            process.stdout.close()


def _sample(watch: Stopwatch, units: int, size: int) -> Sample:
    return {"rate": units / watch.seconds, "megabytes": size / watch.seconds / 1e6}


class WriteFloor:
    """The floor of committer and flusher: pwrite from memory into prepared files, and fdatasync.

    It writes as many bytes as they do.
    """

    def __init__(self, directory: Path, total: int, segment_bytes: int, messages: int) -> None:
        self.total, self.size, self.messages = total, segment_bytes, messages
        self.memory = mmap.mmap(-1, segment_bytes)
        self.memory[:] = os.urandom(1 << 16) * (segment_bytes >> 16)
        paths = [floors.make_segment(directory, start, segment_bytes) for start in range(0, total, segment_bytes)]
        self.fds = [os.open(path, os.O_RDWR) for path in paths]

    def write(self) -> Sample:
        view = memoryview(self.memory)
        with Stopwatch() as watch:
            for number, fd in enumerate(self.fds):
                end = min(self.size, self.total - number * self.size)
                for at in range(0, end, floors.SLICE_BYTES):
                    os.pwrite(fd, view[at : min(at + floors.SLICE_BYTES, end)], at)
        view.release()
        return _sample(watch, self.messages, self.total)

    def sync(self) -> Sample:
        self.write()
        with Stopwatch() as watch:
            for fd in self.fds:
                os.fdatasync(fd)
        return _sample(watch, self.messages, self.total)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.memory.close()


def make_segments(directory: Path, count: int, segment_bytes: int) -> Sample:
    """The allocator's floor: as many segment files, made as the allocator makes them."""
    with Stopwatch() as watch:
        paths = [floors.make_segment(directory, number * segment_bytes, segment_bytes) for number in range(count)]
    for path in paths:
        path.unlink()
    return _sample(watch, count, count * segment_bytes)


def read_and_index(log: Path, entries: Path, messages: int) -> Sample:
    """The dispatcher's floor: every byte of the log read once, and 20 bytes a message written."""
    index, total = os.urandom(20 * 8192), 0
    with floors.new_file(entries) as fd, Stopwatch() as watch:
        with open(log, "rb", buffering=0) as file:
            while data := file.read(1 << 20):
                total += len(data)
                zlib.adler32(data)
        for at in range(0, messages * 20, len(index)):
            os.pwrite(fd, index[: messages * 20 - at], at)
    return _sample(watch, messages, total)


@contextlib.contextmanager
def log_file(room: Path, total: int) -> Iterator[Path]:
    """A file of `total` bytes, in the page cache."""
    path = room / "log"
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for at in range(0, total, len(block)):
            file.write(block[: total - at])
    yield path

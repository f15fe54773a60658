"""A producer process that samples the machine: CPU, memory, disks, networks, and every process.

Samples are taken at their own pace, in a small part of the process's time. Messages are sent at
another pace. A message carries the newest sample of one thing. If more messages are wanted than
there are new samples, a sample is sent again under a new sequence number; `sampled_at` shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil

from commitlog.ingest.link import Link
from commitlog.ingest.producer_loop import Item, Sender, run_producer
from commitlog.system.process_title import set_process_title

ROUND_SECONDS = 0.1
"""All things are sampled at most this often: the kernel counts CPU time in ticks of 10 ms."""
_SHARE_OF_TIME = 0.15
NAME_MAX = 100
_OPTIONS_WITH_VALUE = ("W", "X")
_SPARK_CLASSES = "org.apache.spark."
_WORKER_MODULES = ("pyspark.", "commitlog.spark.launching.")


class MachineSource:
    """Samples of this machine. Each of several producers takes its share of the things."""

    def __init__(self, share: int = 0, shares: int = 1) -> None:
        self.share, self.shares = share, shares
        self.bodies: dict[str, bytes] = {}
        self._steps = self._rounds()
        self._rest_until = self._round_began = 0.0
        self._processes: dict[int, psutil.Process] = {}
        self._cycle: list[Item] = []
        self._place = 0
        self.done = False
        self.skipped = 0
        while not self._cycle:
            self._sample()

    def tick(self) -> None:
        """Takes the next sample when its time has come. Called every few milliseconds."""
        if time.monotonic() >= self._rest_until:
            self._sample()

    def take(self, limit: int) -> list[Item]:
        """Up to `limit` messages, and always at least one."""
        items = self._cycle[self._place : self._place + limit]
        self._place += len(items)
        if self._place >= len(self._cycle):
            self._place = 0
            self._cycle = [Item(key, body, {}) for key, body in self.bodies.items()]
        return items

    def sent(self, count: int) -> None:
        """Does nothing: samples are not consumed."""

    def close(self) -> None:
        """Does nothing: nothing is held open."""

    def _sample(self) -> None:
        """Takes one step of the round, then rests in proportion to the time that the step took."""
        began = time.monotonic()
        key, body = next(self._steps)
        ended = time.monotonic()
        if body is not None:
            self.bodies[key] = body
            self._rest_until = ended + (ended - began) * (1 / _SHARE_OF_TIME - 1)
        else:  # a round is complete
            self._cycle = self._cycle or [Item(key, body, {}) for key, body in self.bodies.items()]
            self._rest_until = max(ended, self._round_began + ROUND_SECONDS)
            self._round_began = self._rest_until

    def _rounds(self) -> Iterator[tuple[str, bytes | None]]:
        rates = _Rates()
        while True:
            for position, part in enumerate((_cores, _memory, rates.disks, rates.networks)):
                if position % self.shares == self.share:
                    for sample in part():
                        yield _message(sample)
            yield from self._process_samples()
            yield "", None

    def _process_samples(self) -> Iterator[tuple[str, bytes | None]]:
        alive = {pid for pid in psutil.pids() if pid % self.shares == self.share}
        for pid in self._processes.keys() - alive:
            del self._processes[pid]
            self.bodies.pop(f"process/{pid}", None)
        for pid in sorted(alive):
            try:
                process = self._processes.get(pid)
                if process is None:
                    process = self._processes[pid] = psutil.Process(pid)
                    process.cpu_percent(None)  # psutil compares with the last look, and the first one has none
                with process.oneshot():
                    sample = {
                        "kind": "process",
                        "name": _name(process),
                        "pid": pid,
                        "cpu_percent": process.cpu_percent(None),
                        "memory_bytes": process.memory_info().rss,
                    }
            except psutil.Error:
                continue  # it has ended, or belongs to another user
            yield _message(sample)


def _name(process: psutil.Process) -> str:
    """What to call a process: the kernel's name for it, or what it runs if it is Python or Java."""
    name = process.name()
    if name.startswith("python") or name == "java":
        name = program_name(name, process.cmdline())
    return name.encode(errors="replace").decode()[:NAME_MAX]  # Linux takes any byte in a name, JSON does not


def program_name(interpreter: str, command: list[str]) -> str:
    """The script or module that a command line runs.

    Spark's processes are named by what they do. Where nothing is found, it is the interpreter.
    """
    if interpreter == "java":
        return "Spark (java)" if any(word.startswith(_SPARK_CLASSES) for word in command) else interpreter
    words = iter(command[1:])
    for word in words:
        if word[:1] != "-":
            return Path(word).name or interpreter
        if word[1:2] in _OPTIONS_WITH_VALUE:
            if len(word) == 2:
                next(words, None)
        elif word[1:2] != "-" and word[-1] == "m":
            module = next(words, interpreter)
            return "pyspark worker" if module.startswith(_WORKER_MODULES) else module
        elif word[1:2] != "-" and word[-1] == "c":
            return f"{interpreter} -c"
    return interpreter


def _cores() -> Iterator[dict[str, Any]]:
    for core, percent in enumerate(psutil.cpu_percent(None, percpu=True)):
        yield {"kind": "cpu", "name": f"cpu{core}", "cpu_percent": percent}


def _memory() -> Iterator[dict[str, Any]]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    yield {"kind": "memory", "name": "memory", "memory_bytes": memory.total - memory.available}
    yield {"kind": "memory", "name": "swap", "memory_bytes": swap.used}


class _Rates:
    """Turns counters since boot (disks, networks) into bytes a second since the last look."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int, int]] = {}

    def disks(self) -> Iterator[dict[str, Any]]:
        for name, counters in (psutil.disk_io_counters(perdisk=True) or {}).items():
            yield self._rate("disk", name, counters.read_bytes, counters.write_bytes)

    def networks(self) -> Iterator[dict[str, Any]]:
        for name, counters in psutil.net_io_counters(pernic=True).items():
            yield self._rate("network", name, counters.bytes_recv, counters.bytes_sent)

    def _rate(self, kind: str, name: str, bytes_in: int, bytes_out: int) -> dict[str, Any]:
        now = time.monotonic()
        then, last_in, last_out = self._last.get(kind + name, (now - 1, bytes_in, bytes_out))
        self._last[kind + name] = (now, bytes_in, bytes_out)
        return {
            "kind": kind,
            "name": name,
            "in_bytes_per_second": round((bytes_in - last_in) / max(now - then, 0.001)),
            "out_bytes_per_second": round((bytes_out - last_out) / max(now - then, 0.001)),
        }


def _message(sample: dict[str, Any]) -> tuple[str, bytes]:
    key = f"{sample['kind']}/{sample.get('pid', sample['name'])}"
    return key, orjson.dumps({**sample, "sampled_at": time.time()})


def main() -> None:
    """The producer process: `python -m commitlog.ingest.sampling FD`."""
    link = Link.inherited()
    settings = link.receive_one()
    set_process_title(f"producer {settings['producer']}", settings["store"])
    run_producer(
        link, lambda: Sender(link, settings), lambda: MachineSource(settings["producer"], settings["producers"])
    )


if __name__ == "__main__":
    main()

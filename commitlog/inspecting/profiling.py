"""Where a stage's time goes: stacks (py-spy), system calls (strace, if any), CPU clocks (/proc).

`profile_running` looks at a stage of a running store. `profile_alone` starts `stages.alone` and
looks at this process: one stage works on prepared input, with no other process beside it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from commitlog.disk.file_channel import DISK
from commitlog.disk.locks import is_running
from commitlog.disk.processes import stat_fields
from commitlog.errors import CommitLogError, StoreNotRunning, how_to_install
from commitlog.inspecting.flame_graph import Stack
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.counters import Histogram
from commitlog.shm.layout import STAGES, Lane, Stage

RATE = 200
_STRACE_SECONDS = 2.0
_START_SECONDS = 120.0
_RAW_BYTES_MAX = 1 << 30
_FUNCTIONS = 12
_PASS_FRAME = "_rounds (commitlog/stages/alone.py"
_WAITS = ("_poll (commitlog/stages/base_stage.py", "wait_for_running (", "_worker (concurrent/futures/thread.py")
_LANE_COUNTERS = {
    "bytes committed": Lane.COMMITTED,
    "bytes flushed": Lane.FLUSHED,
    "bytes dispatched": Lane.DISPATCHED,
    "bytes allocated": Lane.ALLOCATED,
    "commits": Lane.COMMITS,
    "syncs": Lane.SYNCS,
    "records dispatched": Lane.DISPATCHED_RECORDS,
}


class ProfileRefused(CommitLogError):
    """A process can't be looked at: the profiler is missing, or the system does not allow it."""


@dataclass
class Clocks:
    """Seconds since a process began (from /proc), and how often it was switched away."""

    wall: float
    user: float
    system: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> Clocks:
        """The clocks of a process now. Raises ProfileRefused if the process has ended."""
        tick = os.sysconf("SC_CLK_TCK")
        try:
            fields = stat_fields(pid)
            lines = DISK.read_file(f"/proc/{pid}/status", 16384).decode().splitlines()
        except OSError as error:
            raise ProfileRefused(f"process {pid} has ended") from error
        switches = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        return cls(time.monotonic(), int(fields[11]) / tick, int(fields[12]) / tick, switches)

    def __sub__(self, earlier: Clocks) -> Clocks:
        return Clocks(
            self.wall - earlier.wall,
            self.user - earlier.user,
            self.system - earlier.system,
            self.switches - earlier.switches,
        )


@dataclass
class Profile:
    """What was seen of a stage.

    `clocks` is the time that passed. `stacks` have the outermost frame first, and their numbers of
    samples.
    """

    stage: str
    where: str
    clocks: Clocks
    stacks: list[tuple[Stack, int]]
    counters: dict[str, float]
    system_calls: list[str] = field(default_factory=list)

    @property
    def asleep(self) -> list[Stack]:
        """Stacks that wait for something to do."""
        return [stack for stack, _ in self.stacks if _has_any(stack, _WAITS)]

    def functions(self) -> list[tuple[str, float]]:
        """The busiest functions, and the share of the busy samples in which each was innermost."""
        asleep, own = set(self.asleep), Counter[str]()
        for stack, samples in self.stacks:
            if stack not in asleep:
                own[_function_of(stack[-1])] += samples
        total = sum(own.values())
        return [(name, samples / total) for name, samples in own.most_common(_FUNCTIONS)]


def _has_any(stack: Stack, names: tuple[str, ...]) -> bool:
    return any(name in frame for frame in stack for name in names)  # newer py-spys put the class before the function


def _function_of(frame: str) -> str:
    """`work (commitlog/stages/committer.py:88)` → `work (commitlog/stages/committer.py)`."""
    head, _, line = frame.rpartition(":")
    return f"{head})" if line.endswith(")") and head else frame


# ---- the profilers -----------------------------------------------------------------------------


def _tool(name: str) -> str | None:
    """The path of a program of this environment, or of PATH."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def check_profiler() -> str:
    """The path of py-spy. Raises ProfileRefused if it is not installed."""
    found = _tool("py-spy")
    if found is None:
        raise ProfileRefused(f"py-spy is not installed: {how_to_install('profile', 'py-spy')}")
    return found


@contextlib.contextmanager
def sampling(pid: int, seconds: float, draft: Path) -> Iterator[list[tuple[Stack, int]]]:
    """Samples a process for `seconds`, while the with-block runs. The list is filled at its end.

    Raises ProfileRefused.
    """
    command = [check_profiler(), "record", "--pid", str(pid), "--duration", str(max(round(seconds), 1))]
    command += ["--rate", str(RATE), "--idle", "--format", "raw", "--output", str(draft)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stacks: list[tuple[Stack, int]] = []
    try:
        yield stacks
        said = process.communicate(timeout=seconds + 60)[0]
        if process.returncode:
            raise ProfileRefused(_refusal(pid, said))
        stacks += parse_stacks(DISK.read_file(draft, _RAW_BYTES_MAX).decode(errors="replace"))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        with contextlib.suppress(FileNotFoundError):
            DISK.unlink(draft)


def parse_stacks(text: str) -> list[tuple[Stack, int]]:
    """Reads py-spy's raw format: a line has a stack, its frames joined by `;`, and its samples."""
    found = []
    for line in text.splitlines():
        frames, _, samples = line.rpartition(" ")
        if frames and samples.isdecimal():
            found.append((tuple(frames.split(";")), int(samples)))
    return found


def _refusal(pid: int, said: str) -> str:
    """The many lines that py-spy prints, as one line."""
    if "ermission" in said or "not permitted" in said:
        try:
            scope = DISK.read_file("/proc/sys/kernel/yama/ptrace_scope", 16).decode().strip()
        except OSError:
            scope = "not there"
        return (
            f"ptrace of process {pid} is not allowed (kernel.yama.ptrace_scope is {scope}): run it as root, or the container "
            f"with --cap-add=SYS_PTRACE"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"py-spy can't look at process {pid}: {lines[0] if lines else 'it says nothing'}"


@contextlib.contextmanager
def tracing(pid: int) -> Iterator[list[str]]:
    """Counts the system calls of a process while the with-block runs.

    When the block ends, the list has strace's table. It stays empty if there is no strace, or if it
    is not allowed.
    """
    strace, table = _tool("strace"), list[str]()
    if strace is None:
        yield table
        return
    command = [strace, "-f", "-c", "-w", "-S", "time", "-p", str(pid)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        attached = "attached" in process.stderr.readline()
        yield table
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        if attached:
            lines = said.splitlines()
            begin = next((n for n, line in enumerate(lines) if line.startswith("% time")), len(lines))
            table += lines[begin : begin + 12]
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


# ---- a running stage ---------------------------------------------------------------------------


def profile_running(store: Path, stage: str, seconds: float, draft: Path) -> Profile:
    """Profiles a stage of a running store.

    Raises StoreNotFound, StoreNotRunning, ProfileRefused.
    """
    check_profiler()
    view = StoreView(store)
    try:
        control = view.control
        if control is None or not is_running(view.directory, control.region.path.parent):
            raise StoreNotRunning(f"{store}: its stages are not running; without --store the {stage} is run alone")
        row = control.stage_row(stage)
        pid = row[Stage.PID]
        if not pid:
            raise ProfileRefused(f"{store}: its {stage} does not run; `commitlog stat` shows the stages that do")
        before, then = _counters(control, stage), Clocks.of(pid)
        durations = Histogram.load(row, Stage.HISTOGRAM)
        with sampling(pid, seconds, draft) as stacks:
            pass  # py-spy needs some time
        clocks = Clocks.of(pid) - then
        durations = Histogram.load(row, Stage.HISTOGRAM) - durations
        counters = {name: value - before[name] for name, value in _counters(control, stage).items()}
        with tracing(pid) as calls:
            time.sleep(min(seconds, _STRACE_SECONDS))
        return Profile(stage, f"{store}, process {pid}", clocks, stacks, counters | _took(durations), calls)
    finally:
        view.close()


def _counters(control: ControlRegion, stage: str) -> dict[str, float]:
    row = control.stage_row(stage)
    found = {name.lower(): row[getattr(Stage, name)] for name in ("ROUNDS", "WAKEUPS", "ACTIONS")}
    table = control.lane_table()
    return found | {name: int(table[:, word].sum()) for name, word in _LANE_COUNTERS.items()}


def _took(durations: Histogram) -> dict[str, float]:
    found = {"µs an action, p50": durations.percentile(0.5), "µs an action, p99": durations.percentile(0.99)}
    return {name: value for name, value in found.items() if value is not None}


# ---- a stage alone -----------------------------------------------------------------------------


def profile_alone(
    stage: str, seconds: float, directory: Path, draft: Path, segment_bytes: int, body_bytes: int
) -> Profile:
    """Profiles a stage on prepared input, pass after pass.

    `directory` is made for its store and removed. Raises ProfileRefused.
    """
    check_profiler()
    assert stage in STAGES
    if directory.exists():
        raise ProfileRefused(f"{directory} is there already: remove it, or choose another --out")
    arguments = [stage, str(directory), str(segment_bytes), str(body_bytes)]
    command = [sys.executable, "-P", "-m", "commitlog.stages.alone", *arguments]
    process = subprocess.Popen(  # not for the terminal's Ctrl-C: the stage cleans up at the end of its input
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin
    assert process.stdout
    try:
        ready = _answer(process)
        passes: list[dict[str, Any]] = []
        with sampling(ready["pid"], seconds, draft) as stacks:
            end = time.monotonic() + max(round(seconds), 1)
            while time.monotonic() < end or not passes:
                passes.append(_run_pass(process))
        _command(process, b"prepare\n")
        with tracing(ready["pid"]) as calls:
            _command(process, b"go\n")
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(_START_SECONDS)
        process.stdout.close()
    return _profile_of(stage, passes, stacks, calls)


def _profile_of(stage: str, passes: list[dict[str, Any]], stacks: list[tuple[Stack, int]], calls: list[str]) -> Profile:
    """The profile of the passes alone. Between two passes, their input is made anew."""
    inside = []
    for stack, samples in stacks:
        begin = next((n for n, frame in enumerate(stack) if _PASS_FRAME in frame), None)
        if begin is not None:
            inside.append((stack[begin:], samples))
    total = {name: sum(each[name] for each in passes) for name in passes[0] if not name.endswith("_us")}
    clocks = Clocks(total["seconds"], total["user_seconds"], total["system_seconds"], total["switches"])
    unit = "segments" if stage == "allocator" else "records"
    counters = {
        "passes": len(passes),
        "rounds": total["rounds"],
        "actions": total["actions"],
        "bytes": total["bytes"],
        unit: total["units"],
        f"{unit} a second": total["units"] / total["seconds"],
        "µs an action, p50, last pass": passes[-1]["p50_us"] or 0,
        "µs an action, p99, last pass": passes[-1]["p99_us"] or 0,
    }
    return Profile(stage, "alone, on prepared input", clocks, inside, counters, calls)


def _run_pass(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    _command(process, b"prepare\n")
    return _command(process, b"go\n")


def _command(process: subprocess.Popen[bytes], line: bytes) -> dict[str, Any]:
    assert process.stdin
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        raise ProfileRefused(f"the stage ended with {process.wait()}; what it said is above") from None
    return _answer(process)


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise ProfileRefused(f"the stage ended with {process.wait()}; what it said is above")
    answer: dict[str, Any] = orjson.loads(line)
    return answer

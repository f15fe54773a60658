"""Owns a running store: locks it, opens its pool, starts the stages, watches them, stops them in
order.

A process of its own, started by `commitlog.Store.open`. Its standard input is the owner's hand: the
first line is the request (JSON), the end of it means stop. Its standard output reports (a JSON
object a line): `ready`, `warning`, `error`, `stopped`. The supervisor holds the store's lock for
its whole life, and all stage locks before anything is recovered; a stage takes its own lock again
when it starts, so that there is never a second one, whatever happened to the first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from commitlog.clock import SYSTEM_CLOCK, Clock
from commitlog.config import AUTO_SEGMENT_BYTES_MAX, MIN_SEGMENT_BYTES, Config
from commitlog.disk.descriptors import occupy_standard_descriptors
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, new_store_id
from commitlog.errors import (
    CommitLogError,
    PoolUnlinked,
    StageFailed,
    StoreMoved,
    StoreNotFound,
    StoreRefused,
    refusal,
)
from commitlog.lines import to_json
from commitlog.opening.pool import open_pool
from commitlog.opening.sizing import check_lane_fits, choose_segment_bytes
from commitlog.reading.view import attach_control
from commitlog.shm.layout import STAGES, Header, Lane, Stage
from commitlog.shm.positions import ControlRegion
from commitlog.shm.statistics import take_sample
from commitlog.stages.supervising.log_files import last_lines, log_to_file, open_log
from commitlog.stages.supervising.patience import Heartbeats, Patience
from commitlog.stages.supervising.stopping import StopReport, close_store, give_up_pool
from commitlog.stages.supervising.store_locks import StoreLocks
from commitlog.stages.supervising.store_watch import StoreWatch

_STDIN, _STDOUT = 0, 1
_POLL_MS = 200
_STAGE_START_SECONDS = 20.0
_STOP_ORDER = ("committer", "flusher", "dispatcher", "allocator")
_BACKOFF_SECONDS_MAX = 2.0
_ROUNDS_OF_A_LIFE = 3
"""A stage that has turned so many rounds could work: whatever killed it, it is started again at
once.
"""
_DRAIN_AGAIN_NS = 3_000_000_000
_DESCRIPTORS_MAX = 65_536

log = logging.getLogger(__name__)


@dataclass
class StageProcess:
    """One stage as the supervisor sees it."""

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int
    rounds: int  # of its name's stages before it
    deaths: list[int] = field(default_factory=list)  # monotonic ns, within the window
    stillborn: int = 0  # how many in a row died before they could work
    start_at: int = 0  # monotonic ns, while it waits to be started again; 0 while it runs


class Supervisor:
    """See the module. `run` returns when the store is stopped."""

    def __init__(self, path: Path, config: Config, channel: FileChannel = DISK, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory = StoreDirectory(path, channel)
        self.config, self.channel, self.clock = config, channel, clock
        self.stages: dict[str, StageProcess] = {}
        self.stopping = self.hurry = self._late = self._made_pool = False
        self._locks = StoreLocks(self.directory, channel, clock, config.supervisor.start_wait_ms)
        self.control: ControlRegion | None = None
        self.heartbeats: Heartbeats | None = None
        self.facts: StoreFacts | None = None

    # ---- start ----------------------------------------------------------------------------------

    def start(self, on_locked: Callable[[], None] = lambda: None) -> None:
        """Everything up to running stages. Raises named errors, having touched nothing of another
        owner's.

        `on_locked` is called when the store is ours: before, not even the log may be written to.
        """
        facts = self._load_or_plan()
        self._locks.take()
        on_locked()
        try:
            facts = self.directory.load()  # again, now that nobody else can change it
        except StoreNotFound:
            # a parent that may not be opened is somebody else's, and so was the making of our
            # directory
            with contextlib.suppress(PermissionError):
                self.channel.sync_directory(self.directory.path.parent)
            self.directory.save(facts)
        self.channel.create_directory(self.directory.lanes_directory, below=self.directory.path)
        facts = replace(facts, config=self.config.to_json())
        if last := attach_control(self.directory, facts):
            last.close()
            self._locks.take_in(last.region.path.parent)
        last_pool = facts.pool
        self.control, self.facts = open_pool(self.directory, facts, self.channel, self._warn)
        self._made_pool = self.facts.pool != last_pool
        self._locks.take_in(self.control.region.path.parent)
        self.directory.save(self.facts)
        self.heartbeats = Heartbeats(self.control, self.clock)
        self.store_watch = StoreWatch(self.directory, self.control)
        self.control.words[Header.SUPERVISOR_PID] = os.getpid()
        self._beat()
        self._mark_lanes_dirty()
        self._locks.let_stages_go()
        for name in STAGES:
            self.stages[name] = self._launch(name)
        self._wait_until_up()

    def _load_or_plan(self) -> StoreFacts:
        """The store's facts, or those of the one to be made: looked at before anything is created."""
        try:
            facts = self.directory.load()
            self.directory.check_owner()
            check_lane_fits(facts.segment_bytes, self.config.store.buffers_per_lane)
            return facts
        except StoreNotFound:
            parent = next(p for p in (self.directory.path, *self.directory.path.parents) if p.exists())
            if not os.access(parent, os.W_OK | os.X_OK):
                raise StoreRefused(f"{parent}: no permission to make a store here; choose another path") from None
            if self.directory.path.exists():
                self.directory.check_owner()
                self._refuse_foreign()
            wanted = self.config.store
            largest = wanted.segment_bytes or AUTO_SEGMENT_BYTES_MAX
            smallest = wanted.segment_bytes or MIN_SEGMENT_BYTES
            size = choose_segment_bytes(wanted.buffers_per_lane, largest, smallest)
            return StoreFacts(id=new_store_id(), segment_bytes=size)

    def _refuse_foreign(self) -> None:
        left_of_a_start = {"lock", "locks", "logs", "lanes"}
        draft = f".{self.directory.file.name}."
        names = self.channel.list(self.directory.path)
        foreign = [name for name in names if name not in left_of_a_start and not name.startswith(draft)]
        if foreign:
            raise StoreRefused(
                f"{self.directory.path} is a directory with other things in it ({', '.join(foreign[:3])}); "
                f"give a new or an empty one"
            )

    def _mark_lanes_dirty(self) -> None:
        """RocketMQ's `abort` file stands in a store root from its start to its proper end."""
        for number in self.directory.lane_numbers():
            lane = self.directory.lane(number)
            self.channel.replace_file(lane.abort_file, str(os.getpid()).encode())

    # ---- stages ---------------------------------------------------------------------------------

    def _launch(self, name: str, before: StageProcess | None = None) -> StageProcess:
        self.channel.create_directory(self.directory.logs_directory, below=self.directory.path)
        log_path = self.directory.logs_directory / f"{name}.log"
        fd = open_log(log_path)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.entry_point(name), str(self.directory.path)],
                stdin=subprocess.PIPE,
                stdout=fd,
                stderr=fd,
                start_new_session=True,
            )
        finally:
            os.close(fd)
        stage = StageProcess(name, process, os.pidfd_open(process.pid), self._rounds(name))
        if before is not None:
            stage.deaths, stage.stillborn = before.deaths, before.stillborn
        return stage

    def _rounds(self, name: str) -> int:
        assert self.control is not None
        return self.control.words[self.control.stage_base(name) + Stage.ROUNDS]

    def entry_point(self, name: str) -> str:
        """The module that is run as a stage."""
        return f"commitlog.stages.{name}"

    def _wait_until_up(self) -> None:
        """Waits until every stage turns its rounds. Raises StageFailed with the last line of its
        log.
        """
        patience = Patience(self.clock, int(_STAGE_START_SECONDS * 1e9))
        assert self.control is not None
        for stage in self.stages.values():
            at = self.control.stage_base(stage.name) + Stage.PID
            while self.control.words[at] != stage.process.pid:
                if stage.process.poll() is not None or patience.is_over():
                    raise StageFailed(f"the {stage.name} did not start: {self._last_words(stage.name)}")
                self.clock.sleep(0.005)

    def _last_words(self, name: str) -> str:
        path = self.directory.logs_directory / f"{name}.log"
        try:
            lines = last_lines(path, channel=self.channel)
        except OSError as error:
            return f"its log can't be read: {error}"
        return f"{lines[-1] if lines else 'it said nothing'} (see {path})"

    # ---- watch ----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Restarts what dies until the owner asks to stop or goes away. Raises StageFailed,
        PoolUnlinked, StoreMoved.
        """
        poller = select.poll()
        poller.register(_STDIN, select.POLLIN)
        for stage in self.stages.values():
            poller.register(stage.pidfd, select.POLLIN)
        while not self.stopping:
            events = {fd for fd, _ in poller.poll(self._until_next_start())}
            self._beat()
            if _STDIN in events:  # "stop", or the owner is gone
                return
            self.store_watch.check()
            for stage in list(self.stages.values()):
                if stage.pidfd in events:
                    poller.unregister(stage.pidfd)
                    self._bury(stage)
                elif stage.start_at and stage.start_at <= self.clock.monotonic_ns():
                    self._launch_again(stage, poller)
                elif not stage.start_at:
                    self._check_heartbeat(stage)

    def _launch_again(self, stage: StageProcess, poller: select.poll) -> None:
        """Or later, where the machine refuses it now: no process, no descriptor, no log."""
        try:
            again = self._launch(stage.name, stage)
        except OSError as error:
            stage.start_at = self.clock.monotonic_ns() + int(_BACKOFF_SECONDS_MAX * 1e9)
            self._warn(f"the {stage.name} can't be started now: {error}")
            return
        self.stages[stage.name] = again
        poller.register(again.pidfd, select.POLLIN)

    def _until_next_start(self) -> float:
        """Milliseconds until a dead stage is to be started again, the usual round at most."""
        now = self.clock.monotonic_ns()
        waits = [(stage.start_at - now) / 1e6 for stage in self.stages.values() if stage.start_at]
        return max(min([_POLL_MS, *waits]), 0)

    def _bury(self, stage: StageProcess) -> None:
        """Notes a stage's death and when to start it again: at once, or with back-off where the
        last ones died young.
        """
        assert self.control is not None
        code = stage.process.wait()
        os.close(stage.pidfd)
        stage.pidfd = -1
        if stage.process.stdin:
            stage.process.stdin.close()
        now = self.clock.monotonic_ns()
        window = self.config.supervisor.restarts_window_ms * 1_000_000
        stage.deaths = [at for at in stage.deaths if now - at < window] + [now]
        if len(stage.deaths) > self.config.supervisor.restarts_max:
            raise StageFailed(
                f"the {stage.name} died {len(stage.deaths)} times in {window // 10**9} s, it is given up: "
                f"{self._last_words(stage.name)}"
            )
        has_worked = self._rounds(stage.name) - stage.rounds >= _ROUNDS_OF_A_LIFE
        stage.stillborn = 0 if has_worked else stage.stillborn + 1
        delay = 0.0 if stage.stillborn < 2 else min(0.05 * 2 ** (stage.stillborn - 2), _BACKOFF_SECONDS_MAX)
        stage.start_at = now + max(int(delay * 1e9), 1)
        when = f"in {delay:g} s" if delay else "at once"
        self.control.words[self.control.stage_base(stage.name) + Stage.RESTARTS] += 1
        self._warn(f"the {stage.name} (pid {stage.process.pid}) died with {code}; it is started again {when}")

    def _check_heartbeat(self, stage: StageProcess) -> None:
        """A stage whose heart stands still for long while this process runs is killed; its lock
        tells when it is gone.
        """
        assert self.heartbeats is not None
        limit_ns, pid = self.config.supervisor.hung_after_ms * 1_000_000, stage.process.pid
        silent_ns = self.heartbeats.silent_for(stage.name, pid, limit_ns, int(_STAGE_START_SECONDS * 1e9))
        if silent_ns:
            self._warn(f"the {stage.name} (pid {pid}) gave no sign for {silent_ns // 10**9} s; it is killed")
            stage.process.kill()

    def _beat(self) -> None:
        assert self.control is not None
        now = self.control.words[Header.SUPERVISOR_HEARTBEAT] = self.clock.monotonic_ns()
        take_sample(self.control.words, now)

    # ---- stop -----------------------------------------------------------------------------------

    def stop(self) -> StopReport:
        """Producers are told, the stages drain in order, the last positions are written, then the
        pool goes. It stays, and nothing is written, where the store's path leads elsewhere."""
        if self.control is None or self.facts is None:
            return StopReport(drained=True, kept=[])
        self.stopping = True  # from here on a SIGTERM hurries
        self.control.words[Header.CLOSING] = 1
        for name in _STOP_ORDER:
            self._stop_stage(self.stages[name])
        try:
            self.store_watch.check_place()
            if self._can_drain_more() and not (self.hurry or self._late):
                self._drain_again()
                self.store_watch.check_place()
            report = close_store(self.directory, self.facts, self.control, self.channel)
        except StoreMoved as error:
            tell_error(error)
            report = StopReport(drained=False, kept=[str(error)])
        self.control.words[Header.SUPERVISOR_PID] = 0
        self.control.close()
        return report

    def _stop_stage(self, stage: StageProcess) -> None:
        if stage.pidfd < 0:  # dead, and waits to be started again
            return
        if stage.process.stdin:
            stage.process.stdin.close()
        patience = Patience(self.clock, self.config.supervisor.stop_timeout_ms * 1_000_000)
        while stage.process.poll() is None:
            if patience.is_over() or self.hurry:
                self._late = True
                late = "after a second signal" if self.hurry else "when its time was up"
                self._warn(f"the {stage.name} was still draining {late}; it is killed")
                stage.process.kill()
                stage.process.wait()
                break
            self.clock.sleep(0.005)
        os.close(stage.pidfd)
        stage.pidfd = -1

    def _can_drain_more(self) -> bool:
        """Whether something is left only because a stage was dead, or asked for a rewrite when the
        committer had gone.
        """
        lanes = self._sound_lanes()
        asked = bool((lanes[:, Lane.REWRITE_WANTED] != lanes[:, Lane.REWRITTEN]).any())
        died = any(stage.process.returncode != 0 for stage in self.stages.values())
        return (asked or died) and self._is_undrained()

    def _is_undrained(self) -> bool:
        lanes = self._sound_lanes()
        left = (lanes[:, Lane.WROTE] != lanes[:, Lane.FLUSHED]) | (lanes[:, Lane.FLUSHED] != lanes[:, Lane.DISPATCHED])
        return bool(left.any())

    def _sound_lanes(self) -> npt.NDArray[np.uint64]:
        """The rows of lanes that a stage can still do something for: not of those that are damaged
        (LaneDamaged).
        """
        assert self.control is not None
        lanes = self.control.lane_table()
        sound: npt.NDArray[np.uint64] = lanes[lanes[:, Lane.COMMITTER_FAULT] != errno.EILSEQ]
        return sound

    def _drain_again(self) -> None:
        """A second and last time, together: what a flusher asks to be written again needs a
        committer.
        """
        log.info("something is left that another round of the stages can do")
        try:
            for name in STAGES:
                self.stages[name] = self._launch(name)
            self._wait_until_up()
        except (StageFailed, OSError) as error:
            self._warn(str(error))
        deadline = self.clock.monotonic_ns() + _DRAIN_AGAIN_NS
        while self._is_undrained() and self.clock.monotonic_ns() < deadline and not self.hurry:
            self.clock.sleep(0.005)
        for name in _STOP_ORDER:
            self._stop_stage(self.stages[name])

    def give_up_start(self) -> None:
        """Nothing half-started stays behind: no stage, and no pool that this start has made. One
        that a producer has found meanwhile and sent to stays for the next start, as after any stop.
        """
        for stage in self.stages.values():
            stage.process.kill()
            stage.process.wait()
        if self.control is not None and self.facts is not None and self._made_pool:
            self.control.words[Header.CLOSING] = 1
            give_up_pool(self.directory, self.facts, self.control, self.channel)

    def request_stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """SIGTERM drains; a second one hurries."""
        self.hurry, self.stopping = self.stopping, True

    def _warn(self, text: str) -> None:
        log.warning(text)
        tell({"warning": text})


def tell(message: dict[str, Any]) -> None:
    """One report to the owner; an owner that is gone hears nothing."""
    try:
        os.write(_STDOUT, to_json(message) + b"\n")
    except BrokenPipeError:
        log.info("the owner is gone: %s", message)


def tell_error(error: CommitLogError) -> None:
    """By its name, to the owner and into the log."""
    log.error(str(error))
    tell({"error": type(error).__name__, "message": str(error)})


def _read_request() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(_STDIN, 65536)
        if not more:
            sys.exit(1)
        line += more
    request: dict[str, Any] = orjson.loads(line)
    return request


def run(supervisor: Supervisor) -> int:
    """The supervisor's whole life; returns the exit code."""
    log_file = supervisor.directory.logs_directory / "supervisor.log"
    try:
        supervisor.start(on_locked=lambda: log_to_file(log_file))
    except (CommitLogError, OSError) as error:
        try:
            supervisor.give_up_start()
        except OSError as late:  # the owner hears why the start has failed all the same
            log.warning("what this start has made stays: %s", late)
        named = error if isinstance(error, CommitLogError) else refusal(error, supervisor.directory.path)
        tell({"error": type(named).__name__, "message": str(named)})
        return 1
    assert supervisor.facts is not None
    tell({"ready": True, "pid": os.getpid(), "segment_bytes": supervisor.facts.segment_bytes})
    code = 0
    try:
        supervisor.watch()
    except (StageFailed, PoolUnlinked, StoreMoved) as error:
        tell_error(error)
        code = 1
    report = supervisor.stop()
    log.info("stopped: %s", report)
    tell({"stopped": True, "drained": report.drained, "kept": report.kept})
    return code


def _allow_descriptors() -> None:
    """A flusher has one for every unflushed segment, a dispatcher one for every queue: the usual
    1,024 are for programs that call select(2), which no stage does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(kind: type[Supervisor] = Supervisor) -> None:
    """Entry of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    occupy_standard_descriptors()  # its own output is a pipe; standard error may be closed
    _allow_descriptors()
    request = _read_request()
    supervisor = kind(Path(request["path"]), Config.from_json(request["config"]))
    signal.signal(signal.SIGTERM, supervisor.request_stop)
    sys.exit(run(supervisor))


if __name__ == "__main__":
    main()

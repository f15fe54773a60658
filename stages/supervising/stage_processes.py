"""The stages of a running store, as processes.

It starts them, notes their deaths, kills those that hang, and stops them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from commitlog.config import Config, SupervisorConfig
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import StageFailed
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import ALL_STAGES, COUNTER_MAX, Stage
from commitlog.stages.supervising.forked_stage import REFUSED, ForkedStage
from commitlog.stages.supervising.heartbeats import Heartbeats, Patience
from commitlog.stages.supervising.log_files import last_lines, open_log_or_nothing
from commitlog.system.clock import Clock
from commitlog.text.lines import parse_log_line

STOP_ORDER = ("committer", "flusher", "ha_service", "dispatcher", "allocator")
"""Each stage drains what the one before it has done. A store may lack some."""
assert set(STOP_ORDER) == set(ALL_STAGES)
_START_NS = 20_000_000_000
_BACKOFF_SECONDS_MAX = 2.0
_ROUNDS_OF_A_LIFE = 3
"""A stage that has turned this many rounds was able to work.

If it dies, for any reason, it is started again at once.
"""
_POLL_SECONDS = 0.001


def stage_module(name: str) -> str:
    """The module that is run as a stage."""
    return f"commitlog.stages.{name}"


@dataclass
class StageProcess:
    """One stage as the supervisor sees it."""

    name: str
    process: ForkedStage
    pidfd: int
    """The process's descriptor; −1 once the stage is dead and its death is noted."""
    rounds: int
    """How many rounds the earlier stages of its name have turned."""
    deaths: list[int] = field(default_factory=list)
    """When stages of its name died, monotonic ns, within the window."""
    stillborn: int = 0
    """How many stages in a row died before they could work."""
    start_at: int = 0
    """When the stage is to be started again, monotonic ns; 0 while it runs."""


class StageProcesses:
    """All stages of one store, by name.

    `warn` is called for deaths and kills. `module_of` gives the module that is run as a stage.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        control: ControlRegion,
        config: Config,
        channel: FileChannel,
        clock: Clock,
        warn: Callable[[str], None],
        module_of: Callable[[str], str] = stage_module,
    ) -> None:
        self.by_name: dict[str, StageProcess] = {}
        self.heartbeats = Heartbeats(control, clock)
        self._directory, self._control, self._config = directory, control, config.supervisor
        self._names = config.stages
        self._channel, self._clock, self._warn, self._module_of = channel, clock, warn, module_of
        self._said = ""

    # ---- starting -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all stages, and waits until each of them works.

        Raises OSError, and StageFailed with the last line of a stage's log.
        """
        for name in self._names:
            self._control.stage_row(name)[Stage.RESTARTS] = 0  # a pool has those of the run before
            self.by_name[name] = self._launch(name)
        patience = Patience(self._clock, _START_NS)
        for stage in self.by_name.values():
            row = self._control.stage_row(stage.name)
            while row[Stage.PID] != stage.process.pid:
                if stage.process.poll() is not None or patience.is_over():
                    raise StageFailed(f"the {stage.name} did not start: {self._last_words(stage.name)}")
                self._clock.sleep(_POLL_SECONDS)

    def _launch(self, name: str, before: StageProcess | None = None) -> StageProcess:
        with contextlib.suppress(OSError):  # the open says why
            self._channel.create_directory(self._directory.logs_directory, below=self._directory.path)
        fd, complaint = open_log_or_nothing(self._directory.logs_directory / f"{name}.log")
        try:
            process = ForkedStage(self._module_of(name), self._directory.path, fd)
        finally:
            os.close(fd)
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:  # nobody would watch it
            process.kill()
            process.wait()
            raise
        self._say(complaint)
        stage = StageProcess(name, process, pidfd, self._rounds(name))
        if before is not None:
            stage.deaths, stage.stillborn = before.deaths, before.stillborn
        return stage

    def _rounds(self, name: str) -> int:
        return self._control.stage_row(name)[Stage.ROUNDS]

    def _last_words(self, name: str) -> str:
        path = self._directory.logs_directory / f"{name}.log"
        try:
            lines = last_lines(path, channel=self._channel)
        except OSError as error:
            return f"its log can't be read: {error}"
        last = lines[-1] if lines else "it said nothing"
        said = parse_log_line(last) if last.startswith("{") else None
        return f"{said.message if said else last} (see {path})"

    def reload(self, config: SupervisorConfig) -> None:
        """Takes new knobs, and tells the stages to read theirs from `store.json` again.

        A stage that is dead reads them when it is started again.
        """
        self._config = config
        for stage in self.by_name.values():
            if not stage.process.stdin.closed:
                with contextlib.suppress(BrokenPipeError):  # it has just died
                    stage.process.stdin.write(b"reload\n")

    # ---- restarting -----------------------------------------------------------------------------

    def restart(self, stage: StageProcess) -> StageProcess | None:
        """Starts a dead stage again.

        Returns None where the machine refuses it now (no process, no descriptor, no log). Then it
        is tried again later.
        """
        try:
            again = self._launch(stage.name, stage)
        except OSError as error:
            stage.start_at = self._clock.monotonic_ns() + int(_BACKOFF_SECONDS_MAX * 1e9)
            self._say(f"the {stage.name} can't be started now: {error}")
            return None
        self.by_name[stage.name] = again
        return again

    def _say(self, text: str) -> None:
        """Warns of a trouble that may come every second. The same words in a row are said once."""
        if text and text != self._said:
            self._said = text
            self._warn(text)

    def next_start(self) -> int | None:
        """When the next dead stage is to be started again (monotonic ns).

        None where no stage is dead.
        """
        return min((stage.start_at for stage in self.by_name.values() if stage.start_at), default=None)

    def bury(self, stage: StageProcess) -> None:
        """Notes a stage's death, and when to start it again.

        The stage is started again at once, or after a growing delay if its last processes died
        young. Raises StageFailed after too many deaths. A death because the system refused
        something (a full disk, no descriptor) does not count: it may go on when the system has room
        again.
        """
        code = stage.process.wait()
        os.close(stage.pidfd)
        stage.pidfd = -1
        stage.process.stdin.close()
        now = self._clock.monotonic_ns()
        window = self._config.restarts_window_ms * 1_000_000
        was_refused = code == REFUSED
        stage.deaths = [at for at in stage.deaths if now - at < window] + [now] * (not was_refused)
        if len(stage.deaths) > self._config.restarts_max:
            raise StageFailed(
                f"the {stage.name} died {len(stage.deaths)} times in {window // 10**9} s, it is given up: "
                f"{self._last_words(stage.name)}"
            )
        has_worked = self._rounds(stage.name) - stage.rounds >= _ROUNDS_OF_A_LIFE
        stage.stillborn = 0 if has_worked else stage.stillborn + 1
        delay = 0.0 if stage.stillborn < 2 else min(0.05 * 2 ** (stage.stillborn - 2), _BACKOFF_SECONDS_MAX)
        stage.start_at = now + max(int(delay * 1e9), 1)
        when = f"in {delay:g} s" if delay else "at once"
        row = self._control.stage_row(stage.name)
        restarts = row[Stage.RESTARTS]
        row[Stage.RESTARTS] = restarts + 1 if restarts <= COUNTER_MAX else 1  # it may hold garbage
        if was_refused:
            self._say(f"the {stage.name} has to wait: {self._last_words(stage.name)}")
        else:
            self._warn(f"the {stage.name} (pid {stage.process.pid}) died with {code}; it is started again {when}")

    def kill_if_hung(self, stage: StageProcess) -> None:
        """Kills a stage that has had no heartbeat for long while this process ran.

        The stage's lock shows when the stage is gone.
        """
        limit_ns, pid = self._config.hung_after_ms * 1_000_000, stage.process.pid
        silent_ns = self.heartbeats.silent_for(stage.name, pid, limit_ns, _START_NS)
        if silent_ns:
            self._warn(f"the {stage.name} (pid {pid}) gave no sign for {silent_ns // 10**9} s; it is killed")
            stage.process.kill()

    # ---- stopping -------------------------------------------------------------------------------

    def stop(self, is_hurried: Callable[[], bool]) -> bool:
        """Lets the stages drain and leave, one after the other.

        A stage that needs too long is killed. Once `is_hurried` is true, all of them are killed.
        Returns whether none had to be killed.
        """
        were_done = [self._stop(self.by_name[name], is_hurried) for name in STOP_ORDER if name in self.by_name]
        return all(were_done)

    def _stop(self, stage: StageProcess, is_hurried: Callable[[], bool]) -> bool:
        if stage.pidfd < 0:  # dead, and to be started again later
            return True
        stage.process.stdin.close()
        is_done = True
        patience = Patience(self._clock, self._config.stop_timeout_ms * 1_000_000)
        while stage.process.poll() is None:
            if patience.is_over() or is_hurried():
                is_done = False
                late = "after a second signal" if is_hurried() else "when its time was up"
                self._warn(f"the {stage.name} was still draining {late}; it is killed")
                stage.process.kill()
                stage.process.wait()
                break
            self._clock.sleep(_POLL_SECONDS)
        os.close(stage.pidfd)
        stage.pidfd = -1
        return is_done

    def has_failed(self) -> bool:
        """Whether a stage ended with an error, once all of them have ended."""
        return any(stage.process.returncode != 0 for stage in self.by_name.values())

    def kill(self) -> None:
        """Kills all of them, and waits until they are gone."""
        for stage in self.by_name.values():
            stage.process.kill()
            stage.process.wait()

"""A store that is open: starts its stages, watches them, and stops them in order."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import orjson

from commitlog.config import Config
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.replication_troubles import replication_troubles
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import CommitLogError, StageFailed, StoreMoved, refusal
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.counters import take_sample
from commitlog.shm.layout import HA_SERVICE, Header, Lane
from commitlog.shm.memory_order import observe
from commitlog.shm.row_check import check_row
from commitlog.stages.supervising.reporting import tell, tell_error, warn
from commitlog.stages.supervising.stage_processes import StageProcess, StageProcesses, stage_module
from commitlog.stages.supervising.store_closing import close_store, give_up_pool, is_undrained, rewrites_are_left
from commitlog.stages.supervising.store_watch import StoreWatch
from commitlog.status import StopReport
from commitlog.system.clock import LONG_AGO_NS, Clock

_STDIN, _STDIN_BYTES = 0, 1 << 16
_POLL_MS = 200
_POLL_SECONDS = 0.005
_DRAIN_AGAIN_NS = 3_000_000_000
_NOTE_AGAIN_NS = 10_000_000_000

log = logging.getLogger(__name__)


@dataclass
class StopRequest:
    """The requests of SIGTERM.

    The first signal asks to stop. A signal that comes while the store stops asks to hurry.
    """

    stop: bool = False
    is_stopping: bool = False
    hurry: bool = False

    def on_signal(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """The handler of SIGTERM."""
        self.hurry, self.stop = self.is_stopping, True


class RunningStore:
    """An open store: its locks are held, and its pool belongs to this run.

    `made_pool` says that this start has made the pool. `stages` are the processes; there are none
    before `start_stages`.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        facts: StoreFacts,
        control: ControlRegion,
        config: Config,
        channel: FileChannel,
        clock: Clock,
        *,
        made_pool: bool,
        report: Callable[[str], None] = warn,
        module_of: Callable[[str], str] = stage_module,
        request: StopRequest | None = None,
    ) -> None:
        self.directory, self.facts, self.control = directory, facts, control
        self.channel, self.clock, self.report = channel, clock, report
        self.request = request or StopRequest()
        self.config = config
        self.store_watch = StoreWatch(directory, control, facts.segment_bytes)
        self.stages = StageProcesses(directory, control, config, channel, clock, report, module_of)
        self._made_pool = made_pool
        self._note_lanes_at = LONG_AGO_NS
        self._heard = b""  # the owner's last words, without the end of a line
        self._told: list[str] = []
        """The troubles of replication that the owner was told of."""

    def start_stages(self) -> None:
        """Starts the stages, and returns when all of them work.

        Raises StageFailed, OSError; then the start is given up.
        """
        try:
            self.stages.start()
        except (CommitLogError, OSError):
            self.give_up()
            raise

    def beat(self) -> None:
        """Shows that the supervisor lives, and sometimes takes a sample of the throughput."""
        now = self.control.words[Header.SUPERVISOR_HEARTBEAT] = self.clock.monotonic_ns()
        take_sample(self.control.words, now)

    def give_up(self) -> None:
        """Ends a start that failed: it leaves no stage, and no pool that this start has made.

        A producer may have found the pool meanwhile and sent to it. Then the pool stays for the
        next start, as after any stop. Only an OSError is passed over: damaged files raise nothing
        here, so any other error is a bug, and its traceback is wanted.
        """
        try:
            self.stages.kill()
            if self._made_pool:
                self.control.words[Header.CLOSING] = 1
                give_up_pool(self.directory, self.facts, self.control, self.channel)
        except OSError as error:  # the owner is told nevertheless why the start has failed
            log.warning("what this start has made stays: %s", error)
        finally:
            self.control.close()

    # ---- watching -------------------------------------------------------------------------------

    def watch(self) -> None:
        """Starts stages that died again, and reloads, until the owner asks to stop or goes away.

        Raises StageFailed, PoolUnlinked, StoreMoved, StoreSuperseded.
        """
        poller = select.poll()
        poller.register(_STDIN, select.POLLIN)
        for stage in self.stages.by_name.values():
            poller.register(stage.pidfd, select.POLLIN)
        while not self.request.stop:
            events = {fd for fd, _ in poller.poll(self._milliseconds_to_wait())}
            self.beat()
            if _STDIN in events and self._is_told_to_stop():
                return
            self.store_watch.check()
            self._note_lanes()
            if HA_SERVICE in self.stages.by_name:
                self._tell_troubles()
            for stage in list(self.stages.by_name.values()):
                self._watch_stage(stage, events, poller)

    def _tell_troubles(self) -> None:
        """Tells the owner what keeps replicas from coming, once."""
        found = replication_troubles(self.directory).lines()
        for line in found:
            if line not in self._told:
                self.report(line)
        self._told = found

    def _note_lanes(self) -> None:
        """Writes into `store.json` which lanes have messages, once for each lane.

        If a whole lane is lost, and the pool too, nothing else tells that the lane existed. The
        offset beside a lane's number is a record's end.
        """
        ends = self.control.lane_table()[:, Lane.DISPATCHED]
        new = {
            lane: observe(self.control.row(lane), Lane.DISPATCHED)
            for lane in ends.nonzero()[0].tolist()
            if lane not in self.facts.lanes and not check_row(self.control.row(lane), self.facts.segment_bytes)
        }
        if not new or self.clock.monotonic_ns() < self._note_lanes_at:
            return
        facts = replace(self.facts, lanes={**self.facts.lanes, **new})
        try:
            self.directory.save(facts)
        except OSError as error:
            log.warning("which lanes there are is not noted yet: %s", error.strerror)
            self._note_lanes_at = self.clock.monotonic_ns() + _NOTE_AGAIN_NS
        else:
            self.facts = facts

    def _is_told_to_stop(self) -> bool:
        """Does what the owner says. True when that is "stop", or when the owner is gone.

        Each line is an order: "stop", or a numbered configuration as JSON. Raises StoreMoved.
        """
        said = os.read(_STDIN, _STDIN_BYTES)
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            if line == b"stop":
                return True
            order = orjson.loads(line)
            tell({"reload": order["reload"], **self._reload(Config.from_json(order["config"]))})
        return not said

    def _reload(self, wanted: Config) -> dict[str, Any]:
        """Takes a new configuration. Returns, for the owner, when each changed knob takes effect.

        The configuration is in `store.json` before a stage hears of it, because a stage that is
        started later reads it there, and so does a new producer. Raises StoreMoved.
        """
        self.store_watch.check_place()
        config, changed = self.config.reloaded(wanted)
        facts = replace(self.facts, config=config.to_json())
        try:
            self.directory.save(facts)
        except OSError as error:
            log.warning("the configuration is not reloaded: %s", error)
            named = refusal(error, self.directory.path, "reloading the configuration")
            return {"reloaded": None, "error": type(named).__name__, "message": str(named)}
        self.config, self.facts = config, facts
        self.stages.reload(config.supervisor)
        log.info("reloaded: %s", "; ".join(f"{key} {when}" for key, when in changed.items()) or "nothing has changed")
        return {"reloaded": changed}

    def _watch_stage(self, stage: StageProcess, events: set[int], poller: select.poll) -> None:
        if stage.pidfd in events:
            poller.unregister(stage.pidfd)
            self.stages.bury(stage)
        elif stage.start_at and stage.start_at <= self.clock.monotonic_ns():
            again = self.stages.restart(stage)
            if again is not None:
                poller.register(again.pidfd, select.POLLIN)
        elif not stage.start_at:
            self.stages.kill_if_hung(stage)

    def _milliseconds_to_wait(self) -> float:
        """The time until a dead stage is to be started again, one round at most."""
        start_at = self.stages.next_start()
        if start_at is None:
            return _POLL_MS
        return max(min(_POLL_MS, (start_at - self.clock.monotonic_ns()) / 1e6), 0)

    # ---- stopping -------------------------------------------------------------------------------

    def stop_in_order(self) -> StopReport:
        """Stops the store.

        It tells producers, lets the stages drain in order, writes the last positions, and removes
        the pool. Where the store's path leads elsewhere, the pool stays, and nothing is written.
        """
        self.request.is_stopping = True
        self.control.words[Header.CLOSING] = 1
        all_had_time = self.stages.stop(self._is_hurried)
        try:
            self.store_watch.check_place()
            if self._can_drain_more() and all_had_time and not self.request.hurry:
                self._drain_again()
                self.store_watch.check_place()
            report = close_store(self.directory, self.facts, self.control, self.channel)
        except StoreMoved as error:
            tell_error(error)
            report = StopReport(drained=False, kept=(str(error),))
        self.control.words[Header.SUPERVISOR_PID] = 0
        self.control.close()
        return report

    def _is_hurried(self) -> bool:
        return self.request.hurry

    def _can_drain_more(self) -> bool:
        """Whether a second run of the stages could drain the rest.

        It could if work is left because a stage was dead, or because a stage asked for a rewrite
        after the committer had left.
        """
        is_worth_it = rewrites_are_left(self.control, self.facts.segment_bytes) or self.stages.has_failed()
        return is_worth_it and self._is_undrained()

    def _is_undrained(self) -> bool:
        return is_undrained(self.control, self.facts.segment_bytes)

    def _drain_again(self) -> None:
        """Lets all stages run a second and last time.

        They run together, because a rewrite that a flusher asks for needs a committer.
        """
        log.info("something is left that another round of the stages can do")
        try:
            self.stages.start()
        except (StageFailed, OSError) as error:
            self.report(str(error))
        deadline = self.clock.monotonic_ns() + _DRAIN_AGAIN_NS
        while self._is_undrained() and self.clock.monotonic_ns() < deadline and not self.request.hurry:
            self.clock.sleep(_POLL_SECONDS)
        self.stages.stop(self._is_hurried)

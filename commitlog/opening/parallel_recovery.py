"""Recovers the lanes of a store side by side, each in a process of its own.

Half of the work is Python's, even where the native core scans, so threads would wait for each
other: recovering two lanes by threads took 1.1 to 1.3 times as long.

A child is forked, so it starts at once and shares the modules that are loaded. It inherits the
store's locks, so nobody starts the store while a child is at work. It writes its lines and its
result to a pipe, as JSON, and ends by itself when nobody reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from commitlog import errors
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.mapped_file_queue import MappedFileQueue
from commitlog.disk.store_directory import LaneDirectory
from commitlog.errors import CommitLogError
from commitlog.opening import Report
from commitlog.opening.recovery import LaneEnd, recover_lane
from commitlog.system.process_title import set_process_title

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

WORTH_BYTES = 16 << 20
"""A lane with fewer bytes of log is recovered in less time than a process takes to start."""
_CHILDREN_MOST = 4
"""How many children run at a time. Each takes 25 MB; with the supervisor all stay below 200 MB."""

_Recover = Callable[[LaneDirectory, Report], LaneEnd]


def recover_lanes(
    lane_directories: Sequence[LaneDirectory],
    segment_bytes: int,
    channel: FileChannel,
    report: Report,
    *,
    queue_file_bytes: int,
    known_ends: Mapping[int, int] = MappingProxyType({}),
    store_id: str = "",
) -> dict[int, LaneEnd]:
    """Recovers several lanes: number → the end of its log as recovered.

    For `known_ends` (by lane) and `store_id`, see `recover_lane`.

    Raises what `recover_lane` raises, for the first lane that failed. After a failure no further
    lane is begun, and the lanes at work are waited for.
    """
    large: list[LaneDirectory] = []
    small: list[LaneDirectory] = []
    for lane_directory in lane_directories:
        (large if _log_bytes(lane_directory, segment_bytes, channel) >= WORTH_BYTES else small).append(lane_directory)

    def recover(lane_directory: LaneDirectory, report: Report) -> LaneEnd:
        return recover_lane(
            lane_directory, segment_bytes, channel, report,
            queue_file_bytes=queue_file_bytes, known_end=known_ends.get(lane_directory.number, 0), store_id=store_id,
        )  # fmt: skip

    children = min(len(large), len(os.sched_getaffinity(0)), _CHILDREN_MOST)
    if children < 2:
        return {lane_directory.number: recover(lane_directory, report) for lane_directory in lane_directories}
    ends = {lane_directory.number: recover(lane_directory, report) for lane_directory in small}
    return ends | _Children(recover, report).run(large, children)


def _log_bytes(lane_directory: LaneDirectory, segment_bytes: int, channel: FileChannel) -> int:
    try:
        return len(MappedFileQueue(lane_directory.commitlog, segment_bytes, channel).starts) * segment_bytes
    except OSError:  # recovery reports the problem
        return 0


class _Children:
    def __init__(self, recover: _Recover, report: Report) -> None:
        self._recover, self._report = recover, report
        self._running: dict[Connection, tuple[LaneDirectory, BaseProcess]] = {}
        self._ends: dict[int, LaneEnd] = {}
        self._errors: list[CommitLogError] = []

    def run(self, lane_directories: Sequence[LaneDirectory], most: int) -> dict[int, LaneEnd]:
        from multiprocessing.connection import wait

        waiting = list(lane_directories)
        try:
            while self._running or (waiting and not self._errors):
                while waiting and not self._errors and len(self._running) < most:
                    self._start(waiting.pop(0))
                ready = wait(list(self._running))
                for pipe in [pipe for pipe in self._running if pipe in ready]:
                    self._listen(pipe)
        finally:
            for pipe in list(self._running):  # `report` raised
                self._end(pipe)
        if self._errors:
            raise self._errors[0]
        return self._ends

    def _start(self, lane_directory: LaneDirectory) -> None:
        import multiprocessing

        mine, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        process = context.Process(
            target=self._work, args=(lane_directory, mine, theirs), name=f"recovery-{lane_directory.number}"
        )
        process.start()
        theirs.close()
        self._running[mine] = lane_directory, process

    def _work(self, lane_directory: LaneDirectory, mine: Connection, theirs: Connection) -> None:
        """The child's work: sends lines, then the lane's end or an error.

        It keeps no reading end of a pipe, so that it notices a dead parent.
        """

        def say(**what: Any) -> None:
            theirs.send_bytes(json.dumps(what).encode())  # orjson refuses names that are not UTF-8

        set_process_title(f"recovery of lane {lane_directory.number}", lane_directory.path.parent.parent)
        for pipe in (mine, *self._running):
            pipe.close()
        with contextlib.suppress(BrokenPipeError):
            try:
                say(end=asdict(self._recover(lane_directory, lambda line: say(line=line))))
            except CommitLogError as error:
                say(error=type(error).__name__, text=str(error))

    def _listen(self, pipe: Connection) -> None:
        lane_directory, process = self._running[pipe]
        try:
            said = json.loads(pipe.recv_bytes())
        except EOFError:
            process.join()
            said = {
                "error": "RecoveryError",
                "text": f"lane {lane_directory.number}: the process that recovered it ended with {process.exitcode}; "
                f"do the same again, recovery goes on where it was",
            }
        if "line" in said:
            self._report(said["line"])
            return
        if "end" in said:
            end = said["end"]
            self._ends[lane_directory.number] = LaneEnd(**{**end, "findings": tuple(end["findings"])})
        else:
            kind: type[CommitLogError] = getattr(errors, said["error"])
            self._errors.append(kind.__new__(kind, said["text"]))  # not every error is made of its text alone
        self._end(pipe)

    def _end(self, pipe: Connection) -> None:
        _, process = self._running.pop(pipe)
        pipe.close()
        process.join()
        process.close()

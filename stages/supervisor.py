"""Owns a running store: opens it, starts the stages, watches them, and stops them in order.

It is a process of its own, started by `commitlog.Store.open`. Its standard input comes from the
owner: the first line is the request (JSON), a later one is another configuration (JSON) or "stop",
and the end of the input means stop. Its standard output has reports, one JSON object a line:
`ready`, `warning`, `error`, `reloaded`, `stopped`.

The supervisor holds the store's lock for its whole life, and all stage locks before anything is
recovered. A stage takes its own lock when it starts. So there is never a second one, whatever
happened to the first.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from commitlog.config import Config
from commitlog.disk.descriptors import occupy_standard_descriptors
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import (
    CommitLogError,
    NotEnoughDescriptors,
    PoolUnlinked,
    StageFailed,
    StoreMoved,
    StoreSuperseded,
    refusal,
)
from commitlog.stages import stage_process  # noqa: F401  for the stages: a child that is forked has it then
from commitlog.stages.supervising.log_files import log_to_file
from commitlog.stages.supervising.reporting import tell, tell_error
from commitlog.stages.supervising.running_store import RunningStore, StopRequest
from commitlog.stages.supervising.stage_processes import stage_module
from commitlog.stages.supervising.starting import StoreOpening
from commitlog.system.process_title import set_process_title

_STDIN = 0
_DESCRIPTORS_LEAST, _DESCRIPTORS_MAX = 64, 65_536

log = logging.getLogger(__name__)


class Supervisor:
    """See the module. `module_of` gives the module that is run as a stage."""

    def __init__(
        self, path: Path, config: Config, channel: FileChannel = DISK, module_of: Callable[[str], str] = stage_module
    ) -> None:
        self.request, self._config = StopRequest(), config
        self.opening = StoreOpening(path, config, channel, module_of=module_of, request=self.request)

    def run(self) -> int:
        """The supervisor's whole life. Returns when the store is stopped: the exit code."""
        try:
            store = self._start()
        except (CommitLogError, OSError) as error:
            named = (
                error
                if isinstance(error, CommitLogError)
                else refusal(error, self.opening.directory.path, "starting the store")
            )
            tell({"error": type(named).__name__, "message": str(named)})
            return 1
        tell({"ready": True, "pid": os.getpid(), "segment_bytes": store.facts.segment_bytes})
        code = 0
        try:
            store.watch()
        except (StageFailed, PoolUnlinked, StoreMoved, StoreSuperseded) as error:
            tell_error(error)
            code = 1
        report = store.stop_in_order()
        log.info("stopped: %s", report)
        tell({"stopped": True, "drained": report.drained, "kept": report.kept})
        return code

    def _start(self) -> RunningStore:
        _allow_descriptors(self.opening.directory.path)
        log_file = self.opening.directory.logs_directory / "supervisor.log"
        store = self.opening.run(on_locked=lambda: log_to_file(log_file, self._config.logs))
        store.start_stages()
        return store


def _read_request() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(_STDIN, 65536)
        if not more:
            sys.exit(1)
        line += more
    request: dict[str, Any] = orjson.loads(line)
    return request


def _allow_descriptors(path: Path) -> None:
    """Raises the limit of descriptors, or NotEnoughDescriptors where that is not allowed.

    A flusher has one descriptor for every unflushed segment, a dispatcher one for every queue. The
    usual 1,024 are for programs that call select(2), which no stage does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if wanted < _DESCRIPTORS_LEAST:
        raise NotEnoughDescriptors(
            f"{path}: a stage may open {wanted} files, and needs {_DESCRIPTORS_LEAST}: raise the hard limit (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(make: Callable[[Path, Config], Supervisor] = Supervisor) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # what a program ignores or blocks, its children do too
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    occupy_standard_descriptors()  # its own output is a pipe; standard error may be closed
    request = _read_request()
    set_process_title("supervisor", request["path"])
    supervisor = make(Path(request["path"]), Config.from_json(request["config"]))
    supervisor.opening.only_drains = request["only_drains"]
    signal.signal(signal.SIGTERM, supervisor.request.on_signal)
    code = supervisor.run()
    os._exit(code)  # nothing is left to be written, and to take the interpreter apart takes 60 ms of a core


if __name__ == "__main__":
    main()

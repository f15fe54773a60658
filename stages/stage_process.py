"""The process of a stage: `python -P -m commitlog.stages.<name> STORE`."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import zmq

from commitlog.config import LogsConfig
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, DiskError, is_refusal
from commitlog.shm.layout import ALL_STAGES
from commitlog.stages.base_stage import BaseStage
from commitlog.stages.supervising.forked_stage import REFUSED
from commitlog.stages.supervising.log_files import log_to_own_output
from commitlog.system.process_title import set_process_title

log = logging.getLogger(__name__)


def main(kind: type[BaseStage]) -> None:
    """Runs a stage process: `python -P -m commitlog.stages.<name> STORE`.

    Its output goes to the stage's log file in the store.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert kind.name in ALL_STAGES
    set_process_title(kind.name, sys.argv[1])
    log_file = StoreDirectory(sys.argv[1]).logs_directory / f"{kind.name}.log"
    log_to_own_output(log_file, LogsConfig())
    try:
        stage = kind(Path(sys.argv[1]))
        log_to_own_output(log_file, stage.config.logs)  # the stage knows it from the store's configuration
        signal.signal(signal.SIGTERM, stage.request_stop)
        stage.run()
    except (CommitLogError, OSError, zmq.ZMQError, MemoryError) as error:
        refused = error.__cause__ if isinstance(error, DiskError) else error
        if refused is not None and is_refusal(refused):
            text = "the %s ends, and is started again, because the system refuses what it needs: %s"
            log.error(text, kind.name, error)
            sys.exit(REFUSED)
        if not isinstance(error, CommitLogError):
            raise
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(1)

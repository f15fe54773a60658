"""A stage's process: a child that the supervisor forks.

The supervisor has imported nearly all that a stage needs, so a child is at work after some 20 ms.
A new interpreter takes 140 ms of a core for each stage, and 25 MB of memory that are not shared.
The supervisor has one thread, so a fork is safe. The child lets go of all that it inherits: its
descriptors, its handlers of signals and logs. `python -P -m commitlog.stages.<name> STORE` is the
same stage in an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

REFUSED = os.EX_TEMPFAIL
"""The exit code of a stage that the system refused space, descriptors or memory."""


class ForkedStage:
    """The child, as its parent sees it, with some methods of `subprocess.Popen`."""

    def __init__(self, module: str, store: Path, log_fd: int) -> None:
        """Forks a child that runs `module` with the store as its argument.

        The child's standard input is a pipe whose end means stop, and its output goes to `log_fd`.
        Raises OSError.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # it can't be written to now, and is none of the stage's
                stream.flush()  # or the child would say it again
        leash, held = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(leash)
            os.close(held)
            raise
        if self.pid == 0:
            _run(module, store, leash, log_fd)
        os.close(leash)
        self.stdin = os.fdopen(held, "wb", buffering=0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it lives."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Waits for its end."""
        return self._wait(0)

    def _wait(self, flags: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run(module: str, store: Path, leash: int, log_fd: int) -> NoReturn:
    """The child's life. It never returns to what its parent was doing."""
    code = 1
    try:
        _let_go(leash, log_fd)
        sys.argv = [module, str(store)]
        runpy.run_module(module, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _let_go(leash: int, log_fd: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for handler in list(logging.root.handlers):  # before its descriptor's number is another file's
        logging.root.removeHandler(handler)
        handler.close()
    os.dup2(leash, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    gc.freeze()  # what is inherited names descriptors that are closed: nothing of it may be collected

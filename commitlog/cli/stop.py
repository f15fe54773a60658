"""`commitlog stop STORE`: ends the stages that another terminal or program runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoreArgument, duration, print_lines
from commitlog.text.lines import for_shell

if TYPE_CHECKING:
    from commitlog.reading.view import StoreView

_WAIT_MS_MAX = (1 << 31) - 1
"""The longest wait of poll(2), some 24 days."""


def stop(
    store: StoreArgument,
    timeout: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="TIME",
            show_default=False,
            help="How long to wait until it has stopped.  [default: 30s]",
        ),
    ] = 30.0,
) -> None:
    """Stop a running STORE from another terminal; all is on disk then.

        commitlog stop data/events
        commitlog stop data/events --timeout 2m

    The stages drain, as after a Ctrl-C in `commitlog run`, which ends too. Producers that go on
    raise StoreStopped. A store that does not run is left as it is.
    """
    from commitlog.client.statistics import store_statistics
    from commitlog.disk.store_directory import store_killed
    from commitlog.errors import StoreRunning
    from commitlog.reading.view import StoreView

    with contextlib.closing(StoreView(store)) as view:
        view.directory.check_owner()
        facts = store_statistics(view)
        if not facts.running:
            print_lines([f"{view.path} does not run" + (f": {store_killed(view.path)}" if facts.killed else "")])
            return
        if not _end_supervisor(view, timeout, is_stopping=facts.closing):
            raise StoreRunning(
                f"{view.path} still drains after {timeout:g} s: the same command waits on, "
                f"`commitlog health {for_shell(view.path)}` says what keeps it"
            )
        drained = view.directory.load().pool is None
    how = ", all is on disk" if drained else "; the next start goes on with the pool; logs/supervisor.log says why"
    print_lines([f"stopped {view.path}{how}"])


def _end_supervisor(view: StoreView, timeout: float, *, is_stopping: bool) -> bool:
    """Asks the supervisor to stop, and waits. Returns whether it has ended in time.

    One that stops already is not asked again, because a second signal would hurry it. Raises
    StoreRefused.
    """
    from commitlog.disk.locks import is_running, present_holder_of
    from commitlog.disk.processes import has_open
    from commitlog.errors import StoreRefused

    lock_file = view.directory.lock_file
    holder = present_holder_of(lock_file, view.channel)
    with contextlib.ExitStack() as opened, contextlib.suppress(ValueError, OSError):
        process = os.pidfd_open(int(holder))
        opened.callback(os.close, process)
        if has_open(int(holder), lock_file):  # from here on this process is meant, whoever gets its pid later
            if not is_stopping:
                signal.pidfd_send_signal(process, signal.SIGTERM)
            poller = select.poll()
            poller.register(process, select.POLLIN)
            return bool(poller.poll(min(timeout * 1000, _WAIT_MS_MAX)))
    if not is_running(view.directory, None):  # it has ended meanwhile
        return True
    raise StoreRefused(
        f"{view.path} runs, and its supervisor (pid {holder}) is no process of this machine or container: stop it where it "
        f"runs"
    )

"""`commitlog run STORE`: the stages in the foreground, for many programs."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import NewStoreArgument, confirm, print_lines
from commitlog.cli.end_signals import on_end_signal
from commitlog.cli.output import only_says
from commitlog.errors import CommitLogError, StoreRefused
from commitlog.system.clock import SignalEvent
from commitlog.text.lines import printable

if TYPE_CHECKING:
    from commitlog.client.store import Store
    from commitlog.disk.store_directory import StoreDirectory


def run(
    store: NewStoreArgument,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file; `commitlog config` prints one.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a backup becomes a store of its own.")] = False,
) -> None:
    """Run the stages of STORE in the foreground, until Ctrl-C.

        commitlog run data/events
        commitlog run data/events --config my.toml

    Without --config it has the configuration of its last start. Ctrl-C, SIGTERM or `commitlog stop
    STORE` drains and stops. A second signal hurries, and the next start goes on from there. SIGHUP
    reads the configuration's file again.
    """
    from commitlog.cli.service_manager import ServiceManager
    from commitlog.client.store import Store
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.opening.stray_pools import said_of_strays, stray_pools
    from commitlog.text.lines import log_to

    only_says()
    log_to(sys.stderr, logging.WARNING, "commitlog: %(message)s")
    stop, manager = SignalEvent(), ServiceManager()
    opened: Store | None = None
    if not yes:
        _ask_for_backup(StoreDirectory(store))

    def end() -> None:
        if stop.is_set():
            if opened is None:
                raise KeyboardInterrupt
            opened.hurry()
        stop.set()

    # Before the start, which may take long. In a container the first process does not even receive
    # a signal that it has no handler for.
    on_end_signal(end)
    reload = SignalEvent()
    if config is not None:  # otherwise SIGHUP ends the command, as it does when its terminal is closed
        signal.signal(signal.SIGHUP, lambda *_: reload.set())
    with manager.starting():
        opened = Store.open(store, config)
    manager.ready(opened.path)
    print_lines([f"running {opened.path}, segments of {opened.segment_bytes:,} bytes; Ctrl-C drains and stops"])
    print_lines((f"commitlog: {text}" for text in said_of_strays(stray_pools())), err=True)
    while opened.running and not stop.wait(0.2):
        if config is not None and reload.is_set():
            reload.clear()
            _reload(opened, config)
        manager.watch()
    manager.stopping()
    if stop.is_set():  # otherwise another process has stopped it, or the stages have failed: `close` raises that
        typer.echo("draining")
    report = opened.close()
    print_lines(f"the pool stays: {reason}" for reason in report.kept)
    typer.echo("stopped, all is on disk" if report.drained else "stopped; the next start goes on with the pool")


def _ask_for_backup(directory: StoreDirectory) -> None:
    """Asks whether a backup is to be started. Raises StoreRefused where nobody can be asked."""
    from commitlog.disk.store_directory import BACKUP_STARTS, refuse_backup

    try:
        refuse_backup(directory)
    except StoreRefused:
        if not sys.stdin.isatty():
            raise
        confirm(f"{directory.path} is a backup: {BACKUP_STARTS}. Start it?")


def _reload(store: Store, config: Path) -> None:
    """Reads the file again, and says in one line what has changed, or why nothing has."""
    try:
        changed = store.reload(config)
    except CommitLogError as error:
        print_lines([f"commitlog: nothing is reloaded: {printable(str(error))}"], err=True)
    else:
        said = "; ".join(f"{key} {when}" for key, when in changed.items())
        print_lines([f"reloaded {config}: {said or 'nothing has changed'}"], err=True)

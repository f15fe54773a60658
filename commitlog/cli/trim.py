"""`commitlog trim STORE`: deletes the oldest segments now, as retention does later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoreArgument, past_time, size

if TYPE_CHECKING:
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.disk.trim_request import TrimRequest
    from commitlog.reading.view import StoreView

_PATIENCE_NS = 60_000_000_000
_LOOK_SECONDS = 0.05


def trim(
    store: StoreArgument,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Delete segments that are older: '3 days ago', 3d, or an ISO time."),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            parser=size,
            metavar="SIZE",
            help="Delete the oldest segments until all have no more bytes, as in 10GB or 512MiB.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also what a named reader has not read.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the oldest segments now, and give their disk space back.

        commitlog trim data/events --before "3 days ago"
        commitlog trim data/events --keep-bytes 10GB

    The last segment of each lane stays. Where the stages of STORE are not running, they run for as
    long as this command does.
    """
    from commitlog.disk.locks import file_locked
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.disk.trim_request import TrimRequest
    from commitlog.reading.view import StoreView

    if (before is None) == (keep_bytes is None):
        raise typer.BadParameter("give --before TIME or --keep-bytes SIZE")
    before_ms = None if before is None else past_time(before)
    directory = StoreDirectory(store)
    facts = directory.load()
    directory.check_owner()
    if not yes:
        what = f"that are beyond {keep_bytes:,} bytes" if before_ms is None else f"older than {_shown(before_ms)}"
        typer.confirm(f"Delete segments of {directory.path} {what}?", abort=True)
    with file_locked(directory.trim_lock_file, directory, directory.channel), _running(directory):
        view = StoreView(store)
        try:
            segments, held = _carry_out(view, TrimRequest(facts.id, before_ms, keep_bytes, force))
        finally:
            view.close()
    typer.echo(f"deleted {segments:,} segments, {segments * facts.segment_bytes:,} bytes")
    if held:
        typer.echo(
            f"others could go, and are kept for named readers: `commitlog readers {directory.path}` shows them, "
            f"--force deletes all the same"
        )


def _shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")


@contextlib.contextmanager
def _running(directory: StoreDirectory) -> Iterator[None]:
    """Sees that the stages run, with the configuration of their last start."""
    from commitlog.config import Config
    from commitlog.disk.locks import is_running
    from commitlog.store import Store

    facts = directory.load()
    if is_running(directory, Path(facts.pool.directory) if facts.pool else None):
        yield
    else:
        with Store.open(directory.path, config=Config.from_json(facts.config)):
            yield


def _carry_out(view: StoreView, request: TrimRequest) -> tuple[int, bool]:
    """Asks the allocator, and waits until it is done.

    Returns how many segments it has deleted, and whether named readers hold others. Raises
    StoreNotRunning.
    """
    from commitlog.clock import SYSTEM_CLOCK
    from commitlog.errors import StoreNotRunning
    from commitlog.shm.statistics import RetentionFlag
    from commitlog.statistics import RETENTION_WORDS, store_statistics

    directory = view.directory
    begin = firsts = _firsts(view)
    moved_ns = SYSTEM_CLOCK.monotonic_ns()
    request.save(directory)
    try:
        while directory.trim_file.exists():
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
            now, before, firsts = SYSTEM_CLOCK.monotonic_ns(), firsts, _firsts(view)
            moved_ns = now if firsts != before else moved_ns
            if now - moved_ns > _PATIENCE_NS or not store_statistics(view).running:
                raise StoreNotRunning(
                    f"{directory.path}: the allocator does not answer; what it has deleted is gone. See "
                    f"{directory.logs_directory}/allocator.log, then repeat this command"
                )
    finally:
        request.remove(directory)  # nobody waits for it any more
    facts = store_statistics(view)
    held = bool(facts.retention and RETENTION_WORDS[RetentionFlag.HELD_BY_READER] in facts.retention.warnings)
    deleted = sum(first - begin.get(lane, first) for lane, first in _firsts(view).items())
    return deleted // view.segment_bytes, held


def _firsts(view: StoreView) -> dict[int, int]:
    return {lane: view.limits(lane).first for lane in view.lanes()}

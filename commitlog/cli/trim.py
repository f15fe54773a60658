"""`commitlog trim STORE`: deletes the oldest segments now, as retention does later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoreArgument, confirm, past_time, print_lines, shown_facts, size
from commitlog.shm.memory_order import observe
from commitlog.text.lines import for_shell
from commitlog.text.quantities import counted, shown_time

if TYPE_CHECKING:
    from commitlog.client.statistics import StoreStatistics
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.disk.trim_request import TrimRequest
    from commitlog.reading.view import StoreView
    from commitlog.shm.counters import RetentionFlag

_PATIENCE_NS = 60_000_000_000
_REFUSED_NS = 2_000_000_000
"""The allocator takes a warning of an earlier time back sooner, if it is over."""
_LOOK_SECONDS = 0.05
_INDEX_NS = 10_000_000_000
"""How long it waits for the dispatcher, which syncs the index once in a second."""


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
    from commitlog.disk.replica_mark import changing, check_changeable
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.disk.trim_request import TrimRequest
    from commitlog.reading.view import StoreView

    if (before is None) == (keep_bytes is None):
        raise typer.BadParameter("give --before TIME or --keep-bytes SIZE")
    before_ms = None if before is None else past_time(before)
    directory = StoreDirectory(store)
    facts = directory.load()
    check_changeable(directory)  # before it asks
    request = TrimRequest(facts.id, before_ms, keep_bytes, force)
    if not yes:
        if not _would_take(directory, request):
            return
        confirm("Delete them?")
    with (
        changing(directory, directory.trim_lock_file),
        _running(directory),
        contextlib.closing(StoreView(store)) as view,
    ):
        _await_index(view)
        segments, held = _carry_out(view, request)
        kept = _kept(view, request)
    deleted = f"deleted {counted(segments, 'segment')}, {counted(segments * facts.segment_bytes, 'byte')}"
    print_lines([f"{deleted}; {kept}"])
    if held:
        quoted = for_shell(directory.path)
        print_lines(
            [
                f"others could go, and are kept for named readers or replicas: `commitlog readers {quoted}` and "
                f"`commitlog replicas {quoted}` show them, --force deletes all the same"
            ]
        )


def _kept(view: StoreView, request: TrimRequest) -> str:
    """How many segments stay, and why, in words."""
    from commitlog.reading.segment_trim import kept_segments
    from commitlog.reading.topic_index import TopicIndex

    index = TopicIndex(view)
    index.refresh()
    kept = kept_segments(index, request)
    why_wanted = "not that old" if request.before_ms is not None else f"within {request.keep_bytes:,} bytes"
    reasons = {
        "the last of a lane": kept.last,
        why_wanted: kept.wanted,
        "kept for named readers or replicas": kept.held,
        "not in the consume queues yet": kept.unindexed,
    }
    said = ", ".join(f"{count:,} {why}" for why, count in reasons.items() if count)
    return f"{sum(reasons.values()):,} stay" + (f": {said}" if said else "")


def _would_take(directory: StoreDirectory, request: TrimRequest) -> bool:
    """Prints what the trim would delete, as far as known. Returns whether it is anything."""
    from commitlog.reading.named_readers import NamedReaders
    from commitlog.reading.segment_trim import plan_segment_trim, unindexed_segments
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.view import StoreView

    view = StoreView(directory.path)
    with contextlib.closing(view):
        _await_index(view)
        index = TopicIndex(view)
        index.refresh()
        plan, unindexed = plan_segment_trim(index, request), unindexed_segments(index)
    if not plan.segments:
        if unindexed:
            why = (
                f"{counted(unindexed, 'segment')} can go only when the consume queues have their messages; `commitlog health "
                f"{for_shell(directory.path)}` says what keeps the dispatcher"
            )
        elif request.before_ms is not None:
            why = f"no segment besides the last of each lane is older than {shown_time(request.before_ms)}"
        else:
            why = f"only the last segment of each lane is left, or all have no more than {request.keep_bytes:,} bytes"
        print_lines([f"nothing would go: {why}"])
        return False
    but = "; what a named reader has not read stays" if NamedReaders(directory).names() and not request.force else ""
    whole = counted(plan.segments * view.segment_bytes, "byte")
    print_lines(
        [
            f"{counted(plan.segments, 'segment')} of {directory.path} would go, {whole} of disk{but}",
            f"    {shown_facts(plan.facts)}",
        ]
    )
    return True


@contextlib.contextmanager
def _running(directory: StoreDirectory) -> Iterator[None]:
    """Starts the stages for the with-block if they do not run, with their last configuration.

    Another command may start them at the same moment: then they do it.
    """
    from commitlog.client.store import Store
    from commitlog.disk.locks import is_running
    from commitlog.errors import StoreRunning

    facts = directory.load()
    with contextlib.ExitStack() as stack:
        if not is_running(directory, Path(facts.pool.directory) if facts.pool else None):
            with contextlib.suppress(StoreRunning):
                stack.enter_context(Store.open(directory.path))
        yield


def _await_index(view: StoreView) -> None:
    """Waits for the index of what is flushed now: nothing is deleted before it is synced."""
    from commitlog.shm.layout import Lane
    from commitlog.system.clock import SYSTEM_CLOCK

    if view.control is None:
        return
    rows = [view.control.row(lane) for lane in view.lanes()]
    ends = [observe(row, Lane.FLUSHED) for row in rows]
    deadline = SYSTEM_CLOCK.monotonic_ns() + _INDEX_NS
    while any(observe(row, Lane.DISPATCH_SYNCED) < end for row, end in zip(rows, ends, strict=True)):
        if SYSTEM_CLOCK.monotonic_ns() > deadline:
            return  # the dispatcher is in trouble: what may go now goes
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)


def _carry_out(view: StoreView, request: TrimRequest) -> tuple[int, bool]:
    """Asks the allocator, and waits until it is done.

    Returns how many segments it has deleted, and whether named readers hold others. Raises
    StoreNotRunning, and DiskError where the system does not let the segments go.
    """
    from commitlog.client.statistics import store_statistics
    from commitlog.errors import DiskError, StoreNotRunning
    from commitlog.shm.counters import RetentionFlag
    from commitlog.system.clock import SYSTEM_CLOCK

    directory, pool = view.directory, view.control.region.path.parent if view.control else None
    begin = firsts = _firsts(view)
    moved_ns = SYSTEM_CLOCK.monotonic_ns()
    request.save(directory, pool)
    try:
        while request.file(directory, pool):
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
            now, before, firsts = SYSTEM_CLOCK.monotonic_ns(), firsts, _firsts(view)
            moved_ns = now if firsts != before else moved_ns
            facts = store_statistics(view)
            if now - moved_ns > _REFUSED_NS and _is_set(RetentionFlag.NOT_DELETED, facts):
                raise DiskError(
                    f"{directory.path}: old segments can't be deleted: {directory.logs_directory}/allocator.log says why; "
                    f"mend that, then repeat this command"
                )
            if now - moved_ns > _PATIENCE_NS or not facts.running:
                raise StoreNotRunning(
                    f"{directory.path}: the allocator does not answer; what it has deleted is gone. See "
                    f"{directory.logs_directory}, then repeat this command"
                )
    finally:
        request.remove(directory, pool)  # nobody waits for it any more
    held = _is_set(RetentionFlag.HELD_BY_READER, store_statistics(view))
    deleted = sum(first - begin.get(lane, first) for lane, first in _firsts(view).items())
    return deleted // view.segment_bytes, held


def _is_set(flag: RetentionFlag, facts: StoreStatistics) -> bool:
    """Whether the allocator says that this hinders retention."""
    from commitlog.client.statistics import RETENTION_WORDS

    return facts.retention is not None and RETENTION_WORDS[flag] in facts.retention.warnings


def _firsts(view: StoreView) -> dict[int, int]:
    return {lane: view.limits(lane).first for lane in view.lanes()}

"""`commitlog stat STORE`: topics, positions, stages.

Works on a live store, a stopped one, and one whose stages hang.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from commitlog.cli.arguments import JsonOption, StoreArgument, print_json
from commitlog.cli.readers import as_json as reader_as_json
from commitlog.cli.readers import summary
from commitlog.cli.servers import as_json as server_as_json
from commitlog.cli.servers import lines as server_lines
from commitlog.errors import StoreNotFound, store_killed
from commitlog.native import description
from commitlog.reading.named_readers import ReaderState
from commitlog.statistics import LaneStatistics, StoreStatistics, store_statistics

EXIT_KILLED = 3
"""Neither success nor an error, which is 1: everything was shown."""

Topics = dict[int, dict[str, tuple[int, int]]]


def stat(
    store: StoreArgument,
    json: JsonOption = False,
) -> None:
    """Show topics, positions, stages, readers; also of a stopped store.

        commitlog stat data/events
        commitlog stat data/events --json

    Exit code 3: the store was killed and does not run.
    """
    from commitlog.disk.server_files import running_servers
    from commitlog.disk.store_directory import StoreDirectory, checked_path
    from commitlog.opening.stray_pools import stray_pools

    try:
        facts, topics, readers = collect(store)
    except StoreNotFound:
        left = [str(pool) for pool in stray_pools() if pool.store == checked_path(store)]
        if left:
            raise StoreNotFound("; ".join(left)) from None
        raise
    servers = running_servers(StoreDirectory(store))
    if json:
        print_json({**as_json(facts, topics, readers), "servers": [server_as_json(server) for server in servers]})
    else:
        for line in (*lines(facts, topics, readers), *server_lines(servers)):
            typer.echo(line)
        for pool in stray_pools():
            typer.echo(f"WARNING: {pool}")
    if facts.killed:
        raise typer.Exit(EXIT_KILLED)


def collect(store: Path) -> tuple[StoreStatistics, Topics, list[ReaderState]]:
    """The store's statistics, the topics of each lane, and the named readers.

    A topic comes with its first and its next queue offset.
    """
    from commitlog.reading.named_readers import reader_states
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.view import StoreView

    view = StoreView(store)
    try:
        index = TopicIndex(view)
        index.refresh()
        topics = {
            lane: {
                topic: (known.first, known.end)
                for topic, known in sorted(index.lanes[lane].queues.items())
                if not index.lanes[lane].is_deleted(topic)
            }
            for lane in index.lanes
        }
        return store_statistics(view), topics, reader_states(index)
    finally:
        view.close()


def as_json(facts: StoreStatistics, topics: Topics, readers: list[ReaderState]) -> dict[str, Any]:
    """What `stat --json` prints: statistics, topics of each lane, named readers, the core here."""
    values = {**asdict(facts), "core": description}
    for lane in values["lanes"]:
        lane["topics"] = topics.get(lane["lane"], {})
    values["readers"] = [reader_as_json(reader) for reader in readers]
    return values


def lines(facts: StoreStatistics, topics: Topics, readers: list[ReaderState]) -> Iterator[str]:
    """What `stat` prints."""
    from commitlog.watching.health import DEFAULT_LIMITS

    yield f"{facts.path}  {facts.state}, segments of {facts.segment_bytes:,} bytes, generation {facts.generation}"
    yield f"core here: {description}"
    if facts.killed:
        yield f"WARNING: {store_killed(facts.path)}"
    for lane in facts.lanes:
        yield from _lane_lines(lane)
        for topic, (first, end) in topics.get(lane.lane, {}).items():
            yield f"    {topic}: {end - first:,} messages, offsets {first:,} to {end:,}"
    for stage in facts.stages:
        took = f", p50 {stage.p50_us:,.0f} µs, p99 {stage.p99_us or 0:,.0f} µs" if stage.p50_us is not None else ""
        is_silent = facts.running and stage.silent_ms > DEFAULT_LIMITS.silent_ms
        silent = f", SILENT for {stage.silent_ms / 1000:,.1f} s" if is_silent else ""
        yield f"{stage.stage}: pid {stage.pid or 'none'}, {stage.actions:,} actions{took}, {stage.restarts} restarts{silent}"
    for rate in facts.throughput:
        yield (
            f"last {rate.over_seconds:,.0f} s: {rate.messages_per_second:,.1f} messages/s, "
            f"{rate.bytes_per_second / 1e6:,.3f} MB/s"
        )
    if facts.retention:
        done = facts.retention
        yield (
            f"retention: {done.deleted_segments:,} segments deleted ({done.deleted_bytes:,} bytes), {done.forced_segments:,} "
            f"of them before their time; the disk is {done.disk_used_percent:.1f} % full"
        )
        yield from (f"WARNING: {text}" for text in done.warnings)
    yield from (f"reader {summary(reader)}" for reader in readers)
    yield from (f"WARNING: {reader.warning}" for reader in readers if reader.warning)


def _lane_lines(lane: LaneStatistics) -> Iterator[str]:
    faults = {stage: errno.errorcode.get(code, str(code)) for stage, code in (lane.faults or {}).items()}
    yield (
        f"lane {lane.lane}: wrote {lane.wrote:,}, committed {lane.committed:,}, flushed {lane.flushed:,}, "
        f"dispatched {lane.dispatched:,}" + (f", fault {faults}" if faults else "")
    )
    if lane.available_buffers is not None:
        locked = f", {lane.locked_bytes:,} bytes locked into memory" if lane.locked_bytes else ""
        yield f"    producer {lane.producer or 'none'}, {lane.available_buffers} buffers available{locked}"
    if lane.buffer_waits:
        yield (
            f"    waited {lane.buffer_waits:,} times for a buffer, {lane.buffer_wait_ms:,.0f} ms in all, "
            f"{lane.buffer_wait_max_ms:,.0f} ms at most, {lane.buffer_timeouts:,} in vain; "
            f"{lane.low_water:,} times none was free for long; {lane.direct_segments:,} segments written directly"
        )
    if lane.put_times and sum(lane.put_times.values()):
        yield "    put times: " + ", ".join(f"{name} {count:,}" for name, count in lane.put_times.items() if count)

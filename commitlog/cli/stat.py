"""`commitlog stat STORE`: topics, positions, stages.

Works on a live store, a stopped one, and one whose stages hang.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import typer

from commitlog.cli.arguments import JsonOption, print_json, print_lines
from commitlog.cli.forwarders import lines as forwarder_lines
from commitlog.cli.readers import summary
from commitlog.cli.replicas import as_json as replica_as_json
from commitlog.cli.replicas import lines as replica_lines
from commitlog.cli.served import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    StoreOrUrlArgument,
    TokenFileOption,
    served_address,
)
from commitlog.cli.servers import as_json as server_as_json
from commitlog.cli.servers import lines as server_lines
from commitlog.client.statistics import LaneStatistics, StoreStatistics
from commitlog.disk.store_directory import store_killed
from commitlog.errors import StoreNotFound
from commitlog.native import description
from commitlog.reading.reader_states import ReaderState
from commitlog.text.quantities import counted
from commitlog.watching.store_facts import Topics, as_json, collect, from_json

EXIT_KILLED = 3
"""The exit code for a killed store: it is no success, and no error (1), as all was shown."""


def stat(
    store: StoreOrUrlArgument,
    json: JsonOption = False,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
) -> None:
    """Show topics, positions, stages, readers; also of a stopped store.

        commitlog stat data/events
        commitlog stat data/events --json
        commitlog stat commitlog+tls://host:4433/events --token-file token

    Exit code 3: the store was killed and does not run. Where topics and readers can't be read,
    everything else is shown, and the exit code is 1.
    """
    from commitlog.disk.forwarder_files import ForwarderStatistics, forwarders
    from commitlog.disk.replica_files import ReplicaState, known_replicas
    from commitlog.disk.server_files import ServerStatistics, running_servers
    from commitlog.disk.store_directory import StoreDirectory, checked_path
    from commitlog.opening.stray_pools import said_of_strays, stray_pools

    address = served_address(store, token_file, ca_file, cert_file, key_file)
    servers: list[ServerStatistics] = []
    replicas: list[ReplicaState] = []
    feeding: list[ForwarderStatistics] = []
    if address is not None:
        from commitlog.remote.remote_index import served_stat

        facts, topics, readers, damage = from_json(served_stat(address))
    else:
        try:
            facts, topics, readers, damage = collect(store)
        except StoreNotFound:
            left = [str(pool) for pool in stray_pools() if pool.store == checked_path(store)]
            if left:
                raise StoreNotFound("; ".join(left)) from None
            raise
        directory = StoreDirectory(store)
        servers, replicas, feeding = running_servers(directory), known_replicas(directory), forwarders(directory)
    if json:
        shown = {
            "servers": [server_as_json(server) for server in servers],
            "forwarders": [
                asdict(one) | {"pid": None if one.state == "stopped" else one.pid or None} for one in feeding
            ],
            "replicas": [replica_as_json(replica) for replica in replicas],
        }
        print_json({**_without_pid_0(as_json(facts, topics, readers, damage)), **shown})
    else:
        others = (*server_lines(servers), *forwarder_lines(feeding), *replica_lines(replicas))
        print_lines((*lines(facts, topics, readers), *others))
        print_lines(f"WARNING: {text}" for text in said_of_strays(stray_pools() if address is None else []))
    if damage:
        raise damage
    if facts.killed:
        raise typer.Exit(EXIT_KILLED)


def _without_pid_0(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces pid 0 (no process) by null: a shell's `kill 0` ends its own process group."""
    for one, name in (*((lane, "producer") for lane in values["lanes"]), *((one, "pid") for one in values["stages"])):
        one[name] = one[name] or None
    return values


def lines(facts: StoreStatistics, topics: Topics, readers: list[ReaderState]) -> Iterator[str]:
    """What `stat` prints."""
    from commitlog.watching.health import DEFAULT_LIMITS

    yield f"{facts.path}  {_state(facts)}, segments of {facts.segment_bytes:,} bytes, generation {facts.generation}"
    yield f"core here: {description}"
    if facts.killed:
        yield f"WARNING: {store_killed(facts.path)}"
    for lane in facts.lanes:
        yield from _lane_lines(lane)
        for topic, (first, end) in topics.get(lane.lane, {}).items():
            yield f"    {topic}: {counted(end - first, 'message')}, first offset {first:,}, next {end:,}"
    for stage in facts.stages:
        took = f", p50 {stage.p50_us:,.0f} µs, p99 {stage.p99_us or 0:,.0f} µs" if stage.p50_us is not None else ""
        is_silent = facts.running and stage.silent_ms > DEFAULT_LIMITS.silent_ms
        silent = f", SILENT for {stage.silent_ms / 1000:,.1f} s" if is_silent else ""
        counts = f"{counted(stage.actions, 'action')}{took}, {counted(stage.restarts, 'restart')}"
        yield f"{stage.stage}: pid {stage.pid or 'none'}, {counts}{silent}"
    for rate in facts.throughput:
        yield (
            f"last {rate.over_seconds:,.0f} s: {rate.messages_per_second:,.1f} messages/s, "
            f"{rate.bytes_per_second / 1e6:,.3f} MB/s"
        )
    if facts.retention:
        done = facts.retention
        yield (
            f"retention: {counted(done.deleted_segments, 'segment')} deleted ({counted(done.deleted_bytes, 'byte')}), "
            f"{done.forced_segments:,} before their time"
        )
        yield f"the disk is {done.disk_used_percent:.1f} % full"
        yield from (f"WARNING: {text}" for text in done.warnings)
    yield from (f"reader {summary(reader)}" for reader in readers)
    yield from (f"WARNING: {reader.warning}" for reader in readers if reader.warning)


def _state(facts: StoreStatistics) -> str:
    if facts.superseded_by and not facts.running:
        return f"superseded: a replica of it was promoted ({facts.superseded_by})"
    if facts.backup and not facts.running:
        return "backup, never started"
    if not facts.replica_of:
        return facts.state
    if not facts.running:
        return f"replica of {facts.replica_of}, not kept up to date: `commitlog replica` does not run"
    waits = f", waits for {facts.replica_waits_for}" if facts.replica_waits_for else ""
    return f"replica of {facts.replica_of}, {facts.replica_behind_ms:,} ms behind{waits}"


def _lane_lines(lane: LaneStatistics) -> Iterator[str]:
    faults = {stage: errno.errorcode.get(code, str(code)) for stage, code in (lane.faults or {}).items()}
    yield (
        f"lane {lane.lane}: wrote {lane.wrote:,}, committed {lane.committed:,}"
        + (f", fault {faults}" if faults else "")
    )
    yield f"    flushed {lane.flushed:,}, dispatched {lane.dispatched:,}"
    if lane.available_buffers is not None:
        locked = f", {counted(lane.locked_bytes, 'byte')} locked into memory" if lane.locked_bytes else ""
        yield f"    producer {lane.producer or 'none'}, {counted(lane.available_buffers, 'buffer')} available{locked}"
    if lane.buffer_waits:
        yield (
            f"    waited {counted(lane.buffer_waits, 'time')} for a buffer, {lane.buffer_wait_ms:,.0f} ms in all, "
            f"{lane.buffer_wait_max_ms:,.0f} ms at most, {lane.buffer_timeouts:,} in vain; "
            f"{counted(lane.low_water, 'time')} none was free for long; "
            f"{counted(lane.direct_segments, 'segment')} written directly"
        )
    if lane.put_times and sum(lane.put_times.values()):
        yield "    time in send: " + ", ".join(f"{name} {count:,}" for name, count in lane.put_times.items() if count)

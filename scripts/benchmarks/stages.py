"""stages: each stage alone, on prepared input; then how soon all of them answer.

While a stage is alone, no other process of the log runs.
"""

from __future__ import annotations

import contextlib

from scripts.benchmarks import alone, reactions
from scripts.benchmarks.harness import Bench, Metric

MEGABYTES = Metric("megabytes", "MB/s", "higher")
USER = Metric("user", "µs in Python and C, a message")
SYSTEM = Metric("system", "µs in the kernel, a message")
BUSY = Metric("busy", "of its time on a core (the rest it waits for the disk)")
SIZE = 1024


def run(bench: Bench) -> None:
    _committer_and_flusher(bench)
    _allocator(bench)
    _dispatcher(bench)
    reactions.run(bench)


def _committer_and_flusher(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        stages = {name: stack.enter_context(alone.stage_alone(bench, name, SIZE)) for name in ("committer", "flusher")}
        committer, flusher = stages["committer"], stages["flusher"]
        room = stack.enter_context(bench.room())
        floor = alone.WriteFloor(room, committer.bytes, bench.settings.segment_bytes, committer.messages)
        stack.callback(floor.close)
        bench.compare(
            "committer: a full pool",
            (MEGABYTES, Metric("rate", "messages/s", "higher"), USER, SYSTEM, BUSY),
            "pwrite of 4 MiB each",
            {"pwrite of 4 MiB each": floor.write, "committer": committer.turn},
            megabytes=round(committer.bytes / 1e6, 1),
            body=f"{SIZE} B",
        )
        bench.compare(
            "flusher: the same segments, written and not synced",
            (MEGABYTES, Metric("rate", "messages/s", "higher"), USER, SYSTEM, BUSY),
            "fdatasync of each",
            {"fdatasync of each": floor.sync, "flusher": flusher.turn},
            megabytes=round(flusher.bytes / 1e6, 1),
        )


def _allocator(bench: Bench) -> None:
    segments, size = 5, bench.settings.segment_bytes  # three slots, and two ahead
    with bench.room() as room, alone.stage_alone(bench, "allocator", SIZE) as allocator:
        bench.compare(
            "allocator: five segments wanted",
            (Metric("rate", "segments/s", "higher"), MEGABYTES, BUSY),
            "fallocate, fdatasync, rename, fsync",
            {
                "fallocate, fdatasync, rename, fsync": lambda: alone.make_segments(room, segments, size),
                "allocator": allocator.turn,
            },
            segment_mebibytes=size >> 20,
        )


def _dispatcher(bench: Bench) -> None:
    with contextlib.ExitStack() as stack:
        room = stack.enter_context(bench.room())
        dispatcher = stack.enter_context(alone.stage_alone(bench, "dispatcher", SIZE))
        log, count = stack.enter_context(alone.log_file(room, dispatcher.bytes)), dispatcher.messages
        bench.compare(
            "dispatcher: a finished log",
            (Metric("rate", "records/s", "higher"), MEGABYTES, USER, SYSTEM, BUSY),
            "the log read, entries written",
            {
                "the log read, entries written": lambda: alone.read_and_index(log, room / "entries", count),
                "dispatcher": dispatcher.turn,
            },
            records=count,
            body=f"{SIZE} B",
        )

"""dispatch: how many records a second get their entries in the consume queues.

The dispatcher works alone, over a finished log.
"""

from __future__ import annotations

from functools import partial

from scripts.benchmarks import alone
from scripts.benchmarks.harness import Bench, Metric

METRICS = (
    Metric("rate", "records/s", "higher"),
    Metric("megabytes", "MB/s of the log", "higher"),
    Metric("user", "µs in Python and C, a record"),
    Metric("system", "µs in the kernel, a record"),
)


def run(bench: Bench) -> None:
    for size in (100, 1024):
        with bench.room() as room, alone.stage_alone(bench, "dispatcher", size) as dispatcher:
            count = dispatcher.messages
            with alone.log_file(room, dispatcher.bytes) as log:
                bench.compare(
                    f"{size} B records",
                    METRICS,
                    "the log read, entries written",
                    {
                        "the log read, entries written": partial(alone.read_and_index, log, room / "entries", count),
                        "dispatcher": dispatcher.turn,
                    },
                    records=count,
                    topics=1,
                    sync="consume queues once a second",
                )

"""No process of a store grows with the data that goes through it.

Its own memory and its number of descriptors stay the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pytest

import commitlog
from commitlog.shm.layout import STAGES
from tests.crash.scene import pid_of

CONFIG = {
    "store": {"segment_bytes": 1 << 20},
    "retention": {"max_bytes": 32 << 20, "interval_ms": 200},
    "allocator": {"lane_idle_ms": 200},
}
WARM_UP, SECONDS = 30, 180
GROWTH_BYTES = 2 << 20
"""Measured in these three minutes: allocator 0.6 MB, the other stages 0.1 MB, the sending process
1.0 MB.
"""


def own_memory(pid: int) -> int:
    """Bytes of a process that are neither a file's nor shared memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.nightly
@pytest.mark.timeout(WARM_UP + SECONDS + 120)
def test_memory_is_flat_over_a_long_run(tmp_path: Path) -> None:
    """Minutes of batches and single messages over changing lanes, with retention behind them."""
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store:
        pids = {name or "supervisor": pid_of(store.path, name) for name in ("", *STAGES)}
        memory: dict[str, list[int]] = {name: [] for name in (*pids, "producer")}
        open_files: dict[str, list[int]] = {name: [] for name in memory}
        bodies = [os.urandom(900)] * 500
        began = time.monotonic()
        while (age := time.monotonic() - began) < WARM_UP + SECONDS:
            with commitlog.Producer(store.path) as one, commitlog.Producer(store.path) as other:
                for number in range(100):
                    one.send_batch("t", bodies)
                    other.send(f"t{number % 10}", bodies[0], key="k").wait("flushed", timeout=30)
                one.flush(timeout=30)
            if age > WARM_UP:
                for name, pid in {**pids, "producer": os.getpid()}.items():
                    memory[name].append(own_memory(pid))
                    open_files[name].append(descriptors(pid))
    third = len(memory["producer"]) // 3
    assert third > 3
    grew = {name: median(seen[-third:]) - median(seen[:third]) for name, seen in memory.items()}
    print({name: f"{median(seen[:third]) / 1e6:.1f} MB {grew[name] / 1e6:+.2f}" for name, seen in memory.items()})
    assert max(grew.values()) < GROWTH_BYTES, grew
    more = {name: median(seen[-third:]) - median(seen[:third]) for name, seen in open_files.items()}
    assert max(more.values()) <= 3, more

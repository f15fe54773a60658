"""A reader's memory does not grow with the log: what was read of the mapped segments is let go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commitlog.record.record import encode_blank
from tests.builders.hand_made import HandMadeStore
from tests.builders.memory_cgroup import memory_cgroup

SEGMENTS, SEGMENT_BYTES = 1_024, 1 << 30
"""A terabyte. The files are sparse: a segment has a few records and a BLANK over all the rest."""
RECORDS, RECORD_BYTES = 2, 200_000
LIMIT_BYTES = 180 << 20
READS = """
import os, resource, sys
import commitlog
from collections import deque

with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
with commitlog.Reader(sys.argv[2], "orders") as reader:
    kept = deque(maxlen=10)
    count = 0
    for message in reader:
        kept.append(message)
        count += len(message.value) == int(sys.argv[3])
print(count)
with commitlog.Reader(sys.argv[2], "orders") as reader:
    print(sum(len(values) for values in reader.value_lists()))
print(sum(batch.num_rows for batch in commitlog.read_arrow(sys.argv[2], "orders", columns=["offset"])))
"""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_terabyte_of_mapped_log_is_read_in_little_memory(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store", SEGMENT_BYTES)
    lane = store.lane(0)
    for number in range(SEGMENTS):
        for _ in range(RECORDS):
            lane.append("orders", bytes([number & 255]) * RECORD_BYTES)
        if number < SEGMENTS - 1:
            rest = SEGMENT_BYTES - lane.end % SEGMENT_BYTES
            lane._write(encode_blank(rest))
            lane.end += rest
    store.publish()
    assert lane.end > 1 << 39
    count = SEGMENTS * RECORDS
    assert count * RECORD_BYTES > 2 * LIMIT_BYTES
    with memory_cgroup(LIMIT_BYTES) as group:
        words = [sys.executable, "-P", "-c", READS, str(group), str(store.path), str(RECORD_BYTES)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "TZ": "UTC"})
    assert (done.returncode, done.stdout.split()) == (0, [str(count)] * 3), done.stderr

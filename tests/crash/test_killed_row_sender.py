"""kill -9 within `send_rows`: a message has all of its rows or is not there, and comes once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import commitlog
from tests.waiting import wait_until

ROWS, ROWS_OF_MESSAGE, STEP = 40, 10, 20
SENDERS = f"""
import os, signal, sys
import commitlog.client.producer
from commitlog.appending import row_producer, row_sending
from commitlog.schemas import row_batches

FILES = {{module.__file__ for module in (commitlog.client.producer, row_producer, row_sending, row_batches)}}

def dies_at(line):
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        if frame.f_code.co_filename not in FILES:
            return None
        seen += event == "line"
        if seen == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)

def dies(number):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            producer = commitlog.Producer(sys.argv[1])
            dies_at(1 + {STEP} * number)
            first = {ROWS} * number
            rows = [{{"id": one, "text": "x" * one}} for one in range(first, first + {ROWS})]
            producer.send_rows("orders", rows, max_rows={ROWS_OF_MESSAGE})
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0, status
    return os.WIFSIGNALED(status)

number = 0
while dies(number):
    number += 1
print(number)
"""


@pytest.mark.nightly
def test_rows_of_senders_that_die_in_send_rows(tmp_path: Path) -> None:
    """Each sender dies some lines of Python later than the one before, until one does not die."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 18}}) as store:
        store.create_topic("orders", "id BIGINT NOT NULL, text STRING")
        command = [sys.executable, "-P", "-c", SENDERS, str(store.path)]
        deaths = int(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=200).stdout)

        def found() -> list[int]:
            table = commitlog.read_arrow(store.path, "orders").read_all()
            assert all(len(row["text"]) == row["id"] for row in table.to_pylist())
            numbers: list[int] = table["id"].to_pylist()
            return numbers

        wait_until(lambda: (deaths + 1) * ROWS - 1 in found(), "the last sender's rows are flushed")
        ids = found()
        messages = commitlog.read_arrow(store.path, "orders", columns=["_row"]).read_all()["_row"].to_pylist()
    assert len(ids) == len(set(ids))
    sent = [sum(one // ROWS == number for one in ids) for number in range(deaths + 1)]
    assert set(sent) == set(range(0, ROWS + 1, ROWS_OF_MESSAGE))
    assert ids == [ROWS * number + one for number, count in enumerate(sent) for one in range(count)]
    assert messages == list(range(ROWS_OF_MESSAGE)) * (len(ids) // ROWS_OF_MESSAGE)

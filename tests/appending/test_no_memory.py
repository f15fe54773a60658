"""Each allocation of a call fails in turn: a message is in the log, or its sender has the error.

Not here: rows, and batches without the native core. numpy and PyArrow end the process then.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import commitlog

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi, which fails allocations"
)

PROGRAM = """
import gc, sys
import _testcapi
import commitlog

path, way = sys.argv[1:]
producer = commitlog.Producer(path)
topic = way
values = [b"a", b"bc"]
headers = {"h": "x"}
told = []

def use():
    if way == "send":
        return producer.send(topic, b"value", "key", headers)
    if way == "wait":
        return producer.send(topic, b"value").wait()
    if way == "callback":
        return producer.send(topic, b"value").add_callback(told.append)
    if way == "batch":
        return producer.send_batch(topic, values, keys=["k", None])
    if way == "flush":
        return producer.flush()
    if way == "statistics":
        return producer.statistics()
    return [receipt.offset, receipt.end, receipt.status, receipt.message_id, receipt.done(), repr(receipt),
            producer.message_bytes_max, producer._wrote, producer._seen, producer._messages, producer._timestamp]

def count():
    producer.flush()
    return producer.statistics().messages

receipt = producer.send(topic, b"first")
use()
before, number, clean = count(), 0, 0
gc.disable()
while clean < 50 and number < 3000:  # a call may go on without an allocation that has failed
    number += 1
    wrong = None
    _testcapi.set_nomemory(number, number + 1)
    try:
        given = use()
    except BaseException as error:
        _testcapi.remove_mem_hooks()
        wrong = error
    else:
        _testcapi.remove_mem_hooks()
    after = count()
    sent = after - before
    before = after
    if wrong is not None:
        clean = 0
        # numpy and Python's threads have errors of their own
        kinds = Exception if way in ("batch", "callback") else MemoryError, commitlog.errors.CommitLogError
        assert isinstance(wrong, kinds), repr(wrong)
        if way in ("send", "batch"):
            has_receipt = getattr(wrong, "receipt", None) is not None
            assert sent == 0 or has_receipt, (number, sent, repr(wrong))
    else:
        clean += 1
        if way == "send":
            assert sent == 1, (number, sent)
        if way == "batch":
            assert sent == 2, (number, sent)
    wrong = None
producer.close()
print("ended")
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    config = {"supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(tmp_path_factory.mktemp("live") / "store", config) as store:
        yield store


WAYS = ["send", "wait", "callback", "flush", "statistics", "getters"]


@pytest.mark.parametrize(("way", "core"), [*product(WAYS, ["auto", "off"]), ("batch", "auto")])
def test_each_allocation_fails_in_turn(live: commitlog.Store, way: str, core: str) -> None:
    """An error says that nothing was sent, or has the receipt; no panic of the core comes out."""
    program = [sys.executable, "-c", PROGRAM, str(Path(live.path)), way]
    environment = {**os.environ, "COMMITLOG_NATIVE": core}
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr[-3000:]

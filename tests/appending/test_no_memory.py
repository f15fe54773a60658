"""Each allocation of a call fails in turn: what is in the log is never sent again in silence.

Without memory numpy and Arrow may end the process themselves, by signal 11. The program is started
again behind such an allocation, and the test looks whether it was they.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import commitlog
from tests.nightly import with_nightly
from tests.weak_machine import WEAK

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi, which fails allocations"
)

START = """
import faulthandler, gc, sys
import _testcapi
import commitlog

faulthandler.enable()
NEVER = 1 << 30
# The hooks stay: to set or to remove them while a thread ends, which frees memory without the
# interpreter's lock, ends the process.
_testcapi.set_nomemory(NEVER, NEVER)
path, way, number, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
producer = commitlog.Producer(path)

def fail_no_more():
    try:
        _testcapi.set_nomemory(NEVER, NEVER)
    except MemoryError:  # this call's own arguments were the allocation that failed
        _testcapi.set_nomemory(NEVER, NEVER)

def attempt(use, *arguments):
    global number
    number += step
    print("at", number, flush=True)
    _testcapi.set_nomemory(number, number + 1)
    try:
        use(*arguments)
    except BaseException as error:
        fail_no_more()
        return error
    else:
        fail_no_more()
"""

MESSAGES = """
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
before, clean = count(), 0
whole = {"send": 1, "batch": 2, "callback": 1}.get(way)
gc.disable()
while clean < 50 and number < 3000:  # a call may go on without an allocation that has failed
    wrong = attempt(use)
    after = count()
    sent = after - before
    before = after
    if wrong is not None:
        clean = 0
        # numpy has errors of its own
        kinds = Exception if way == "batch" else MemoryError, commitlog.errors.CommitLogError
        assert isinstance(wrong, kinds), repr(wrong)
        if way in ("send", "batch"):
            has_receipt = getattr(wrong, "receipt", None) is not None
            assert sent == (whole if has_receipt else 0), (number, sent, repr(wrong))
        if way == "callback":
            assert sent <= 1, (number, sent)
    else:
        clean += 1
        assert whole is None or sent == whole, (number, sent)
    wrong = None
producer.close()
print("ended")
"""

ROWS = """
topic = way

def rows_of(first):
    return [{"id": first + place, "name": f"n{place}"} for place in range(4)]

def append(rows, writer):
    global appended
    for row in rows[appended:]:
        writer.append(row)
        appended += 1

def send(rows):
    producer.send_rows(topic, rows, max_rows=2)

gc.disable()
clean = 0
while clean < 20 and number < 5000:
    rows, appended = rows_of((number + step) * 10), 0
    if way.startswith("send_rows"):
        wrong = attempt(send, rows)
        told = 4 if wrong is None else getattr(wrong, "rows_sent", 0)  # it has none where the call itself found no memory
    else:
        writer = producer.rows(topic, linger_ms=1e9, max_rows=12)
        for _ in range(11):
            writer.append({"id": 1, "name": "usual"})
        wrong = attempt(append, rows, writer)
        append(rows, writer)  # a row whose append has failed was not collected
        writer.close()
        told = 4
    print("told", number, told, flush=True)
    clean = clean + 1 if wrong is None else 0
producer.close()
print("ended")
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    config = {"supervisor": {"hung_after_ms": 600_000}}
    with commitlog.Store.open(tmp_path_factory.mktemp("live") / "store", config) as store:
        yield store


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    config = {"supervisor": {"hung_after_ms": 600_000}, "store": {"flush_disk_type": "SYNC_FLUSH"}}
    with commitlog.Store.open(tmp_path_factory.mktemp("synced") / "store", config) as store:
        yield store


def run(store: commitlog.Store, program: str, way: str, core: str, step: int = 1) -> tuple[str, list[int]]:
    """What the program has printed, and at which numbers numpy or Arrow have ended it."""
    printed, ended_at, number = "", list[int](), 0
    *weak, wish = core.split()
    begin, environment = WEAK if weak else "", {**os.environ, "COMMITLOG_NATIVE": wish}
    while True:
        arguments = [sys.executable, "-c", begin + START + program, str(Path(store.path)), way, str(number), str(step)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
        printed += done.stdout
        if done.returncode != -signal.SIGSEGV:
            assert (done.stdout[-6:], done.returncode) == ("ended\n", 0), done.stderr[-3000:]
            return printed, ended_at
        where = re.search(r'Current thread .*\n  File ".*/commitlog/(.*?)"', done.stderr)
        assert where is not None, done.stderr
        assert where[1] in ENDED_BY_OTHERS, done.stderr
        number = int(done.stdout.split("at ")[-1])
        ended_at.append(number)


ENDED_BY_OTHERS = {
    "record/batch.py",
    "schemas/row_batches.py",
    "schemas/python_values.py",
}
APPENDS = ["send", "batch"]
OTHERS = ["wait", "callback", "flush", "statistics", "getters"]  # in Python, whichever core appends
CORES = ["auto", "off"]
BREAK_PYTHON = {
    *(["callback"] if sys.version_info >= (3, 12) else []),
    *(["send_rows"] if sys.version_info[:2] in ((3, 12), (3, 13)) else []),
}
"""Python from 3.12 on may damage its memory where it finds none to start a thread with, and 3.12
where it finds none for a generator expression. Python 3.13 frees a function's code twice if there
is no memory for the function, and an import makes some."""
WEAK_CORES = ["weak auto", "weak off"]
"""On a machine that keeps no order: the native core looks at shared words, also for Python."""


@pytest.mark.parametrize(
    ("way", "core"),
    with_nightly(
        [*product(APPENDS, ["auto"]), ("send", "off"), ("flush", "auto")],
        [
            ("batch", "off"),
            *product(["wait", "callback", "statistics", "getters"], ["auto"]),
            *product(OTHERS, ["off"]),
            *product([*APPENDS, *OTHERS], WEAK_CORES),
        ],
    ),
)
def test_each_allocation_fails_in_turn(live: commitlog.Store, way: str, core: str) -> None:
    """An error says that nothing was sent, or has the receipt; no panic of the core comes out."""
    has_core = importlib.util.find_spec("commitlog.native._core") is not None
    if core.startswith("weak") and not has_core:
        pytest.skip("there is no native core")
    if way in BREAK_PYTHON:
        pytest.skip("this Python damages its memory where it finds none")
    _, ended_at = run(live, MESSAGES, way, core)
    is_python = core.endswith("off") or not has_core
    assert not ended_at or (way == "batch" and is_python)


@pytest.mark.nightly
@pytest.mark.parametrize(("way", "core"), with_nightly([("send", "auto")], [("send", "off"), ("batch", "auto")]))
def test_each_allocation_fails_in_turn_where_send_waits(synced: commitlog.Store, way: str, core: str) -> None:
    """The message is in the log while `send` waits for the disk: its error has the receipt."""
    run(synced, MESSAGES, way, core)


@pytest.mark.parametrize("step", with_nightly([7], [1]))
@pytest.mark.parametrize(
    ("way", "core"),
    with_nightly([("append", "auto")], [("send_rows", "auto"), ("send_rows", "off"), ("append", "off")]),
)
def test_each_allocation_fails_in_turn_where_rows_are_sent(
    live: commitlog.Store, way: str, core: str, step: int
) -> None:
    """`rows_sent` is exact, and a row whose `append` has failed was not collected."""
    if way in BREAK_PYTHON:
        pytest.skip("this Python damages its memory where it finds none")
    topic = f"{way}-{core}-{step}"
    live.create_topic(topic, "id BIGINT, name STRING")
    printed, ended_at = run(live, ROWS, topic, core, step)
    read = commitlog.read_arrow(live.path, topic, isolation="committed").read_all().to_pylist()
    found = Counter(row["id"] // 10 for row in read if row["name"] != "usual")
    told = {int(number): int(count) for number, count in re.findall(r"told (\d+) (.*)", printed)}
    assert 4 in told.values()  # it came to its end, with failures on the way
    assert len(told) > 20
    assert {number: found[number] for number in {*found, *told} - {*ended_at}} == told

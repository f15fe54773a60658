"""A consumer by URL and its server are killed at random, while messages come: at least once.

Each consumer writes what it does before it commits that, so nothing may be committed that is not
in its diary.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.named_readers import NamedReaders
from tests.builders.serve_command import serve_command
from tests.nightly import with_nightly
from tests.waiting import wait_until

CONSUMER = """
import os, sys, time, commitlog
url, diary = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    try:
        reader = commitlog.Reader(url, "orders", name="billing", follow=True)
        break
    except commitlog.errors.ServerUnavailable:  # it was killed, and this one has never seen it
        time.sleep(0.05)
with reader:
    for messages in reader.batches(most=50, timeout=1):
        os.write(diary, b"".join(b"%d %d\\n" % (one.partition, one.offset) for one in messages))
        reader.commit()
"""
LANES = 2


@pytest.mark.parametrize(("seed", "kills"), with_nightly([(1, 4)], [(seed, 20) for seed in range(2, 7)]))
def test_kills(tmp_path: Path, seed: int, kills: int) -> None:
    chance, diary = random.Random(seed), tmp_path / "diary"
    ended = threading.Event()
    sent: list[commitlog.Receipt] = []

    def send(store: commitlog.Store) -> None:
        with store.producer() as producer:
            while not ended.is_set():
                sent.append(producer.send("orders", b"x" * 100))
                time.sleep(0.002)
            producer.flush()

    with commitlog.Store.open(tmp_path / "store") as store, serve_command(store.path) as serve:
        threads = [threading.Thread(target=send, args=(store,)) for _ in range(LANES)]
        for thread in threads:
            thread.start()
        consumer = _consumer(serve.url, diary)
        for _ in range(kills):
            seen = len(_done(diary))
            wait_until(lambda: len(_done(diary)) > seen, "the consumer goes on")  # noqa: B023
            time.sleep(chance.random() * 0.3)
            if chance.random() < 0.5:
                serve.kill_server()
            else:
                consumer.kill()
                consumer.wait(60)
                _check(store.path, diary)
                consumer = _consumer(serve.url, diary)
        ended.set()
        for thread in threads:
            thread.join()
        expected = {(one.partition, one.offset) for one in sent}
        wait_until(lambda: expected <= set(_done(diary)), "all messages are done")
        assert consumer.poll() is None
        consumer.kill()
        consumer.wait(60)
        assert set(_done(diary)) == expected
        _check(store.path, diary)


def _consumer(url: str, diary: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CONSUMER, url, str(diary)])


def _done(diary: Path) -> list[tuple[int, int]]:
    """Partition and offset of each whole line."""
    lines = diary.read_bytes().splitlines(keepends=True) if diary.exists() else []
    pairs = [line.split() for line in lines if line.endswith(b"\n")]
    return [(int(lane), int(offset)) for lane, offset in pairs]


def _check(path: Path, diary: Path) -> None:
    """What is committed was done, without a gap, and in order but for what came again."""
    done = _done(diary)
    known = NamedReaders(StoreDirectory(path)).load("billing").offsets.get("orders", {})
    for lane, committed in known.items():
        offsets = [offset for number, offset in done if number == lane]
        assert set(range(committed)) <= set(offsets)
        highest = -1
        for offset in offsets:
            assert offset <= highest + 1, f"lane {lane}: {offset} came behind {highest}"
            highest = max(highest, offset)

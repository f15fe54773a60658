"""Real RocketMQ stores, of both versions, follow a lane as slaves: byte for byte."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.disk.consume_queue import FILE_BYTES, ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory
from tests.builders.slave import slave_port
from tests.nightly import with_nightly
from tests.ports import free_port
from tests.programs import DOCS
from tests.rocketmq.rocketmq import program
from tests.waiting import wait_until

SEGMENT = 1 << 16
CONFIG: dict[str, Any] = {
    "store": {"segment_bytes": SEGMENT, "max_lanes": 2},
    "replication": {"slave_listen": "127.0.0.1:0", "heartbeat_ms": 500},
}
BROKER_POM = "../../scripts/benchmarks/rocketmq/broker.xml"
POMS = {"Slave5": "pom.xml", "Slave4": "pom-4.xml"}
PATIENCE = 180
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")]
"""RocketMQ 4 unmaps files as a Java before 17 allowed it."""
TOPICS = ("orders", "%RETRY%group", "t" * 120)
"""RocketMQ 4 takes no topic of more than 127 bytes."""

pytestmark = pytest.mark.timeout(900)  # the first run fetches RocketMQ


class SlaveStore:
    """A RocketMQ store as a process. `end` is how far its log goes, once all of that is indexed."""

    def __init__(self, kind: str, root: Path, port: int) -> None:
        self.root, self.end = root, -1
        command = program(kind, POMS[kind], "-Xmx512m", *OPENED, f"-Duser.home={root}-home")
        command += [str(root), str(SEGMENT), str(FILE_BYTES), f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._said: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if len(words) == 2 and words[1] == "0" and words[0].isdecimal():
                self.end = int(words[0])
            elif words and not words[0].isdecimal():
                self._said.append(line)

    def follow(self, end: int) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, "".join(self._said)
            return self.end == end

        wait_until(is_there, f"a slave at {end}", patience=PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def slaves(directory: Path, port: int, kinds: Iterable[str] = POMS) -> Iterator[list[SlaveStore]]:
    """One of each version, until the block ends with kill -9."""
    started = [SlaveStore(kind, directory / kind, port) for kind in kinds]
    try:
        yield started
    finally:
        for slave in started:
            slave.kill()


def fill(producer: commitlog.Producer, count: int) -> int:
    for number in range(count):
        tags = "Wört 🙂" if number % 4 == 0 else None
        producer.send(TOPICS[number % 3], bytes([number % 256]) * (number * 37 % 1500), key=f"k{number}", tags=tags)
    end = producer.send_batch("batched", [b"one", b"two", b"", b"four"]).end
    producer.flush(timeout=60)
    return end


def log_of(root: Path, begin: int, end: int) -> bytes:
    files = [file for file in sorted((root / "commitlog").iterdir()) if int(file.name) >= begin]
    return b"".join(file.read_bytes() for file in files)[: end - begin]


def entries_of(root: Path) -> dict[str, list[Any]]:
    lane, found = LaneDirectory(root, 0), {}
    for topic in DISK.list(lane.consumequeue):
        with ConsumeQueue(lane.queue_path(topic)) as queue:
            found[topic] = queue.entries(queue.first(), queue.end() - queue.first()).tolist()
    return found


def check(slave: SlaveStore, lane: Path, begin: int, end: int) -> None:
    assert log_of(slave.root, begin, end) == log_of(lane, begin, end)


@pytest.mark.nightly
@pytest.mark.lasting
@pytest.mark.parametrize("kinds", with_nightly(["Slave5"], ["Slave5 Slave4"]))
def test_slaves_follow_are_killed_and_follow_again(tmp_path: Path, kinds: str) -> None:
    """RocketMQ 4.9.8 and 5.4.0 at the same time: logs and consume queues are equal to ours.

    Those of `kinds` have followed before and were killed; another one begins then.
    """
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        lane = store.path / "lanes" / "0"
        end = fill(producer, 300)
        port = slave_port(store.path)
        with slaves(tmp_path, port, kinds.split()) as first:
            for slave in first:
                slave.follow(end)
                check(slave, lane, 0, end)
        end = fill(producer, 300)
        with slaves(tmp_path, port) as again:
            for slave in again:
                slave.follow(end)
                check(slave, lane, 0, end)
        wait_until(lambda: store.statistics().lanes[0].dispatched == end)
        for slave in again:
            assert entries_of(slave.root) == entries_of(lane)


@pytest.mark.nightly
def test_a_slave_begins_where_retention_has_cut(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store", CONFIG) as store, store.producer() as producer:
        end = fill(producer, 300)
        trim = ["trim", str(store.path), "--keep-bytes", "0", "--yes"]

        def first() -> int:
            assert CliRunner().invoke(app, trim).exit_code == 0
            return store.statistics().lanes[0].first

        begin = wait_until(first)
        with slaves(tmp_path, slave_port(store.path)) as started:
            assert len(started) == len(POMS)
            for slave in started:
                slave.follow(end)
                check(slave, store.path / "lanes" / "0", begin, end)


@pytest.mark.nightly
def test_consumers_of_rocketmq_read_from_a_slave_broker(tmp_path: Path) -> None:
    """A name server, a whole slave broker, a push and a pull consumer, as docs/replicate.md says.

    Each gets every message, and the broker keeps their offsets.
    """
    names, broker = free_port(), free_port()
    told = {**CONFIG["replication"], "slaves": f"0=127.0.0.1:{broker}"}
    (page,) = re.findall(r"```json\n(.*?)```", (DOCS / "replicate.md").read_text(), re.DOTALL)
    root = tmp_path / "slave"
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(page)
    command = program("SlaveBroker", BROKER_POM, "-Xmx700m", f"-Duser.home={tmp_path / 'home'}")
    command += [
        str(root),
        str(SEGMENT),
        str(FILE_BYTES),
        str(names),
        str(broker),
        "orders",
    ]
    expected = {(number, f"m{number}") for number in range(200)}
    with (
        commitlog.Store.open(tmp_path / "store", {**CONFIG, "replication": told}) as store,
        store.producer() as producer,
    ):
        for number in range(200):
            producer.send("orders", f"m{number}".encode(), tags="a" if number % 2 else None)
        producer.flush(timeout=60)
        got: dict[str, set[tuple[int, str]]] = {"push": set(), "pull": set()}
        places: dict[str, str] = {}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.PIPE
        ) as slave:
            try:
                for line in slave.stdout or ():
                    kind, _, rest = line.decode(errors="replace").strip().partition(" ")
                    first, _, second = rest.partition(" ")
                    if kind in got:
                        got[kind].add((int(first), second))
                    elif kind == "at":
                        places[first] = second
                    if places == {"push": "200", "pull": "200"}:
                        break
            finally:
                slave.kill()
    assert got == {"push": expected, "pull": expected}

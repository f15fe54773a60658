"""A store that has a file of every kind, as it is when it is killed and when it is stopped.

Its stages are turned by hand (tests/faults/bench.py), so no process is started. What was sent is
known by its bytes: no reader is asked.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import commitlog
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import AllocateTimeout, ReadingWarning
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.topic_schemas import TopicSchemas
from commitlog.shm.layout import Lane
from tests.command_line import run
from tests.faults.bench import SEGMENT_BYTES, Bench, bench
from tests.faults.channel import FaultyChannel, Rule

TOPICS = ("a", "b", "c")
TYPED = "typed"
READERS = ("billing", "audit")
SLOTS = 3
_VALUE_BYTES = (0, 10, 100, 700, 3000)
"""Of a value: its CRC, a random number and its number in the store come first."""
_ROUND_MESSAGES = 12
"""So many messages fit into the buffers whatever their values are."""


class PlainChannel(FaultyChannel):
    """A channel that knows the file of each descriptor, as a bench needs it, and never fails."""

    def _rule(self, call: str, path: Path | None) -> Rule | None:
        return None

    def fdatasync(self, fd: int) -> None:
        FileChannel.fdatasync(self, fd)


@dataclass(frozen=True)
class Sent:
    """A message that was accepted; `record` is its bytes in the log."""

    lane: int
    topic: str
    offset: int
    where: int
    end: int
    value: bytes
    rows: tuple[tuple[int, str], ...] = ()
    record: bytes = b""

    @property
    def place(self) -> tuple[int, str, int]:
        return self.lane, self.topic, self.offset


@dataclass(frozen=True)
class LaneWords:
    """How far a lane was when the store was killed."""

    wrote: int
    committed: int
    flushed: int


@dataclass
class SoundStore:
    """Two copies of a store below `base`: `killed`, with its `pool`, and `stopped`.

    `path` is where it was, and has to be put back: its pool knows the directory. `first` says where
    each lane begins, since retention. `trimmed` are the places that were trimmed, and `committed`
    says of each named reader and lane what it has done of `READ_TOPIC`.
    """

    base: Path
    path: Path
    pool: Path
    segment_bytes: int = SEGMENT_BYTES
    sent: list[Sent] = field(default_factory=list)
    store_id: str = ""
    known_ends: dict[int, int] = field(default_factory=dict)
    """Lane → how far it is flushed, as `store.json` of the killed store says."""
    words: dict[int, LaneWords] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    trimmed: dict[tuple[int, str], int] = field(default_factory=dict)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)

    def put_back(self, state: str) -> None:
        """Makes the store at `path` as it was: "stopped", "killed", or "killed, no pool"."""
        for path in (self.path, self.pool):
            path.mkdir(mode=0o700, exist_ok=True)
            empty(path)
        shutil.copytree(self.base / state.partition(",")[0], self.path, dirs_exist_ok=True)
        if state == "killed":
            shutil.copytree(self.base / "pool", self.pool, dirs_exist_ok=True)
        else:
            self.pool.rmdir()

    def remove(self) -> None:
        """Removes the store, its pool and the copies."""
        for path in (self.base, self.pool):
            shutil.rmtree(path, ignore_errors=True)


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


READ_TOPIC = {"billing": "a", "audit": "b"}
"""Named reader → the topic that it reads."""
_DIRECT: dict[str, dict[str, Any]] = {"store": {"write_path": "direct"}}
_RETAINS: dict[str, dict[str, Any]] = {"retention": {"max_bytes": 5 * SEGMENT_BYTES}}


def make_sound(base: Path, chance: random.Random) -> SoundStore:
    """A new store below the empty directory `base`, of a random way and length."""
    settings: dict[str, dict[str, Any]] = {}
    if chance.random() < 0.2:
        settings |= _DIRECT
    if retains := chance.random() < 0.3:
        settings |= _RETAINS
    path = base / "store"
    sent: list[Sent] = []
    if chance.random() < 0.7:  # it has been stopped before, so store.json knows its lanes
        with bench(path, None, PlainChannel, None, **settings) as made:
            _Filling(made, chance, SoundStore(base, path, path, sent=sent)).begin()
    with bench(path, None, PlainChannel, None, **settings) as made:
        sound = SoundStore(base, path, made.control.region.path.parent, sent=sent)
        _Filling(made, chance, sound, len(sent)).fill(chance.choice((1, 8, 20)), retains)
    _take_records(sound)
    return sound


@dataclass
class _Filling:
    bench: Bench
    chance: random.Random
    sound: SoundStore
    number: int = 0

    def begin(self) -> None:
        """A first life of the store, which ends with a stop."""
        self._declare()
        producers = [self.bench.producer() for _ in range(2)]
        self._send(producers, _ROUND_MESSAGES)
        self.bench.settle()
        assert self.bench.stop().drained

    def fill(self, rounds: int, retains: bool) -> None:
        made, chance, sound = self.bench, self.chance, self.sound
        directory = StoreDirectory(sound.path)
        self._declare()
        producers = [made.producer() for _ in range(chance.choice((1, 2)))]
        for number in range(rounds):
            self._send(producers, _ROUND_MESSAGES)
            made.settle()
            if number % 4 == 0:
                self._record()
        self._others(directory)
        if retains:
            for _ in range(2):
                self._record()
                made.stages["allocator"].on_wait_end()
        lanes = {message.lane for message in sound.sent} | {producer.lane for producer in producers}
        for lane in lanes:
            sound.first[lane] = made.lane(Lane.FIRST, lane)
        for step in chance.sample(("allocator", "flusher", "committer", "flusher", "dispatcher", "record"), 4):
            self._send(producers, chance.randrange(_ROUND_MESSAGES // 2))
            self._record() if step == "record" else made.turn("allocator", "flusher", step)
        for lane in lanes:
            sound.words[lane] = LaneWords(
                *(made.lane(word, lane) for word in (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED))
            )
        facts = directory.load()
        sound.known_ends, sound.store_id = dict(facts.lanes), facts.id
        shutil.copytree(sound.path, sound.base / "killed")
        shutil.copytree(sound.pool, sound.base / "pool", ignore=shutil.ignore_patterns("*.ipc"))
        report = made.stop()
        assert report.drained, report
        shutil.copytree(sound.path, sound.base / "stopped")

    def _record(self) -> None:
        """Has everything written down that stages write from time to time."""
        self.bench.clock.step(2)
        for stage in ("dispatcher", "flusher"):
            self.bench.stages[stage].on_wait_end()

    def _declare(self) -> None:
        schema = declared_schema("id BIGINT NOT NULL, text STRING")
        TopicSchemas(StoreDirectory(self.sound.path)).declare(TYPED, schema, evolve=False)

    def _send(self, producers: list[commitlog.Producer], count: int) -> None:
        for _ in range(count):
            producer = self.chance.choice(producers)
            try:
                sent = send_one(producer, self.chance, self.number)
            except AllocateTimeout:  # in a store that is written directly
                self.bench.turn(*["allocator"] * 4, "flusher")
                sent = send_one(producer, self.chance, self.number)
            self.sound.sent.append(sent)
            self.number += 1

    def _others(self, directory: StoreDirectory) -> None:
        """Named readers, trim marks, and the files of others that use a store."""
        path, chance, sound = self.sound.path, self.chance, self.sound
        for name in READERS:
            _read_some(sound, name, chance)
        if chance.random() < 0.7 and any(message.topic == "c" for message in sound.sent):
            done = run("topics", path, "--trim", "c", "--before", "last 2", "--yes")
            assert done.returncode == 0, done.stderr
            for lane in {message.lane for message in sound.sent}:
                offsets = [m.offset for m in sound.sent if (m.lane, m.topic) == (lane, "c")]
                sound.trimmed[lane, "c"] = max(max(offsets, default=-1) - 1, 0)
        write_forwarder(directory, ForwarderStatistics("kafka", "localhost:9092", 0, state="stopped"))
        store_id = directory.load().id
        directory.channel.create_directory(directory.replicas_directory, below=directory.path)
        ReplicaFiles(directory).save(ReplicaState("spare", "replica", store_id, acknowledged={0: 0}))


def send_one(producer: commitlog.Producer, chance: random.Random, number: int) -> Sent:
    """Sends a message that no other is equal to, or a few rows."""
    topic = chance.choice((*TOPICS, TYPED))
    if topic == TYPED:
        rows = tuple((number * 100 + row, "x" * chance.randrange(40)) for row in range(chance.randrange(1, 9)))
        receipt = producer.send_rows(TYPED, [{"id": number, "text": text} for number, text in rows])
        assert receipt is not None
        return Sent(producer.lane, topic, receipt.offset, receipt.physical_offset, receipt.end, b"", rows)
    value = b"%d:" % number + chance.randbytes(chance.choice(_VALUE_BYTES))
    receipt = producer.send(topic, value, key=chance.choice((None, "k")), tags=chance.choice((None, "t")))
    return Sent(producer.lane, topic, receipt.offset, receipt.physical_offset, receipt.end, value)


def _read_some(sound: SoundStore, name: str, chance: random.Random) -> None:
    """A named reader reads a part of its topic, if there is any."""
    import warnings

    topic = READ_TOPIC[name]
    messages = [message for message in sound.sent if message.topic == topic]
    if not messages:
        return
    wanted = chance.randrange(1, len(messages) + 1)
    with warnings.catch_warnings(), commitlog.Reader(sound.path, topic=topic, name=name) as reader:
        warnings.simplefilter("ignore", ReadingWarning)
        for count, message in enumerate(reader, 1):
            sound.committed[name, message.partition] = message.offset + 1
            if count == wanted:
                reader.commit(message)
                break


def _take_records(sound: SoundStore) -> None:
    """Notes the bytes of each record; what retention had removed is forgotten."""
    files: dict[tuple[int, int], bytes] = {}
    found = []
    for message in sound.sent:
        start = message.where - message.where % sound.segment_bytes
        if start < sound.first[message.lane]:
            continue
        if (message.lane, start) not in files:
            path = StoreDirectory(sound.base / "stopped").lane_directory(message.lane).segment_path(start)
            files[message.lane, start] = path.read_bytes()
        record = files[message.lane, start][message.where - start : message.end - start]
        assert message.value in record
        found.append(replace(message, record=record))
    sound.sent = found

"""Cuts the power in a recorded run of a store, as often as wanted: what was flushed is there.

A store runs, and its disk is recorded in all processes (recording.py): lanes, topics, rolls,
retention, stages that are killed, a proper stop, a start that recovers. Then, for any point of the
record, the disk is made as it may have been there (disk_model.py), recovered by the real code, and
compared with what had been acknowledged by then. Some of these recoveries are recorded too, and the
power is cut in them.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

import commitlog
from commitlog import errors
from commitlog.disk import file_channel
from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.checkpoint import Positions, PositionsFile
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.inspecting.verify import verify_store
from commitlog.opening.recovery import LaneEnd, recover_lane
from commitlog.shm.layout import STAGES
from tests.crash.accounts import Place, read_store
from tests.crash.disk_model import Disk, Luck, write_state
from tests.crash.recording import JOURNAL, STORE, Entry, Journal, RecordingOs, recording
from tests.crash.scene import WAYS, pid_of
from tests.faults.supervisor import patched_stages
from tests.waiting import wait_until

SEGMENT_BYTES = 1 << 16
QUEUE_ENTRIES = 1000
SETTINGS: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": SEGMENT_BYTES, "max_lanes": 3},
    "flusher": {"positions_interval_ms": 10, "interval_ms": 20},
    "allocator": {"interval_ms": 10, "lane_idle_ms": 50},
    "dispatcher": {"queue_file_entries": QUEUE_ENTRIES, "interval_ms": 20, "linger_ms": 0},
    "retention": {"max_bytes": 12 * SEGMENT_BYTES, "interval_ms": 10},
    "producer": {"buffer_wait_ms": 60_000, "segment_wait_ms": 60_000},
    "supervisor": {"restarts_max": 1000, "restarts_window_ms": 1000, "start_wait_ms": 60_000},
}
_FIRST, _FIRST_AT = struct.Struct("<Q"), 40
"""Where a slot of `positions` says what retention has left (commitlog/disk/checkpoint.py)."""
_BODY_BYTES = (0, 10, 100, 400, 3000)
_WHOLE_STARTS = 25
"""One of this many states is started as a store; of the others only the lanes are recovered."""
_CUT_AGAIN = 8
"""In this many of that many recoveries the power is cut once more."""

# ---- a run, recorded ----------------------------------------------------------------------------


@dataclass
class _Run:
    store: Path
    journal: Journal
    settings: dict[str, dict[str, Any]]
    chance: random.Random
    ended: threading.Event = field(default_factory=threading.Event)
    sent: Counter[int] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)

    def writer(self, number: int, life: int) -> threading.Thread:
        """A thread that sends until it is told to end.

        It notes what was accepted, and what it was told is flushed.
        """
        chance = random.Random(self.chance.randrange(1 << 30))

        def run() -> None:
            try:
                with commitlog.Producer(self.store) as producer:
                    self._send(producer, f"rare-{life}", b"once")
                    while not self.ended.is_set():
                        self._send(
                            producer, f"topic-{chance.randrange(3)}", chance.randbytes(chance.choice(_BODY_BYTES))
                        )
                        self.sent[number] += 1
                        if chance.random() < 0.05:
                            producer.flush(timeout=60)
                            self.journal.note("flushed", lane=producer.lane)
                    producer.flush(timeout=60)
                    self.journal.note("flushed", lane=producer.lane)
            except (errors.StoreStopped, errors.StoreNotRunning):
                return
            except BaseException as error:
                self.failures.append(error)

        return threading.Thread(target=run, name=f"writer-{number}")

    def _send(self, producer: commitlog.Producer, topic: str, body: bytes) -> None:
        receipt = producer.send(topic, body)
        place = (producer.lane, topic, receipt.offset, receipt.physical_offset, zlib.crc32(body))
        self.journal.note("sent", place=place)

    def goes_on(self, messages: int) -> None:
        before = self.sent.total()
        wait_until(lambda: self.failures or self.sent.total() >= before + messages, "writers to go on")
        assert not self.failures, self.failures

    @contextlib.contextmanager
    def writers(self, life: int) -> Iterator[None]:
        self.ended.clear()
        threads = [self.writer(number, life) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures

    def kill_stage(self, name: str) -> None:
        pid = pid_of(self.store, name)
        self.journal.kill([pid])
        wait_until(lambda: pid_of(self.store, name) not in (0, pid), f"a new {name}")

    def kill_everything(self, store: commitlog.Store) -> None:
        """Kills all processes. The memory goes too, so the next start recovers."""
        self.journal.kill([pid_of(self.store, name) for name in ("", *STAGES)])
        with pytest.raises(errors.StageFailed):
            store.close()
        facts = StoreDirectory(self.store).load()
        assert facts.pool is not None
        shutil.rmtree(facts.pool.directory)

    def run(self, messages: int) -> None:
        """Three lives: the first is stopped properly, the second killed, the third recovers."""
        with commitlog.Store.open(self.store, self.settings), self.writers(1):
            for stage in self.chance.sample(STAGES, len(STAGES)):
                self.goes_on(messages)
                self.kill_stage(stage)
            self.goes_on(messages)
        store = commitlog.Store.open(self.store, self.settings)
        with self.writers(2):
            self.goes_on(messages)
            self.kill_everything(store)
        self.journal.note("memory gone")
        with commitlog.Store.open(self.store, self.settings), self.writers(3):
            self.goes_on(messages)


def record(directory: Path, seed: int, way: str = "pool", messages: int = 300) -> Recorded:
    """Runs a store below an empty directory, with about `messages` between two kills."""
    store, journal = directory / "store", Journal(directory / "journal")
    settings = {name: {**SETTINGS.get(name, {}), **WAYS[way].get(name, {})} for name in {*SETTINGS, *WAYS[way]}}
    settings["store"]["segment_bytes"] = SEGMENT_BYTES
    run = _Run(store, journal, settings, random.Random(seed))
    with patched_stages("tests.crash.recording:recorded"), pytest.MonkeyPatch.context() as patch:
        patch.setenv(JOURNAL, str(journal.file))
        patch.setenv(STORE, str(store))
        ours = recording(store, journal.file)
        patch.setattr(file_channel, "os", ours)
        try:
            run.run(messages)
        finally:
            ours.journal.close()
            journal.close()
    entries = list(journal.entries())
    return Recorded(entries)


class Recorded:
    """A recorded run: its `entries`, and `sent`, everything that was ever sent."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.sent = {_place(entry) for entry in entries if entry.what == "sent"}
        self.first = next(i for i, entry in enumerate(entries) if entry.what == "rename" and "store.json" in _to(entry))


def _place(entry: Entry) -> Place:
    return cast(Place, tuple(entry.facts["place"]))


def _to(entry: Entry) -> str:
    return str(entry.facts["target"])


# ---- what must be there ------------------------------------------------------------------------


@dataclass
class Promised:
    """What had been acknowledged up to a point of the record, and what retention had given up.

    Given up are the segments below the `first` that was last written to `positions`, and not those
    that were unlinked: a recovery completes a deletion that had begun, and a stop unlinks segments
    that were made ahead.
    """

    flushed: set[Place] = field(default_factory=set)
    next_offsets: Counter[tuple[int, str]] = field(default_factory=Counter)
    deleted: Counter[int] = field(default_factory=Counter)
    """Lane → the log offset below which messages may be missing."""
    _positions: dict[int, int] = field(default_factory=dict)
    """Inode of a `positions` file → lane."""
    _accepted: dict[int, list[Place]] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        if entry.what == "sent":
            place = _place(entry)
            self._accepted.setdefault(place[0], []).append(place)
        elif entry.what == "flushed":
            for place in self._accepted.pop(entry.facts["lane"], ()):
                self.flushed.add(place)
                self.next_offsets[place[0], place[1]] = max(self.next_offsets[place[0], place[1]], place[2] + 1)
        elif entry.what == "memory gone":
            self._accepted.clear()
        elif entry.what == "create" and entry.facts["path"].endswith("/positions"):
            self._positions[entry.facts["file"]] = int(entry.facts["path"].split("/")[1])
        elif entry.what == "write" and entry.facts["file"] in self._positions:
            lane = self._positions[entry.facts["file"]]
            self.deleted[lane] = max(self.deleted[lane], _FIRST.unpack_from(entry.data, _FIRST_AT)[0])


@dataclass
class Counts:
    """What was tried, and how much was compared."""

    states: int = 0
    cut_again: int = 0
    starts: int = 0
    torn: int = 0
    checks: int = 0

    def add(self, count: int) -> None:
        self.checks += count

    def take(self, other: Counts) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return (
            f"{self.states:,} power cuts ({self.cut_again:,} of them in a recovery, {self.torn:,} with a torn tail, "
            f"{self.starts:,} whole starts), {self.checks:,} checks"
        )


class Failure(AssertionError):
    """Names the state at which something was wrong."""


@dataclass
class _State:
    """A disk after a power cut, made real below `root`, and what it has to hold."""

    root: Path
    promised: Promised
    sent: set[Place]
    counts: Counts

    def lane_directories(self) -> list[LaneDirectory]:
        directory = StoreDirectory(self.root)
        return [directory.lane_directory(number) for number in directory.lane_numbers()]

    @property
    def store_id(self) -> str:
        """The id in `store.json`, where that has reached the disk."""
        try:
            return StoreDirectory(self.root).load().id
        except errors.StoreNotFound:
            return ""

    def recover(self) -> dict[int, LaneEnd]:
        return {
            lane_directory.number: recover_lane(
                lane_directory,
                SEGMENT_BYTES,
                DISK,
                lambda line: None,
                queue_file_bytes=QUEUE_ENTRIES * 20,
                store_id=self.store_id,
            )
            for lane_directory in self.lane_directories()
        }

    def check_lanes(self) -> None:
        """Recovers every lane, compares, and recovers again, which must change nothing."""
        ends = self.recover()
        for end in ends.values():
            self._no_damage(end.findings)
        found = self._compare()
        before = _image(self.root)
        again = self.recover()
        for number, end in ends.items():
            assert (again[number].first, again[number].end, again[number].allocated) == (
                end.first,
                end.end,
                end.allocated,
            )
            assert not again[number].findings, f"a second recovery found {again[number].findings}"
        changed = [name for name, data in _image(self.root).items() if data != before.get(name)]
        assert not changed, f"a second recovery changed {changed}"
        self.counts.add(len(before))
        for lane_directory in self.lane_directories():
            self._index(lane_directory, ends[lane_directory.number], found)

    def _no_damage(self, findings: tuple[str, ...]) -> None:
        """Checks that recovery calls nothing damage.

        A power cut leaves at most a torn tail, and queue entries ahead of it.
        """
        for finding in findings:
            is_torn = ": torn tail: " in finding
            self.counts.torn += is_torn
            assert is_torn or finding.endswith("on named records past the log's end"), f"called damage: {finding}"
        noted = list(self.root.glob("lanes/*/quarantine/corrupt-*"))
        assert not noted, f"called damage: {noted}"

    def _compare(self) -> list[Place]:
        """All that was flushed is there, nothing foreign; once, in order, without a gap."""
        places = read_store(self.root).places
        found = set(places)
        assert len(found) == len(places), "doubled"
        foreign = found - self.sent
        assert not foreign, f"{len(foreign)} that nobody sent: {sorted(foreign)[:3]}"
        lost = [place for place in self.promised.flushed - found if place[3] >= self.promised.deleted[place[0]]]
        assert not lost, f"{len(lost)} flushed and lost: {sorted(lost, key=lambda p: (p[0], p[3]))[:3]}"
        expected: dict[tuple[int, str], int] = {}
        for lane, topic, offset, _, _ in places:
            was = expected.get((lane, topic), offset if self.promised.deleted[lane] else 0)
            assert offset == was, f"lane {lane}, {topic}: offset {offset}, not {was}"
            expected[lane, topic] = offset + 1
        self.counts.add(len(places) + len(self.promised.flushed))
        return places

    def _index(self, lane_directory: LaneDirectory, end: LaneEnd, places: list[Place]) -> None:
        """Consume queues agree, and offsets go on behind the last one that was acknowledged."""
        recorded = PositionsFile(lane_directory, self.store_id, DISK)
        timestamp = end.last_store_timestamp
        recorded.store(Positions(1 << 40, end.end, end.dispatched, end.first, timestamp, drained=False))
        (report,) = verify_store(lane_directory.path).lanes
        assert not report.findings, report.findings[:3]
        ends = {place[1]: place[2] + 1 for place in places if place[0] == lane_directory.number}
        topics = {topic for number, topic in self.promised.next_offsets if number == lane_directory.number} | set(ends)
        for topic in topics:
            queue = ConsumeQueue(lane_directory.queue_path(topic))
            following = max(queue.end(), ends.get(topic, 0))
            queue.close()
            assert following >= self.promised.next_offsets[lane_directory.number, topic], (
                f"{lane_directory.path}, {topic}: {following}"
            )
            assert topic not in ends or following == ends[topic], (
                f"{lane_directory.path}, {topic}: {following} is a gap"
            )
        self.counts.add(report.entries + len(topics))

    def check_start(self) -> None:
        """Checks the same by a whole start, which goes on, stops properly, and starts again."""
        self.counts.starts += 1
        settings = {**SETTINGS, "retention": {}}
        with commitlog.Store.open(self.root, settings) as store:
            self._no_damage(tuple(self._said()))
            with store.producer() as producer:
                mine = [producer.send(f"topic-{number % 3}", b"after the cut") for number in range(6)]
                producer.flush(timeout=60)
            crc = zlib.crc32(b"after the cut")
            new = {(receipt.partition, receipt.topic, receipt.offset, receipt.physical_offset, crc) for receipt in mine}
        self.sent = self.sent | new
        self.promised = Promised(self.promised.flushed | new, self.promised.next_offsets, self.promised.deleted)
        self._compare()
        report = verify_store(self.root)
        assert report.good, report
        with commitlog.Store.open(self.root, settings) as store:
            assert store.close().drained
        self._compare()

    def _said(self) -> Iterator[str]:
        """What recovery found, from the supervisor's log."""
        for line in (self.root / "logs" / "supervisor.log").read_text().splitlines():
            if "torn tail" in line or "corrupt" in line:
                yield line


def _image(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


# ---- cutting -----------------------------------------------------------------------------------


def replay(recorded: Recorded, directory: Path, states: int, seed: int, whole: bool = True) -> Counts:
    """Cuts the power `states` times, anywhere in the record.

    The state that fails is kept below `directory`. With `whole` some of them are started as a
    store.
    """
    chance, counts = random.Random(seed), Counts()
    cuts = sorted(chance.randrange(recorded.first + 1, len(recorded.entries) + 1) for _ in range(states))
    disk, promised, at = Disk(), Promised(), 0
    directory.mkdir(mode=0o700)
    for number, cut in enumerate(cuts):
        for entry in recorded.entries[at:cut]:
            disk.take(entry)
            promised.take(entry)
        at = cut
        luck: Luck = chance.choices(("none", "all", "some"), (2, 1, 7))[0]
        root = directory / f"state-{number}"
        write_state(_rebooted(disk.state(chance, luck)), root)
        try:
            state = _State(root, promised, recorded.sent, counts)
            counts.states += 1
            if number % _CUT_AGAIN == _CUT_AGAIN - 1:
                state = _cut_again(state, chance, directory / f"state-{number}-again")
            if whole and number % _WHOLE_STARTS == _WHOLE_STARTS - 1:
                state.check_start()
            else:
                state.check_lanes()
        except (AssertionError, errors.CommitLogError, OSError) as error:
            what = f"state {number} of seed {seed}, cut at entry {cut} of {len(recorded.entries)}, {luck}, in {root}"
            raise Failure(f"{what}: {type(error).__name__}: {error}") from error
        shutil.rmtree(root)
        if state.root != root:
            shutil.rmtree(state.root)
    return counts


def _rebooted(state: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """The state after a reboot: no pool of before is there."""
    data = state.get("store.json")
    facts = from_checked_json(data, ()) if data else {}
    if facts.get("pool"):
        facts["pool"]["boot_id"] = "another"
        state["store.json"] = to_checked_json(facts)
    return state


def _cut_again(state: _State, chance: random.Random, root: Path) -> _State:
    """The state after a power cut in the recovery of this one."""
    disk, file = Disk(), state.root.with_name(f"{state.root.name}.journal")
    for entry in _as_entries(state.root):
        disk.take(entry)
    ours = recording(state.root, file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_channel, "os", ours)
        state.recover()
    entries = list(ours.journal.entries())
    ours.journal.close()
    file.unlink()
    for entry in entries[: chance.randrange(len(entries) + 1)]:
        disk.take(entry)
    write_state(disk.state(chance, chance.choice(("none", "some", "some"))), root)
    state.counts.cut_again += 1
    return _State(root, state.promised, state.sent, state.counts)


def _as_entries(root: Path) -> Iterator[Entry]:
    """A journal that makes a disk as this one is, all of it synced."""
    paths = sorted(root.rglob("*"))
    for path in paths:
        name, inode = str(path.relative_to(root)), path.lstat().st_ino
        if path.is_dir():
            yield Entry("mkdir", {"path": name})
            continue
        yield Entry("create", {"path": name, "file": inode})
        yield Entry("write", {"file": inode, "offset": 0}, path.read_bytes())
        yield from _synced({"file": inode})
    for path in (root, *paths):
        if path.is_dir():
            yield from _synced({"path": str(path.relative_to(root))})


def _synced(what: dict[str, Any]) -> Iterator[Entry]:
    for step in ("begin", "end"):
        yield Entry(step, {"sync": "made", **what})


__all__ = ["Counts", "Failure", "RecordingOs", "record", "replay"]

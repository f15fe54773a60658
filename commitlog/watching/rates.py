"""What has changed between two snapshots of a store, by lane, stage, topic and reader.

`top` and `ui` show these. A rate is a number a second, over the time between the snapshots.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from commitlog.watching.health import DEFAULT_LIMITS
from commitlog.watching.snapshot import StoreSnapshot, TopicCount


@dataclass(frozen=True)
class LaneRates:
    """One lane. `uncommitted`, `unflushed` and `undispatched` are bytes of its log."""

    lane: int
    producer: int
    """The pid of its producer; 0 when nobody holds the lane."""
    messages_per_second: float
    bytes_per_second: float
    uncommitted: int
    unflushed: int
    undispatched: int
    available_buffers: int | None
    blocked_ms: float | None
    """For how long its producer has been waiting for a buffer; None if it does not wait."""
    faults: dict[str, str]
    """Stage → name of the error that keeps it from going on, such as ENOSPC."""


@dataclass(frozen=True)
class StageRates:
    """One stage process. `cpu` is a part of a core; None where it is not known."""

    stage: str
    pid: int
    silent_ms: float
    rounds_per_second: float
    actions_per_second: float
    p50_us: float | None
    p99_us: float | None
    restarts: int
    cpu: float | None
    resident_bytes: int | None

    @property
    def is_silent(self) -> bool:
        """Whether it has not said for long that it lives, as `health` judges by default."""
        return self.silent_ms > DEFAULT_LIMITS.silent_ms


@dataclass(frozen=True)
class TopicRates:
    """One topic, in all lanes together. Its messages count when they are flushed."""

    topic: str
    messages: int
    messages_per_second: float
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class ReaderRates:
    """One named reader, over all topics and lanes that it reads.

    `messages_per_second` is what it has caught up with. It is None where its position can't be
    read.
    """

    reader: str
    behind: int
    messages_per_second: float | None
    running: bool
    still_ms: int
    """For how long it has not moved."""
    warning: str


@dataclass(frozen=True)
class Rates:
    """All that has changed between two snapshots."""

    over_seconds: float
    messages_per_second: float
    bytes_per_second: float
    lanes: tuple[LaneRates, ...]
    stages: tuple[StageRates, ...]
    topics: tuple[TopicRates, ...]
    readers: tuple[ReaderRates, ...]


def rates(now: StoreSnapshot, earlier: StoreSnapshot) -> Rates:
    """The changes from `earlier` to `now`. What `earlier` does not have counts from now on."""
    seconds = now.seconds_since(earlier)
    lanes = tuple(_lanes(now, earlier, seconds))
    return Rates(
        over_seconds=seconds,
        messages_per_second=sum(lane.messages_per_second for lane in lanes),
        bytes_per_second=sum(lane.bytes_per_second for lane in lanes),
        lanes=lanes,
        stages=tuple(_stages(now, earlier, seconds)),
        topics=tuple(_topics(now, earlier, seconds)),
        readers=tuple(_readers(now, earlier, seconds)),
    )


def _lanes(now: StoreSnapshot, earlier: StoreSnapshot, seconds: float) -> Iterable[LaneRates]:
    for lane in now.statistics.lanes:
        old = earlier.lane(lane.lane) or lane
        yield LaneRates(
            lane=lane.lane,
            producer=lane.producer,
            messages_per_second=max(lane.messages - old.messages, 0) / seconds,
            bytes_per_second=max(lane.wrote - old.wrote, 0) / seconds,
            uncommitted=lane.wrote - lane.committed,
            unflushed=lane.committed - lane.flushed,
            undispatched=lane.flushed - lane.dispatched,
            available_buffers=lane.available_buffers,
            blocked_ms=now.blocked_ms.get(lane.lane),
            faults={stage: errno.errorcode.get(code, str(code)) for stage, code in (lane.faults or {}).items()},
        )


def _stages(now: StoreSnapshot, earlier: StoreSnapshot, seconds: float) -> Iterable[StageRates]:
    before = {stage.stage: stage for stage in earlier.statistics.stages}
    for stage in now.statistics.stages:
        old = before.get(stage.stage, stage)
        took = now.durations[stage.stage]
        if stage.stage in earlier.durations:
            took -= earlier.durations[stage.stage]
        used, used_before = now.usage.get(stage.stage), earlier.usage.get(stage.stage)
        yield StageRates(
            stage=stage.stage,
            pid=stage.pid,
            silent_ms=stage.silent_ms,
            rounds_per_second=max(stage.rounds - old.rounds, 0) / seconds,
            actions_per_second=max(stage.actions - old.actions, 0) / seconds,
            p50_us=took.percentile(0.5),
            p99_us=took.percentile(0.99),
            restarts=stage.restarts,
            cpu=(used.cpu_seconds - used_before.cpu_seconds) / seconds
            if used and used_before and stage.pid == old.pid
            else None,
            resident_bytes=used.resident_bytes if used else None,
        )


def _topics(now: StoreSnapshot, earlier: StoreSnapshot, seconds: float) -> Iterable[TopicRates]:
    ends = {(count.topic, count.lane): count.end for count in earlier.topics}
    counts: dict[str, list[TopicCount]] = defaultdict(list)
    for count in now.topics:
        counts[count.topic].append(count)
    for topic, found in counts.items():
        new = sum(count.end - ends.get((topic, count.lane), count.first) for count in found)
        yield TopicRates(
            topic=topic,
            messages=sum(count.messages for count in found),
            messages_per_second=max(new, 0) / seconds,
            lanes=tuple(count.lane for count in found),
        )


def _readers(now: StoreSnapshot, earlier: StoreSnapshot, seconds: float) -> Iterable[ReaderRates]:
    before = {reader.name: reader.offsets or {} for reader in earlier.readers}
    for reader in now.readers:
        old = before.get(reader.name, reader.offsets or {})
        moved = sum(
            max(offset - old.get(topic, {}).get(lane, offset), 0)
            for topic, lanes in (reader.offsets or {}).items()
            for lane, offset in lanes.items()
        )
        yield ReaderRates(
            reader=reader.name,
            behind=reader.behind,
            messages_per_second=None if reader.offsets is None else moved / seconds,
            running=reader.running,
            still_ms=reader.still_ms,
            warning=reader.warning,
        )

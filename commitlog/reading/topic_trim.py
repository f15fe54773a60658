"""Trims a topic, or deletes it: raises its first offsets in all lanes, durably.

A log holds all topics, so no bytes are deleted at once: they go later, with their segments. Readers
see the same as if retention had deleted the messages. Only flushed messages are trimmed, so that no
mark is beyond the end of a topic after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from commitlog.disk.locks import is_leased
from commitlog.disk.replica_mark import changing
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.trim_marks import TrimMark, TrimMarks
from commitlog.errors import BadStart, OffsetOutOfRange, ReaderError, TopicInUse, refusal
from commitlog.reading.known_topics import check_known, no_lane
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.starting_point import (
    EARLIEST_OFFSET,
    QueueStarts,
    Start,
    offsets_by_queue,
    parse_start,
    read_json,
    resolve,
)
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.shm.layout import Lane
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import for_shell

_FLUSHED_NS = 5_000_000_000
_LOOK_SECONDS = 0.01
_SHAPE = 'give an offset of each lane, such as {"0": 42, "1": -1} (−1: all that is there)'


@dataclass(frozen=True)
class Trim:
    """The plan of a trim: of one topic, in each lane, the messages below an offset."""

    topic: str
    before: Mapping[int, int]
    """Lane → the first offset that stays."""
    messages: int
    """How many messages go."""
    kept: int
    """How many stay."""
    deletes: bool = False


def parse_before(topic: str, text: str) -> QueueStarts:
    """Parses the end of a trim, in the words of `Reader(start=…)`.

    Offsets of single lanes are JSON, `{"0": 42}`. Lanes that are not named keep all messages.
    Raises BadStart.
    """
    if not text.lstrip().startswith("{"):
        return QueueStarts(in_the_past(parse_start(text), text))
    try:
        values = read_json(text)
    except (ValueError, RecursionError) as error:
        raise BadStart(f"{text[:200]!r} is not JSON ({error}); {_SHAPE}") from None
    offsets = offsets_by_queue({topic: values})
    if not offsets[topic]:
        raise BadStart(f"{text[:80]} names no lane; {_SHAPE}")
    return QueueStarts(offsets=offsets)


def in_the_past(start: Start, text: str, clock: Clock = SYSTEM_CLOCK) -> Start:
    """Turns "ago" into a time. Raises BadStart for a time in the future.

    Such a time would trim all messages, so it is taken for a mistake.
    """
    now = clock.wall_ms()
    start = start.at(now)
    if start.kind == "time" and start.value > now:
        raise BadStart(f"{text!r} is in the future; give a time that has been")
    return start


def plan_trim(index: TopicIndex, topic: str, starts: QueueStarts) -> Trim:
    """Looks up which messages a trim would take.

    An offset below a lane's first one takes none there. Raises IllegalTopic, UnknownTopic,
    OffsetOutOfRange (beyond the end, or no such lane).
    """
    check_known(index.view.path, index, [topic])
    ranges = index.ranges(topic)
    for lane, number in starts.offsets.get(topic, {}).items():
        if lane not in ranges and number > EARLIEST_OFFSET:
            raise OffsetOutOfRange(no_lane(topic, lane, ranges))
    before: dict[int, int] = {}
    for lane, queue in sorted(ranges.items()):
        start = starts.of(topic, lane)
        if start.kind == "offset":
            start = Start("offset", max(start.value, queue.first))
        find, where = partial(index.find_by_time, topic, lane), f"topic {topic}, lane {lane}"
        before[lane] = resolve(start, queue.first, queue.end, find, where=where)
    messages = sum(before[lane] - queue.first for lane, queue in ranges.items())
    return Trim(topic, before, messages, sum(queue.end - queue.first for queue in ranges.values()) - messages)


def plan_deletion(index: TopicIndex, topic: str) -> Trim:
    """Looks up which messages a deletion of the topic would take: all flushed ones."""
    ranges = index.ranges(topic)
    before = {lane: queue.end for lane, queue in sorted(ranges.items())}
    return Trim(topic, before, sum(queue.end - queue.first for queue in ranges.values()), 0, deletes=True)


def check_readers(index: TopicIndex, trim: Trim) -> None:
    """Raises TopicInUse if a named reader has not read all messages that would go."""
    ranges = index.ranges(trim.topic)
    readers = NamedReaders(StoreDirectory(index.view.path, index.view.channel))
    for name in readers.names():
        try:
            reader = readers.load(name)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ReaderError) as error:
            raise TopicInUse(
                f"{error}. Until then it may need what would go (--force takes it all the same)"
            ) from error
        if reader.store_id != index.view.store_id:
            continue
        offsets = {lane: reader.offset(trim.topic, lane) for lane in trim.before}
        needed = sum(
            max(trim.before[lane] - max(offset, ranges[lane].first), 0)
            for lane, offset in offsets.items()
            if offset is not None
        )
        if needed:
            raise TopicInUse(
                f"reader {name} has not read {needed:,} of these messages of {trim.topic}: let it read them, drop it with "
                f"`commitlog readers {for_shell(index.view.path)} --remove {for_shell(name)}`, or give --force"
            )


def check_at_rest(view: StoreView, index: TopicIndex, topic: str) -> None:
    """Raises TopicInUse if rows of the typed topic may still come, as from a producer that runs.

    What producers have left is soon flushed where the store runs, and is waited for. The index
    knows it then.
    """
    _check_producers(view, topic)
    _await_flushed(view)
    index.refresh()


def _check_producers(view: StoreView, topic: str) -> None:
    control = view.control
    pool = control.region.path.parent if control else None
    for lane in view.lanes():
        if is_leased(view.lane_directory(lane), pool, view.channel):
            holder = control.row(lane)[Lane.LESSEE_PID] if control else "?"
            raise TopicInUse(
                f"topic {topic} has a schema, and lane {lane} has a producer (process {holder}), which may send rows of it: "
                f"close all producers first, or keep the topic and take its messages: --trim {topic} --before latest"
            )


def _await_flushed(view: StoreView) -> None:
    """A deletion takes what is flushed: what comes to the disk after it would stay."""
    end = SYSTEM_CLOCK.monotonic_ns() + _FLUSHED_NS
    while lanes := view.not_flushed():
        if SYSTEM_CLOCK.monotonic_ns() > end:
            raise TopicInUse(
                f"{view.path}: lane {', '.join(map(str, lanes))} has messages that are not flushed, and some may be of the "
                f"topic: `commitlog health {for_shell(view.path)}` says what keeps them"
            )
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)


def check_nothing_came(view: StoreView, index: TopicIndex, deletion: Trim) -> None:
    """Raises TopicInUse if a producer has come since a deletion was planned, or has left rows.

    The deletion is carried out by now, and the topic's schema is gone for whoever comes.
    """
    topic = deletion.topic
    try:
        check_at_rest(view, index, topic)
        ends = plan_deletion(index, topic).before
        if came := sum(max(end - deletion.before.get(lane, 0), 0) for lane, end in ends.items()):
            raise TopicInUse(f"topic {topic}: {came:,} messages have come meanwhile: delete it again")
    except TopicInUse as error:
        raise TopicInUse(f"{error}. Its older messages are deleted, and it has its schema still") from error


def check_written(view: StoreView) -> None:
    """Raises TopicInUse for a store that does not run and has accepted messages only in memory.

    A deletion takes what is flushed, so the next start would bring these of the topic back.
    """
    if lanes := view.left_in_memory("flushed"):
        raise TopicInUse(
            f"{view.path} does not run, and lane {', '.join(map(str, lanes))} has messages that are only in memory: they "
            f"would come back with the next start: run it first, `commitlog run {for_shell(view.path)}`"
        )


def carry_out(view: StoreView, trim: Trim) -> None:
    """Raises the trim marks. Readers see them when they look at the store again.

    The marks of one lane change in one step. A kill between two lanes leaves some lanes without the
    trim; to do the trim again is harmless. Raises StoreRefused, StoreSuperseded, DamagedFile,
    DiskError, and ReaderError for more trimmed topics than a lane can have.
    """
    directory = StoreDirectory(view.path, view.channel)
    with changing(directory, directory.topics_lock_file):
        for lane, before in trim.before.items():
            marks = TrimMarks(view.lane_directory(lane), view.channel)
            try:
                marks.raise_to(view.store_id, {trim.topic: TrimMark(before, trim.deletes)})
            except OSError as error:
                raise refusal(error, marks.lane_directory.trimmed_file, "writing it") from error

"""The answers to the actions of remote/requests.py: a function each, for a store and a client."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from commitlog.columns.read_plan import Slice
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import IllegalArgument, OffsetOutOfRange, UnknownTopic
from commitlog.inspecting.topic_list import topic_list
from commitlog.planning.row_limit import QueueKey
from commitlog.planning.store_index import LocalIndex, Ranges
from commitlog.reading.known_topics import check_known, no_lane
from commitlog.record.topic_names import check_topic
from commitlog.remote import requests
from commitlog.schemas.topic_schemas import TopicSchema, TopicSchemas
from commitlog.serving.access import Access
from commitlog.serving.flight_errors import damage_as_seen, without_paths
from commitlog.serving.flush_notices import LOOK_SECONDS, REST_SECONDS
from commitlog.serving.served_store import ServedStore
from commitlog.watching.store_facts import as_json, collect

_LOOKS_A_SECOND = 200
"""How often all clients together look that wait for quiet topics of a busy store.

There, each of the notices would be a look of every client. So a client rests after a notice that
was not for it, longer and longer.
"""
_OFFSET_END = 1 << 58
"""Queue offsets are below this: an entry of 20 bytes has its place in a file of 2^63 bytes."""


def look(store: ServedStore, access: Access, request: requests.Look, ports: tuple[int, ...]) -> requests.Looked:
    """Returns the topics that the client may see, with their queues.

    It must be allowed those that it names. It waits as the request says.
    """
    access.check_reads(request.topics or ())
    if not request.wait_ms:
        store.notices.end(request.waiter)
    with store.notices.named(request.waiter) if request.waiter and request.wait_ms else nullcontext():
        return _awaited(store, access, request, ports)


def _awaited(store: ServedStore, access: Access, request: requests.Look, ports: tuple[int, ...]) -> requests.Looked:
    most_ms = requests.NAMED_WAIT_MS_MAX if request.waiter else requests.WAIT_MS_MAX
    deadline_ns = store.clock.monotonic_ns() + min(request.wait_ms, most_ms) * 1_000_000
    rest = 0.0
    while True:
        notices = store.notices.count
        found, pool = _look(store, access, request, ports)
        left_ns = deadline_ns - store.clock.monotonic_ns()
        if found.topics is not None or left_ns <= 0 or store.notices.is_ended(request.waiter):
            return found
        # nobody else looks for what is committed
        most = left_ns / 1e9 if request.isolation == "flushed" else min(left_ns / 1e9, LOOK_SECONDS)
        store.notices.wait(pool, notices, most, rest, request.waiter)
        rest = min(max(2 * rest, REST_SECONDS), store.notices.waiting / _LOOKS_A_SECOND)
        if store.notices.count == notices and store.clock.monotonic_ns() >= deadline_ns:
            return found  # the client asks again, which is a look


def _look(
    store: ServedStore, access: Access, request: requests.Look, ports: tuple[int, ...]
) -> tuple[requests.Looked, Path | None]:
    """The answer as of now, and the store's pool.

    The version has two parts: that of the whole store, and a hash of the topics and queues that are
    wanted. So the client of a quiet topic hears nothing of the others.
    """
    seen_version, _, seen_hash = request.seen.partition(" ")
    with store.index(request.isolation) as (index, version):
        pool = index.pool
        warning = index.warning and damage_as_seen(index.warning, store, access)
        # a boot may lose what is committed and not flushed: then other messages get its offsets
        identity = index.identity if request.isolation == "flushed" else (*index.identity, store.boot_id)
        facts = requests.Looked(
            request.seen,
            index.store_id,
            index.one_log,
            index.live,
            ports,
            epoch=index.epoch,
            warning=warning,
            identity=blake2b(repr(identity).encode(), digest_size=8).hexdigest(),
        )
        if version == seen_version:
            return facts, pool
        present = set(index.topics())
        topics = {topic: topic not in present for topic in index.topics(deleted=True) if access.covers(topic)}
        named = topics if request.topics is None else dict.fromkeys(request.topics)
        wanted = [topic for topic in named if topic in topics]
        ranges = {topic: index.ranges(topic) for topic in wanted}
        queues = {
            topic: {lane: (queue.first, queue.end) for lane, queue in known.sound.items()}
            for topic, known in ranges.items()
        }
    damaged = {
        topic: {lane: damage_as_seen(why, store, access) for lane, why in known.damaged.items()}
        for topic, known in ranges.items()
        if known.damaged
    }
    known_topics = [(topic, topics[topic]) for topic in wanted]
    told = facts.store_id, facts.identity, facts.epoch, facts.live, known_topics, queues, damaged
    own_hash = blake2b(orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS), digest_size=16).hexdigest()
    found = replace(facts, version=f"{version} {own_hash}")
    if own_hash != seen_hash:
        found = replace(found, topics=topics, queues=queues, damaged=damaged)
    return found, pool


def shared_ends(store: ServedStore, access: Access, request: requests.SharedEnds) -> list[int | None]:
    access.check_reads(topic for topic, _ in request.queues)
    with store.index(reads=True) as (index, _):
        _check_queues(store, access, index, request.queues)
        found = index.shared_ends(request.epoch, request.queues)
    return [found.get((topic, lane)) for topic, lane in request.queues]


def find_by_times(store: ServedStore, access: Access, request: requests.FindByTimes) -> list[int | None]:
    access.check_reads(topic for topic, _, _ in request.times)
    times = {(topic, lane): ms for topic, lane, ms in request.times}
    with store.index(request.isolation, reads=True) as (index, _):
        _check_queues(store, access, index, times)
        found = index.find_by_times(times)
    return [found[topic, lane] for topic, lane, _ in request.times]


def sizes(store: ServedStore, access: Access, request: requests.Sizes) -> list[float]:
    ranges = _ranges(access, request.ranges)
    with store.index(request.isolation) as (index, _):
        _check_queues(store, access, index, ranges)
        return [_mean(index, {key: bounds}) for key, bounds in _kept(index, ranges).items()]


def _mean(index: LocalIndex, ranges: Ranges) -> float:
    work = index.work(ranges)
    rows = sum(item.slice.rows for item in work)
    return sum(item.record_bytes * item.slice.rows for item in work) / max(rows, 1)


def limit_rows(store: ServedStore, access: Access, request: requests.LimitRows) -> list[int]:
    ranges = _ranges(access, request.ranges)
    with store.index(reads=True) as (index, _):
        _check_queues(store, access, index, ranges)
        ends = index.limit_rows(_kept(index, ranges), request.most, request.first, request.options)
    return [ends[key] for key in ranges]


def schemas(store: ServedStore, access: Access, request: requests.Schemas) -> dict[str, tuple[int, str]]:
    return {
        topic: (schema.version, requests.encode_schema(schema.columns))
        for topic, schema in newest_schemas(store, access, request.topics).items()
    }


def newest_schemas(store: ServedStore, access: Access, topics: Iterable[str] | None = None) -> dict[str, TopicSchema]:
    """The newest schema of each typed topic that the client may see: of all, or of `topics`."""
    known = TopicSchemas(StoreDirectory(store.path))
    wanted = known.topics() if topics is None else dict.fromkeys(topics)
    return {topic: schema for topic in wanted if access.covers(topic) and (schema := known.latest(topic)) is not None}


def topics(store: ServedStore, access: Access, _request: requests.Topics) -> list[dict[str, Any]]:
    return topic_list(store.path, access.covers)


def stat(store: ServedStore, access: Access, _request: requests.Stat) -> Any:
    values = as_json(*collect(store.path))
    if not access.covers_all:
        values["index_damage"] = "what tells of the topics is damaged" if values["index_damage"] else ""
    for lane in values["lanes"]:
        lane["topics"] = {topic: ends for topic, ends in lane["topics"].items() if access.covers(topic)}
    values["readers"] = [_seen_reader(one, access) for one in values["readers"] if _sees_reader(one, access)]
    return _without_paths(values, store)


def _sees_reader(reader: dict[str, Any], access: Access) -> bool:
    """Whether the client may see all topics of a reader.

    One without offsets may be of any topic: it has a pattern, is new, or its position is damaged.
    """
    known = reader["offsets"]
    return all(map(access.covers, known)) if known else access.covers_all


def _seen_reader(reader: dict[str, Any], access: Access) -> dict[str, Any]:
    """The reader without what it has not read of topics that the client may not see."""
    lag = {topic: lanes for topic, lanes in (reader["lag"] or {}).items() if access.covers(topic)}
    host = reader["host"] if access.covers_all else ""
    behind = sum(sum(lanes.values()) for lanes in lag.values())
    return reader | {"lag": reader["lag"] and lag, "behind": behind, "host": host}


def _without_paths(values: Any, store: ServedStore) -> Any:
    """The values with the store's name in place of its path, in all texts."""
    if isinstance(values, str):
        return without_paths(values, store)
    if isinstance(values, dict):
        return {name: _without_paths(value, store) for name, value in values.items()}
    return [_without_paths(value, store) for value in values] if isinstance(values, list | tuple) else values


def slices_now(index: LocalIndex, parts: Iterable[requests.QueuePart]) -> tuple[Slice, ...]:
    """The slices of a ticket's queue offsets.

    The server itself finds the rows without a consume queue entry. If a client could name them, it
    might lead the reader into the middle of a record. Raises OffsetOutOfRange for offsets that the
    store does not have yet. Offsets that retention has deleted are left to the reader.
    """
    found: list[Slice] = []
    for topic, lane, begin, end in parts:
        queue = index.ranges(topic).get(lane)
        if not (lane >= 0 and 0 <= begin <= end < _OFFSET_END):
            raise IllegalArgument(f"topic {topic[:80]!r}, lane {lane}: [{begin}, {end}) are no offsets of a topic")
        if queue is None:
            check_topic(topic)  # it names a directory: with `/` it would be another place, or another topic
            found.append(Slice(topic, lane, begin, end, -1, 0))
            continue
        if end > queue.end:
            raise OffsetOutOfRange(
                f"topic {topic}, lane {lane}: offset {end} is beyond the store's end, {queue.end}; it belongs to another "
                f"state of this store"
            )
        found += index.slices({(topic, lane): (begin, end)})
    return tuple(found)


def _ranges(access: Access, parts: tuple[requests.QueuePart, ...]) -> dict[QueueKey, tuple[int, int]]:
    access.check_reads(topic for topic, _, _, _ in parts)
    return {(topic, lane): (begin, end) for topic, lane, begin, end in parts}


def _check_queues(store: ServedStore, access: Access, index: LocalIndex, keys: Iterable[QueueKey]) -> None:
    """Raises IllegalTopic, and UnknownTopic, which lists no topic that the client may not see."""
    for topic, lane in keys:
        known = index.ranges(topic)
        if lane not in known:
            check_known(store.path, index, [topic], access.covers)
            raise UnknownTopic(f"{store.path}: {no_lane(topic, lane, known)}")


def _kept(index: LocalIndex, ranges: Ranges) -> dict[QueueKey, tuple[int, int]]:
    """The ranges without what retention has removed since the client has looked.

    Raises OffsetOutOfRange for a range that the store does not have yet.
    """
    kept = {}
    for key, (begin, end) in ranges.items():
        queue = index.ranges(key[0])[key[1]]
        if not 0 <= begin <= end <= queue.end:
            raise OffsetOutOfRange(f"topic {key[0]}, lane {key[1]}: [{begin}, {end}) is not within [0, {queue.end})")
        kept[key] = max(begin, min(queue.first, end)), end
    return kept

"""Plans one stream in Real-Time Mode, where tasks follow the log for as long as a batch lasts.

A task (FollowingTask.java) first reads its backlog: what was there when the batch was planned. Then
it walks the logs of its lanes from where the plan ends, as far as the words of shared memory let
it. Whatever is not as planned ends the batch: a new lane, another start of the store, damage. So
the next plan says what is wrong, as that of any stream does.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from commitlog.appending.followed_store import FollowedStore
from commitlog.columns.read_plan import Slice
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import WaitTimeout
from commitlog.planning.resolving import data_loss
from commitlog.planning.store_index import LocalIndex
from commitlog.reading.view import POSITION_WORDS, LogView
from commitlog.shm.control_region import CONTROL_NAME, ControlRegion
from commitlog.shm.layout import DIRECT_WINDOW, LANE_ROW_WORDS, LANE_ROWS, WORD_BYTES, Lane, segment_start
from commitlog.shm.write_buffers import buffers_path
from commitlog.spark.checkpoint_offsets import StreamOffset, parsed
from commitlog.spark.jvm_plans import tasks_answer
from commitlog.spark.source import StreamReader
from commitlog.spark.task_reading import Task
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import for_shell

Answer = dict[str, Any]
_PATIENCE_NS = 60_000_000_000
"""How long the end of a batch waits until all that it has read is flushed."""
_LOOK_SECONDS = 0.001
_HEAD_BYTES = 48
"""These bytes of a record tell it from any other: see LaneFollower.java."""
_ANY_TIME = -1
"""The time of a file that is changed all the time: only another file at its path counts."""


class RealTimePlans:
    """Plans the batches of one query, and says where they have ended."""

    def __init__(self, reader: StreamReader, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reader, self._clock = reader, clock
        self._directory = StoreDirectory(reader.options.path)
        self._followed = FollowedStore(reader.options.follows)

    def plan(self, start_json: str, parallelism: int) -> Answer:
        """What the tasks of a batch that begins at `start_json` read and follow.

        Raises what the planning of a micro-batch raises.
        """
        reader, start = self._reader, parsed(start_json)
        watched = self._files()
        end = reader.latestOffset(start, ReadAllAvailable())
        index = reader.index
        assert isinstance(index, LocalIndex)
        lanes = self._lanes(index)  # before the index looks again: a task follows from where its backlog ends
        backlog = self._backlog(start, end) if end != start else []
        level = reader.options.follows
        self._followed.follow(index.pool if reader.options.hurry else None)
        if index.pool is not None:
            watched.append(_stamp(index.pool / CONTROL_NAME, any_time=True))
        shares = _shares(lanes, self._most_tasks(parallelism))
        common = index.plan((), reader.options.read)
        plans = [replace(common, slices=tuple(piece for piece in backlog if piece.lane in share)) for share in shares]
        chosen = reader.options.subscription
        topics = index.topics(deleted=True)
        return tasks_answer(plans, common, chosen.chosen(topics)) | {
            "lanes": [[lanes[number] for number in share] for share in shares],
            "base": json.dumps(reader.in_this_epoch(StreamOffset.from_json(start)).to_json()),
            "end": json.dumps(end),
            "latest": json.dumps(reader.reportLatestOffset()),
            "words": lane_words(index, POSITION_WORDS[level]),
            "is_ahead": level != "flushed",
            "buffers": _rows(index.pool) if level == "accepted" and index.pool is not None else None,
            "new_lane": new_lane if (new_lane := _new_lane(index)) < LANE_ROWS else -1,
            "watched": watched,
            "passed_over": None if chosen.pattern is None else sorted({*topics}.difference(chosen.chosen(topics))),
        }

    def _backlog(self, start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
        made = self._reader.partitions(start, end)
        return [piece for task in made if isinstance(task, Task) for piece in task.plan.slices]

    def _most_tasks(self, parallelism: int) -> int:
        """A task lasts as long as its batch, so half of the cores are left for other work."""
        return self._reader.options.min_partitions or max(parallelism // 2, 1)

    def _lanes(self, index: LocalIndex) -> dict[int, Answer]:
        """Lane → where its log ends for the plan, and where each topic goes on there."""
        subscription = self._reader.options.subscription
        topics = subscription.chosen(index.topics(deleted=True))
        ranges = {topic: index.ranges(topic).sound for topic in topics}
        found = {}
        for number, lane in index.index.lanes.items():
            found[number] = {
                "lane": number,
                "log": str(lane.log.lane_directory.commitlog),
                "from": lane.records_end,
                "is_whole": lane.open_hole is None,
                "buffers": None if index.pool is None else str(buffers_path(index.pool, number)),
                "next": {
                    topic: ranges[topic][number].end if number in ranges[topic] else 0
                    for topic in topics
                    if subscription.has_lane(topic, number)
                },
            }
        return found

    def _files(self) -> list[Answer]:
        """The files that change where a store is started, stopped, or put in place of another one.

        A replica has no shared memory: its positions are in files.
        """
        files = [self._directory.file]
        if self._directory.replica_file.exists():
            lanes = [self._directory.lane_directory(number) for number in self._directory.lane_numbers()]
            files += [self._directory.replica_file, *(lane.positions_file for lane in lanes)]
        return [_stamp(file) for file in files]

    def merge(self, question: dict[str, Any]) -> Answer:
        """Where a batch has ended: `reached` has the queues that are not where it was planned.

        A checkpoint is never ahead of what is flushed: a batch that has read more waits here.
        Raises DataLoss if the store has lost messages that were read, and WaitTimeout. Where the
        query goes on after that, it reads the lanes that are `lost` once more from where the batch
        began, as there may be new messages at the offsets of those that were lost.
        """
        base, planned = (StreamOffset.from_json(parsed(question[name])) for name in ("base", "end"))
        ends = {topic: dict(lanes) for topic, lanes in planned.ends.items()}
        for topic, lanes in question["reached"].items():
            ends.setdefault(topic, {}).update({int(lane): offset for lane, offset in lanes.items()})
        index = self._reader.look()  # this process may be a new one
        assert isinstance(index, LocalIndex)
        lost = [lane["lane"] for lane in question["lanes"] if self._is_lost(index.index.view, lane)]
        index.refresh()
        earliest = {
            topic: {lane: planned.begins.get(topic, {}).get(lane, 0) for lane in queues}
            for topic, queues in ends.items()
        }
        for topic, queues in ends.items():
            known = index.ranges(topic)
            for number in {*lost} & queues.keys():
                begin = base.ends.get(topic, {}).get(number, earliest[topic][number])
                queues[number] = min(begin, known[number].end) if number in known else 0
        merged = StreamOffset(base.store, ends, epoch=base.epoch).following(base, earliest)
        latest = json.dumps(self._reader.reportLatestOffset())
        return {"offset": json.dumps(merged.to_json()), "latest": latest, "lost": lost}

    def _is_lost(self, view: LogView, lane: Answer) -> bool:
        """Whether the store has lost what was read of a lane before it was flushed.

        Waits until it is flushed. Raises DataLoss unless failOnDataLoss=false, and WaitTimeout.
        """
        options, number, end = self._reader.options, lane["lane"], lane["where"]
        deadline = self._clock.monotonic_ns() + _PATIENCE_NS
        while (flushed := view.limits(number).flushed) < end and view.live:
            if self._clock.monotonic_ns() > deadline:
                raise WaitTimeout(
                    f"{options.path}: lane {number} is flushed up to {flushed:,} only, and the query has read up to {end:,}: "
                    f"`commitlog health {for_shell(options.path)}` says why; the query goes on from its last checkpoint"
                )
            self._clock.sleep(_LOOK_SECONDS)
            view.refresh()
        if flushed >= end and _head_at(view, number, lane["last"]) == bytes.fromhex(lane["head"]):
            return False
        data_loss(
            options, f"lane {number}: the query has read messages before they were flushed, and the store has lost them"
        )
        return True


def _head_at(view: LogView, lane: int, where: int) -> bytes:
    """The first bytes of a record, which tell it from any other; fewer if it is not there."""
    start = segment_start(where, view.segment_bytes)
    try:
        with view.channel.opened(view.lane_directory(lane).segment_path(start)) as fd:
            return view.channel.pread(fd, _HEAD_BYTES, where - start)
    except FileNotFoundError:
        return b""


def _rows(pool: Path) -> Answer:
    """Where the words are that tell which of a lane's bytes are in its write buffers."""
    return {
        "file": str(pool / CONTROL_NAME),
        "first": ControlRegion.row_at(0) * WORD_BYTES,
        "step": LANE_ROW_WORDS * WORD_BYTES,
        "committed": Lane.COMMITTED,
        "flushed": Lane.FLUSHED,
        "sequence": Lane.BUFFERS,
        "slots": Lane.SLOTS,
        "direct": Lane.DIRECT,
        "direct_window": DIRECT_WINDOW,
    }


def lane_words(index: LocalIndex, word: int) -> Answer | None:
    """Where a word of each lane lies, and of a lane that may come next.

    None if nobody runs the store.
    """
    if index.pool is None:
        return None
    lanes = min(_new_lane(index) + 1, LANE_ROWS)
    first = (ControlRegion.row_at(0) + word) * WORD_BYTES
    return {"file": str(index.pool / CONTROL_NAME), "first": first, "step": LANE_ROW_WORDS * WORD_BYTES, "lanes": lanes}


def _new_lane(index: LocalIndex) -> int:
    return max({*index.index.lanes, *index.index.left_out}, default=-1) + 1


def _shares(lanes: Iterable[int], most: int) -> list[list[int]]:
    """The lanes of each task. There is one task at least: it waits for the first lane."""
    numbers = sorted(lanes)
    tasks = max(min(most, len(numbers)), 1)
    return [numbers[task::tasks] for task in range(tasks)]


def _stamp(file: Path, *, any_time: bool = False) -> Answer:
    """What tells a file from another one at its path, or from itself after a change."""
    inode, modified = 0, _ANY_TIME
    with contextlib.suppress(OSError):
        facts = os.stat(file)
        inode, modified = facts.st_ino, _ANY_TIME if any_time else facts.st_mtime_ns
    return {"file": str(file), "inode": inode, "modified_ns": modified}

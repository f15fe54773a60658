"""Planned tasks, as the source in Java takes them (ReadPlan.java, Slice.java)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from commitlog.columns.read_plan import ReadPlan, Slice
from commitlog.disk.store_directory import StoreDirectory
from commitlog.record.properties import RESERVED_NAMES, RESERVED_PREFIX
from commitlog.spark.message_layouts import layouts


def tasks_answer(plans: Sequence[ReadPlan], common: ReadPlan, followed: Iterable[str] = ()) -> dict[str, Any]:
    """The plans of all tasks. `common` is what they have in common: a plan of no slices.

    The tasks may meet messages of the topics that are `followed`, too.
    """
    read = common.options
    if read.values == "json":
        read = replace(read, values="bytes")  # Java alone parses JSON, also what Python reads for it
    pieces = [piece for plan in plans for piece in plan.slices]
    topics = {piece.topic for piece in pieces}.union(followed)
    lanes = {number: common.lane_directory(number) for number in {piece.lane for piece in pieces}}
    logs = {number: {"log": str(lane.commitlog), "quarantine": str(lane.quarantine)} for number, lane in lanes.items()}
    queues = {number: str(lane.consumequeue) for number, lane in lanes.items()}
    return {
        "store_file": str(StoreDirectory(common.path).file),
        "store_id": common.store_id,
        "epoch": common.epoch,
        "segment_bytes": common.segment_bytes,
        "reserved_names": sorted(RESERVED_NAMES),
        "reserved_prefix": RESERVED_PREFIX,
        "for_python": json.dumps(asdict(replace(common, slices=(), options=read))),
        "tasks": [[_slice(piece, queues[piece.lane], logs[piece.lane]) for piece in plan.slices] for plan in plans],
        **({"layouts": layouts(common.path, topics)} if common.options.values == "columns" else {}),
    }


_FIELDS = tuple(field.name for field in fields(Slice))


def _slice(piece: Slice, queues: str, logs: dict[str, str]) -> dict[str, Any]:
    """A slice with the directories of its bytes."""
    own = {name: getattr(piece, name) for name in _FIELDS}  # a plan may have a hundred thousand of them
    return own | logs | {"queue": f"{queues}/{piece.topic}/{piece.lane}"}

"""Planned tasks, as the source in Java takes them (ReadPlan.java, Slice.java)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from commitlog.columns.read_plan import ReadPlan, Slice
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.record.properties import RESERVED_NAMES, RESERVED_PREFIX
from commitlog.spark.message_layouts import layouts


def tasks_answer(plans: Sequence[ReadPlan], common: ReadPlan) -> dict[str, Any]:
    """The plans of all tasks. `common` is what they have in common: a plan of no slices."""
    read = common.options
    if read.values == "json":
        read = replace(read, values="bytes")  # Java alone parses JSON, also what Python reads for it
    pieces = [piece for plan in plans for piece in plan.slices]
    topics = {piece.topic for piece in pieces}
    lanes = {number: common.lane_directory(number) for number in {piece.lane for piece in pieces}}
    return {
        "store_file": str(StoreDirectory(common.path).file),
        "store_id": common.store_id,
        "segment_bytes": common.segment_bytes,
        "reserved_names": sorted(RESERVED_NAMES),
        "reserved_prefix": RESERVED_PREFIX,
        "for_python": json.dumps(asdict(replace(common, slices=(), options=read))),
        "tasks": [[_slice(piece, lanes[piece.lane]) for piece in plan.slices] for plan in plans],
        **({"layouts": layouts(common.path, topics)} if common.options.values == "columns" else {}),
    }


def _slice(piece: Slice, lane: LaneDirectory) -> dict[str, Any]:
    """A slice with the directories of its bytes."""
    queue = lane.queue_path(piece.topic)
    return asdict(piece) | {"log": str(lane.commitlog), "queue": str(queue), "quarantine": str(lane.quarantine)}

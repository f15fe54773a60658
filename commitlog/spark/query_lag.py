"""Computes how far a query is behind, from the progress that Spark reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def lag(progress: Any) -> dict[str, dict[int, int]]:
    """How many flushed messages a query has not read yet: topic → lane → count.

    Messages count if they were flushed when the batch was planned. `progress` is a query's
    `lastProgress`, an item of `recentProgress`, or the progress that a StreamingQueryListener gets;
    None gives {}. Sources of other formats are ignored. Several sources of this format are added
    up.
    """
    if progress is None:
        return {}
    facts = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    found: dict[str, dict[int, int]] = {}
    for source in facts.get("sources", ()):
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if "@store" not in end:
            continue
        for topic, lanes in (latest or end).items():
            if topic.startswith("@"):
                continue
            read = end.get(topic, {})
            queue = found.setdefault(topic, {})
            for lane, offset in lanes.items():
                behind = max(offset - read.get(lane, 0), 0)
                queue[int(lane)] = queue.get(int(lane), 0) + behind
    return found


def _offset(value: Any) -> dict[str, Any]:
    """An offset of the progress, which is an object, the JSON of one, or nothing."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}

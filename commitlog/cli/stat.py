"""`commitlog stat STORE`: topics, positions, stages. Works on a live store, a stopped one, and one whose stages hang."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shm.layout import STAGES, Header, Lane, Stage
from shm.pool import available_buffers
from shm.positions import ControlRegion
from shm.statistics import Histogram


def stat(
    store: Annotated[Path, typer.Argument(help="Directory of the store.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show topics with their counts a lane, positions, and what the stages do."""
    facts = collect(store)
    if json:
        import orjson

        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    state = "running" if facts["running"] else "stopped"
    typer.echo(
        f"{facts['path']}  {state}, segments of {facts['segment_bytes']:,} bytes, generation {facts['generation']}"
    )
    for lane in facts["lanes"]:
        typer.echo(
            f"lane {lane['lane']}: wrote {lane['wrote']:,}, committed {lane['committed']:,}, flushed {lane['flushed']:,}, "
            f"dispatched {lane['dispatched']:,}" + (f", fault {lane['faults']}" if lane["faults"] else "")
        )
        for topic, (first, end) in lane["topics"].items():
            typer.echo(f"    {topic}: {end - first:,} messages, offsets {first:,} to {end:,}")
    for stage in facts["stages"]:
        p50, p99 = stage["p50_us"], stage["p99_us"]
        took = f", p50 {p50:,.0f} µs, p99 {p99:,.0f} µs" if p50 is not None else ""
        typer.echo(
            f"{stage['stage']}: pid {stage['pid']}, {stage['actions']:,} actions{took}, {stage['restarts']} restarts"
        )


def collect(store: Path) -> dict[str, Any]:
    """Everything that `stat --json` prints."""
    from commitlog.topic_index import TopicIndex
    from commitlog.view import StoreView

    view = StoreView(store)
    try:
        index = TopicIndex(view)
        index.refresh()
        topics = {
            lane: {topic: (known.first, known.end) for topic, known in sorted(index.lanes[lane].queues.items())}
            for lane in index.lanes
        }
        return {
            "path": str(view.directory.path),
            "store_id": view.store_id,
            "running": view.channel.is_locked(view.directory.lock_file),
            "generation": view.facts.generation,
            "segment_bytes": view.segment_bytes,
            "lanes": [_lane(view, lane) | {"topics": topics.get(lane, {})} for lane in view.lanes()],
            "stages": [_stage(view.control, name) for name in STAGES] if view.control else [],
            "closing": bool(view.control and view.control.words[Header.CLOSING]),
        }
    finally:
        view.close()


def _lane(view: Any, lane: int) -> dict[str, Any]:
    limits = view.limits(lane)
    facts = {
        "lane": lane,
        "first": limits.first,
        "wrote": limits.committed,
        "committed": limits.committed,
        "flushed": limits.flushed,
        "dispatched": limits.dispatched,
        "faults": {},
    }
    if view.control is not None:
        words, base = view.control.words, view.control.lane_base(lane)
        facts["wrote"] = words[base + Lane.WROTE]
        facts["producer"] = words[base + Lane.LESSEE_PID]
        facts["buffer_waits"] = words[base + Lane.BUFFER_WAITS]
        if words[base + Lane.BUFFERS] & 1:
            size, slots = words[base + Lane.SEGMENT_SIZE], words[base + Lane.SLOTS]
            facts["available_buffers"] = available_buffers(facts["wrote"], limits.flushed, size, slots)
        names = ("committer", "flusher", "allocator", "dispatcher")
        faults = (Lane.COMMITTER_FAULT, Lane.FLUSHER_FAULT, Lane.ALLOCATOR_FAULT, Lane.DISPATCHER_FAULT)
        facts["faults"] = {
            name: words[base + word] for name, word in zip(names, faults, strict=True) if words[base + word]
        }
    return facts


def _stage(control: ControlRegion, name: str) -> dict[str, Any]:
    words, base = control.words, control.stage_base(name)
    durations = Histogram.load(words, base + Stage.HISTOGRAM)
    return {
        "stage": name,
        "pid": words[base + Stage.PID],
        "rounds": words[base + Stage.ROUNDS],
        "wakeups": words[base + Stage.WAKEUPS],
        "actions": words[base + Stage.ACTIONS],
        "bad_frames": words[base + Stage.BAD_FRAMES],
        "restarts": words[base + Stage.RESTARTS],
        "p50_us": durations.percentile(0.5),
        "p99_us": durations.percentile(0.99),
    }

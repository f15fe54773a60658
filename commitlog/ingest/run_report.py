"""The report of a run: one JSON document, and the same in words for the screen."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from commitlog.ingest.dashboard import milliseconds
from commitlog.ingest.history import History
from commitlog.ingest.job import Job
from commitlog.ingest.meter import STEPS
from commitlog.ingest.resources import GROUPS
from commitlog.ingest.verdict import EXACTLY_ONCE, Verdict
from commitlog.native import description
from commitlog.text.quantities import counted

_BINS_MAX = 600
_PACKAGES = ("pyspark-commitlog", "pyspark", "pyarrow", "pyzmq", "numpy", "psutil")


def build(job: Job, verdict: Verdict) -> dict[str, Any]:
    """Everything there is to say about a finished run, as plain JSON values."""
    settings, history = job.settings, job.history
    sent = sum(producer.sent for producer in job.producers)
    reading = history.reading
    counts = {step: round(reading.messages[step]) if reading else 0 for step in STEPS}
    rates, lag_over_time = _over_time(history)
    return {
        "verdict": verdict.text,
        "errors": job.errors,
        "sent": sent,
        "skipped": sum(producer.skipped for producer in job.producers),
        "committed": counts["committed"],
        "flushed": counts["flushed"],
        "dispatched": counts["dispatched"],
        "read": history.spark_rows,
        "rows": verdict.rows,
        "seconds": round(job.sending_seconds, 3),
        "seconds_to_start": round(job.start_seconds, 3),
        "seconds_to_drain": round(job.drain_seconds, 3),
        "messages_per_second": round(sent / job.sending_seconds) if job.sending_seconds else 0,
        "body_bytes": sum(producer.body_bytes for producer in job.producers),
        "log_bytes": reading.bytes["sent"] if reading else 0,
        "rates": rates,
        "lag": {
            "sent": 0,
            "committed": max(counts["sent"] - counts["committed"], 0),
            "flushed": max(counts["committed"] - counts["flushed"], 0),
            "dispatched": max(counts["flushed"] - counts["dispatched"], 0),
            "spark": max(counts["flushed"] - history.spark_rows, 0),
        },
        "lag_over_time": lag_over_time,
        "latency_ms": {
            "flushed": history.flushed_latencies.summary(),
            "spark": history.spark_latencies.summary(),
        },
        "fsync": _syncs(history),
        "spark": {"batches": history.batch_count, "rows_max": int(max(history.batches.column("rows"), default=0))},
        "resources": _resources(history),
        "restarts": reading.restarts if reading else {},
        "events": history.events,
        "producers": _producers(job, verdict),
        "settings": {
            "run": settings.run,
            "topic": settings.topic,
            "seconds": settings.seconds,
            "producers": settings.producers,
            "rate": settings.rate,
            "input": list(settings.inputs),
            "follow": settings.follow,
            "skip_long": settings.skip_long,
            "store": str(settings.store),
            "out": str(settings.out),
            "config": settings.config,
            "segment_bytes": job.segment_bytes,
        },
        "versions": _versions(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "picture": str(settings.picture),
        "page": str(settings.page),
    }


def write(report: dict[str, Any], path: Path) -> None:
    path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


def _over_time(history: History) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Messages a second in equal bins, and how far each stage was behind at the end of each bin."""
    seconds = history.steps.seconds
    if len(seconds) < 2:
        return {"seconds": [], **{name: [] for name in (*STEPS, "spark")}}, {"seconds": []}
    end = seconds[-1]
    width = max(1.0, float(np.ceil(end / _BINS_MAX)))
    edges = np.append(np.arange(0.0, end, width), end)
    if len(edges) > 2 and edges[-1] - edges[-2] < width / 2:
        edges = np.delete(edges, -2)  # the rate of a last bin of a few milliseconds would be noise
    cumulative = {step: np.interp(edges, [0.0, *seconds], [0.0, *history.steps.column(step)]) for step in STEPS}
    spark_seconds, spark_rows = history.spark.seconds, history.spark.column("messages")
    cumulative["spark"] = np.interp(edges, spark_seconds or [0.0], spark_rows or [0.0])
    spans = np.diff(edges)
    rates = {"seconds": np.round(edges[1:], 2).tolist()}
    rates |= {name: np.round(np.diff(values) / spans, 1).tolist() for name, values in cumulative.items()}
    lag = {"seconds": rates["seconds"]}
    pairs = [("committed", "sent"), ("flushed", "committed"), ("dispatched", "flushed"), ("spark", "flushed")]
    for name, before in pairs:
        lag[name] = np.round(np.maximum(cumulative[before] - cumulative[name], 0)[1:]).tolist()
    return rates, lag


def _syncs(history: History) -> dict[str, Any]:
    if history.reading is None:
        return {"count": 0}
    syncs = history.reading.syncs
    p50, p99 = syncs.percentile(0.5), syncs.percentile(0.99)
    return {
        "count": syncs.total,
        "p50_ms": None if p50 is None else p50 / 1000,
        "p99_ms": None if p99 is None else p99 / 1000,
    }


def _resources(history: History) -> dict[str, Any]:
    """Cores in use and private memory over time, for each group and for all of them.

    They show whether memory stays flat.
    """
    series = history.resources
    cores = {group: [round(value, 3) for value in series.column(f"{group}_cores")] for group in GROUPS}
    memory = {group: [int(value) for value in series.column(f"{group}_bytes")] for group in GROUPS}
    memory["pool"] = [int(value) for value in series.column("pool_bytes")]
    memory["total"] = [sum(values) for values in zip(*memory.values(), strict=True)]
    return {"seconds": [round(at, 1) for at in series.seconds], "cores": cores, "memory_bytes": memory}


def _producers(job: Job, verdict: Verdict) -> list[dict[str, Any]]:
    found = {count["producer"]: count for count in verdict.to_json()}
    return [
        {
            **found.get(producer.number, {"producer": producer.number, "sent": producer.sent}),
            "lane": producer.lane,
            "finished": producer.done,
            "waits": producer.waits,
        }
        for producer in job.producers
    ]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "linux": platform.release(), "core": description}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def verdict_line(report: dict[str, Any]) -> str:
    """The verdict as the headline of picture and page."""
    if report["verdict"] == EXACTLY_ONCE:
        return f"✓ exactly once: all {report['sent']:,} messages sent are in the Parquet files, each one time"
    return f"✗ NOT exactly once: {report['verdict']}"


def source_line(settings: dict[str, Any]) -> str:
    """Who sent what, and how fast it was meant to be."""
    source = f"{settings['producers']} producer process{'es' if settings['producers'] > 1 else ''}"
    if settings["input"]:
        source += f", lines of {len(settings['input'])} input{'s' if len(settings['input']) > 1 else ''}"
    else:
        source += " sampling this machine"
    rate = f"{settings['rate']:,.0f} messages/s each" if settings["rate"] else "as fast as it goes"
    return f"{source}, {rate}"


def mean(values: list[float]) -> float:
    """The mean of a group's cores over a run."""
    busy = values[1:] or values  # the first look has nothing to compare with
    return sum(busy) / len(busy)


def lines(report: dict[str, Any]) -> list[str]:
    """The report in words."""
    seconds, latency, sync = report["seconds"], report["latency_ms"], report["fsync"]
    out = Path(report["settings"]["out"])
    said = [
        f"verdict      {report['verdict']}",
        f"messages     sent {report['sent']:,}, committed {report['committed']:,}, flushed {report['flushed']:,}, "
        f"read by Spark {report['read']:,}, rows in Parquet {report['rows']:,}",
        f"speed        {report['messages_per_second']:,} messages/s for {seconds:.1f} s, "
        f"{report['body_bytes'] / 1e6:,.1f} MB of bodies, {report['log_bytes'] / 1e6:,.1f} MB in the log",
        f"Spark        batches: {report['spark']['batches']:,}; ready after {report['seconds_to_start']:.1f} s, "
        f"drained {report['seconds_to_drain']:.1f} s after the last message",
    ]
    for name, title in (("flushed", "send → flushed"), ("spark", "send → Spark")):
        facts = latency[name]
        said.append(
            f"{title:14}  p50 {milliseconds(facts['p50'])}, p99 {milliseconds(facts['p99'])}, "
            f"longest {milliseconds(facts['max'])} ({facts['measured']:,} measured)"
        )
    if sync["count"]:
        p50, p99 = milliseconds(sync["p50_ms"]), milliseconds(sync["p99_ms"])
        said.append(f"fsync        {sync['count']:,} of them, p50 {p50}, p99 {p99}")
    memory = report["resources"]["memory_bytes"]["total"]
    if memory:
        said.append(
            f"memory       {memory[0] / 1e6:,.0f} MB at first, {max(memory) / 1e6:,.0f} MB at most, "
            f"{memory[-1] / 1e6:,.0f} MB at the end (all processes and the pool)"
        )
    behind = report["lag"]["spark"]
    if behind:
        said.append(f"lag          Spark has not read {behind:,} messages that are flushed")
    said.append(f"core         {report['versions']['core']}")
    if report["skipped"]:
        said.append(f"skipped      {counted(report['skipped'], 'line')} longer than a message may be")
    said += [f"note         {event}" for event in report["events"]]
    said += [f"error        {error}" for error in report["errors"]]
    said += [
        f"table        {out}/batch=*/*.parquet",
        f"picture      {report['picture']}",
        f"page         {report['page']}",
    ]
    return said

"""The report of a run as one file of HTML, which needs no other: to keep, or to send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from commitlog.ingest.dashboard import megabytes, milliseconds
from commitlog.ingest.run_report import mean, source_line, verdict_line
from commitlog.ingest.verdict import EXACTLY_ONCE

_TEMPLATE = Path(__file__).with_name("report.html")
_STAGES = {
    "sent": ("sent", ""),
    "committed": ("committed", "committer"),
    "flushed": ("flushed", "flusher"),
    "dispatched": ("dispatched", "dispatcher"),
    "spark": ("read by Spark", ""),
}
"""What the page calls each stage, and the process whose restarts it shows."""


def write(report: dict[str, Any], plots: str, path: Path) -> None:
    path.write_text(page(report, plots), encoding="utf-8")


def page(report: dict[str, Any], plots: str) -> str:
    """The page; `plots` is an SVG element. All other texts are escaped here."""
    good = report["verdict"] == EXACTLY_ONCE and not report["errors"]
    settings = report["settings"]
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"commitlog ingest, run {settings['run']}: {report['verdict']}"),
        mood="good" if good else "bad",
        verdict=escape(verdict_line(report)),
        errors="".join(f'<p class="bad">{escape(error)}</p>' for error in report["errors"]),
        facts=escape(_facts(report)),
        source=escape(source_line(settings)),
        run=escape(settings["run"]),
        finished=escape(report["finished"]),
        stages=_stages(report),
        latencies=_latencies(report),
        plots=plots,
        events=_events(report["events"]),
        producers=_producers(report["producers"]),
        resources=_resources(report["resources"]),
        settings=_texts(settings),
        versions=_texts(report["versions"]),
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text. The first cell of a row is its name; without titles there is no head."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if titles else ''}<tbody>{body}</tbody></table>"


def _facts(report: dict[str, Any]) -> str:
    return (
        f"{report['messages_per_second']:,} messages/s for {report['seconds']:.1f} s: "
        f"{megabytes(report['body_bytes'])} of bodies, {megabytes(report['log_bytes'])} in the log, "
        f"{report['rows']:,} rows in Parquet, {report['spark']['batches']:,} batches of Spark. "
        f"Ready after {report['seconds_to_start']:.1f} s, "
        f"drained {report['seconds_to_drain']:.1f} s after the last message."
    )


def _stages(report: dict[str, Any]) -> str:
    rates, lags = report["rates"], report["lag_over_time"]
    rows = []
    for key, (name, process) in _STAGES.items():
        count = report["read" if key == "spark" else key]
        behind = ("", "") if key == "sent" else (f"{max(lags.get(key, []), default=0):,.0f}", f"{report['lag'][key]:,}")
        restarts = str(report["restarts"].get(process, 0)) if process else ""
        rows.append((name, f"{count:,}", f"{max(rates[key], default=0):,.0f}", *behind, restarts))
    titles = ("stage", "messages", "most messages/s", "most behind", "behind at the end", "restarts")
    return _table(titles, rows)


def _latencies(report: dict[str, Any]) -> str:
    rows = []
    for key, name in (("flushed", "send → flushed"), ("spark", "send → Spark")):
        facts = report["latency_ms"][key]
        rows.append(
            (name, *(milliseconds(facts[part]) for part in ("p50", "p90", "p99", "max")), f"{facts['measured']:,}")
        )
    sync = report["fsync"]
    p50, p99 = milliseconds(sync.get("p50_ms")), milliseconds(sync.get("p99_ms"))
    rows.append(("fsync", p50, "", p99, "", f"{sync['count']:,}"))
    return _table(("", "p50", "p90", "p99", "longest", "measured"), rows)


def _producers(producers: list[dict[str, Any]]) -> str:
    counts = ("sent", "missing", "doubled", "unnoted", "waits")
    rows = [
        (
            str(producer["producer"]),
            "–" if producer["lane"] is None else str(producer["lane"]),
            *(f"{producer.get(name, 0):,}" for name in counts),
            "yes" if producer["finished"] else "no",
        )
        for producer in producers
    ]
    return _table(("producer", "lane", *counts, "finished"), rows)


def _resources(resources: dict[str, Any]) -> str:
    rows = []
    for name, memory in resources["memory_bytes"].items():
        cores = resources["cores"].get(name)
        if any(memory):
            used = f"{mean(cores):.2f}" if cores else ""
            rows.append((name, used, megabytes(memory[0]), megabytes(max(memory)), megabytes(memory[-1])))
    return _table(("", "cores (mean)", "memory at first", "at most", "at the end"), rows)


def _events(events: list[str]) -> str:
    said = "".join(f"<p>{escape(event)}</p>" for event in events)
    return f"<h2>Events</h2>{said}" if said else ""


def _texts(values: dict[str, Any]) -> str:
    return _table((), ((name, _text(value)) for name, value in values.items()))


def _text(value: Any) -> str:
    """A setting in words."""
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)

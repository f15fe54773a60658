"""The report's picture: four panels under a line that says how the run ended.

The page has the same panels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from commitlog.ingest.dashboard import milliseconds
from commitlog.ingest.latency import Latencies
from commitlog.ingest.run_report import mean, source_line, verdict_line
from commitlog.ingest.verdict import EXACTLY_ONCE
from commitlog.text.quantities import counted

_INK, _FAINT, _LINE, _GOOD, _BAD = "#1f2933", "#7b8794", "#e4e7eb", "#1b7f4b", "#b3261e"
_COLOURS = {
    "sent": "#f0a202",
    "committed": "#5aa9e6",
    "flushed": "#1d4e89",
    "dispatched": "#9b7ede",
    "spark": "#d1495b",
}
_GROUPS = {
    "stages": "#1d4e89",
    "producers": "#f0a202",
    "spark": "#d1495b",
    "server": "#6a994e",
    "job": "#7b8794",
    "pool": "#5aa9e6",
}
_MONOSPACE_WRAP = 110


_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _LINE,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
}
_VARIABLES = {_INK: "ink", _FAINT: "faint", _LINE: "line", _BAD: "bad", _COLOURS["flushed"]: "flushed"}
"""The colours that are hard to see on a dark page, as the page's variables."""


def draw(report: dict[str, Any], flushed: Latencies, spark: Latencies, path: Path) -> None:
    """Writes the PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(13, 9), dpi=120, facecolor="white")
        figure.subplots_adjust(left=0.07, right=0.97, top=0.775, bottom=0.06, hspace=0.46, wspace=0.2)
        _head(figure, report)
        for axes, panel in zip(figure.subplots(2, 2).flat, _of(report, flushed, spark), strict=True):
            panel(axes)
        figure.savefig(path, metadata={"Software": "commitlog ingest"})


def svg(report: dict[str, Any], flushed: Latencies, spark: Latencies) -> str:
    """The four panels as SVG elements, to stand in a page beside or below one another."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = []
    with rc_context(_STYLE):
        for panel in _of(report, flushed, spark):
            figure, file = Figure(figsize=(6.8, 4.1)), StringIO()
            figure.subplots_adjust(left=0.14, right=0.98, top=0.84, bottom=0.13)
            panel(figure.subplots())
            metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", transparent=True, metadata=metadata)
            drawn.append(file.getvalue()[file.getvalue().index("<svg") :])
    text = "".join(drawn)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return text


def _of(report: dict[str, Any], flushed: Latencies, spark: Latencies) -> list[Callable[[Any], None]]:
    """The panels, each as what draws it on its axes."""
    return [
        partial(_rates, report=report),
        partial(_lag, report=report),
        partial(_latencies, flushed=flushed, spark=spark),
        partial(_memory, report=report),
    ]


def _head(figure: Any, report: dict[str, Any]) -> None:
    good = report["verdict"] == EXACTLY_ONCE
    settings = report["settings"]
    figure.text(0.07, 0.955, "commitlog ingest", fontsize=19, weight="bold")
    figure.text(0.97, 0.962, source_line(settings), ha="right", color=_FAINT)
    figure.text(0.97, 0.938, f"run {settings['run']}, {report['finished']}", ha="right", color=_FAINT)
    verdict = verdict_line(report)
    if len(verdict) > _MONOSPACE_WRAP:
        verdict = verdict[: _MONOSPACE_WRAP - 1] + "…"
    figure.text(0.07, 0.908, verdict, fontsize=13, weight="bold", color=_GOOD if good else _BAD)
    facts = (
        f"{report['seconds']:.1f} s of sending, {report['messages_per_second']:,} messages/s   ·   "
        f"committed {report['committed']:,}   ·   flushed {report['flushed']:,}   ·   "
        f"read by Spark {report['read']:,} in {report['spark']['batches']:,} batches   ·   "
        f"rows {report['rows']:,}"
    )
    figure.text(0.07, 0.875, facts, color=_INK)
    restarts = sum(report["restarts"].values())
    versions = report["versions"]
    more = (
        f"drained {report['seconds_to_drain']:.1f} s after the last message   ·   "
        f"{counted(restarts, 'stage restart')}   ·   {counted(len(report['errors']), 'error')}   ·   "
        f"PySpark {versions['pyspark']}, Python {versions['python']}"
    )
    figure.text(0.07, 0.85, more, color=_FAINT)


def _legend(axes: Any, *entries: Any) -> None:
    """A legend in one line between title and plot, where it hides nothing."""
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        *entries,
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.985),
        ncols=6,
        fontsize=8.5,
        columnspacing=1.3,
        handlelength=1.6,
    )


def _thousands(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _rates(axes: Any, report: dict[str, Any]) -> None:
    axes.set_title("Rate of each stage", pad=26)
    axes.set_xlabel("seconds since the first message")
    axes.set_ylabel("messages / s")
    rates = report["rates"]
    styles: dict[str, dict[str, Any]] = {
        "sent": {"linewidth": 6.0, "alpha": 0.55},
        "committed": {"linewidth": 3.6, "alpha": 0.9},
        "flushed": {"linewidth": 1.6},
        "spark": {"linewidth": 1.8},
    }
    for name, style in styles.items():
        label = "read by Spark" if name == "spark" else name
        values = rates[name][:1] + rates[name]
        axes.plot(
            [0.0, *rates["seconds"]][: len(values)],
            values,
            label=label,
            color=_COLOURS[name],
            drawstyle="steps-pre",
            **style,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _thousands(axes.yaxis)
    _mark_end(axes, report)
    _mark_deaths(axes, report)
    _legend(axes)


def _mark_end(axes: Any, report: dict[str, Any]) -> None:
    if report["seconds"] > 0:
        axes.axvline(report["seconds"], color=_FAINT, linewidth=0.9, linestyle=":")
        axes.annotate(
            "sending ends ",
            (report["seconds"], 1.0),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
            fontsize=8,
            color=_FAINT,
        )


def _mark_deaths(axes: Any, report: dict[str, Any]) -> None:
    """Draws a line where a stage had died: it explains the step in the curves."""
    for event in report["events"]:
        when, _, text = event.partition(" s: ")
        if "had died" in text:
            axes.axvline(float(when), color=_BAD, linewidth=0.9, linestyle="--")
            name = text.removeprefix("the ").split()[0]
            axes.annotate(
                f" {name} died",
                (float(when), 0.02),
                xycoords=("data", "axes fraction"),
                fontsize=8,
                color=_BAD,
                rotation=90,
                va="bottom",
                ha="right",
            )


def _lag(axes: Any, report: dict[str, Any]) -> None:
    axes.set_title("How far each stage is behind the one before", pad=26)
    axes.set_xlabel("seconds since the first message")
    axes.set_ylabel("messages (linear to 10, then logarithmic)")
    lag = report["lag_over_time"]
    names = {
        "committed": "committed behind sent",
        "flushed": "flushed behind committed",
        "spark": "Spark behind flushed",
    }
    for name, label in names.items():
        axes.plot(lag["seconds"], lag.get(name, []), label=label, color=_COLOURS[name], linewidth=1.8)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _thousands(axes.yaxis)
    _mark_end(axes, report)
    _mark_deaths(axes, report)
    _legend(axes)


def _latencies(axes: Any, flushed: Latencies, spark: Latencies) -> None:
    axes.set_title("Latency of a message", pad=26)
    axes.set_xlabel("milliseconds since send (logarithmic)")
    axes.set_ylabel("messages that took at most this long, %")
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    for latencies, name, label in ((flushed, "flushed", "send → flushed"), (spark, "spark", "send → Spark")):
        durations, shares = latencies.curve()
        if not durations:
            continue
        p50, p99 = latencies.percentile(0.5), latencies.percentile(0.99)
        text = f"{label}: p50 {milliseconds(p50)}, p99 {milliseconds(p99)}"
        colour = _COLOURS[name]
        axes.step(durations, [share * 100 for share in shares], where="post", color=colour, linewidth=2, label=text)
        axes.plot([p50, p99], [50, 99], "o", color=colour, markersize=5)
    _thousands_small(axes.xaxis)
    _legend(axes)


def _thousands_small(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def _memory(axes: Any, report: dict[str, Any]) -> None:
    resources = report["resources"]
    axes.set_title("Memory of the whole, and cores in use", pad=10)
    axes.set_xlabel("seconds since the first message")
    axes.set_ylabel("private memory and pool, MB")
    groups = [name for name in _GROUPS if any(resources["memory_bytes"].get(name, ()))]
    seconds = resources["seconds"]
    if not groups or len(seconds) < 2:
        return
    stacks = [[value / 1e6 for value in resources["memory_bytes"][name]] for name in groups]
    cores = {name: resources["cores"][name] for name in groups if name in resources["cores"]}
    labels = [f"{name}: {mean(cores[name]):.2f} cores" if name in cores else name for name in groups]
    axes.stackplot(seconds, stacks, labels=labels, colors=[_GROUPS[name] for name in groups], alpha=0.8, linewidth=0)
    axes.set_xlim(left=0)
    axes.set_ylim(0, max(map(sum, zip(*stacks, strict=True))) * 1.3)
    _thousands(axes.yaxis)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], loc="upper left", ncols=3, fontsize=8.5)

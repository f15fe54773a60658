"""A picture of each part: a panel for each comparison, a bar for each contestant.

A line in the bar goes from the least to the greatest round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_INK, _FAINT, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
_OURS, _FLOOR, _OTHERS = "#1d4e89", "#f0a202", "#b8c4d1"
_OURS_WORDS = (
    "commitlog",
    "send",
    "batches",
    "numpy",
    "Arrow",
    "committer",
    "flusher",
    "allocator",
    "dispatcher",
    "all flushed",
    "positions lost",
    "the same, body",
)
_STYLE: dict[str, Any] = {
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
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": _GRID,
    "axes.axisbelow": True,
}
_BAR_INCHES, _PANEL_INCHES, _HEAD_INCHES = 0.32, 1.05, 1.0


def draw(report: dict[str, Any], directory: Path) -> list[Path]:
    """Writes `<part>.png` for each part that has something to show."""
    from matplotlib import rc_context

    style: Any = _STYLE
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, part in report["parts"].items():
        panels = [panel for group in part["groups"] for panel in _panels(group)]
        if panels:
            with rc_context(style):
                made.append(_figure(name, report, panels, directory / f"{name}.png"))
    return made


def _panels(group: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The group's first metric, and its second percentile if it has some."""
    wanted = [metric for metric in group["metrics"] if metric["name"] == "p99"]
    first = group["metrics"][0]
    chosen = [first, *wanted] if first["name"] == "p50" else [first]
    return [(group, metric) for metric in chosen if any(metric["name"] in c["measured"] for c in group["contestants"])]


def _figure(name: str, report: dict[str, Any], panels: list[tuple[dict[str, Any], dict[str, Any]]], path: Path) -> Path:
    from matplotlib.figure import Figure

    heights = [_PANEL_INCHES + _BAR_INCHES * len(_rows(group, metric)) for group, metric in panels]
    total = sum(heights) + _HEAD_INCHES
    figure = Figure(figsize=(10.5, total), dpi=110, facecolor="white")
    machine = report["machine"]
    figure.text(0.03, 1 - 0.42 / total, name, fontsize=19, weight="bold")
    facts = (
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}, "
        f"{machine['file_system'].partition(' ')[0]}, median of {report['repeats']}, line: least to greatest"
    )
    warning = "QUICK RUN: NUMBERS MEAN NOTHING   " if report["quick"] else ""
    figure.text(0.03, 1 - 0.68 / total, warning + facts, color=_FAINT)
    top = total - _HEAD_INCHES
    for (group, metric), height in zip(panels, heights, strict=True):
        axes = figure.add_axes((0.32, (top - height + 0.55) / total, 0.56, (height - _PANEL_INCHES) / total))
        _panel(axes, group, metric)
        top -= height
    figure.savefig(path, metadata={"Software": "commitlog benchmarks"})
    return path


def _rows(group: dict[str, Any], metric: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    found = [(c["name"], c["measured"].get(metric["name"])) for c in group["contestants"]]
    return [(name, summary) for name, summary in found if summary]


def _panel(axes: Any, group: dict[str, Any], metric: dict[str, Any]) -> None:
    rows = _rows(group, metric)
    places = range(len(rows))
    medians = [summary["median"] for _, summary in rows]
    colours = [_colour(name, group["floor"]) for name, _ in rows]
    axes.barh(list(places), medians, color=colours, height=0.66)
    for place, (name, summary) in zip(places, rows, strict=True):
        axes.plot([summary["min"], summary["max"]], [place, place], color=_INK, linewidth=1.2)
        ratio = "" if name == group["floor"] or "ratio" not in summary else f"   {summary['ratio']:.2f} × floor"
        axes.annotate(
            f"{_number(summary['median'])}{ratio}",
            (max(summary["max"], summary["median"]), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_yticks(list(places), [name for name, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, max(summary["max"] for _, summary in rows) * 1.22 or 1)
    axes.set_title(group["name"], pad=8, x=-0.0)
    direction = "less" if metric["better"] == "lower" else "more"
    axes.set_xlabel(f"{metric['unit']} ({direction} is better)")
    axes.xaxis.set_major_formatter(lambda value, _: _number(value))


def _colour(name: str, floor: str) -> str:
    if name == floor:
        return _FLOOR
    return _OURS if name.startswith(_OURS_WORDS) else _OTHERS


def _number(value: float) -> str:
    if value >= 10_000_000:
        return f"{value / 1e6:,.0f} M"
    if value >= 1_000_000:
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

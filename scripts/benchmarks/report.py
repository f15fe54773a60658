"""A run as text and as JSON.

The JSON file, format 2:

    format, finished, quick, scale, repeats, against
    machine        cores, processor, memory_bytes, kernel, python, file_system, load,
                   versions {name: version}, …
    parts {name}   groups, skipped [{name, reason}], failed [{name, reason}], seconds,
                   load [at the start, at the end]
      group        name, floor, settings {…}, metrics [{name, unit, better}], contestants
        contestant name, samples [{metric: value}, a round each], measured {metric: summary}
          summary  min, median, max, ratio (of the medians, to the floor's), ratio_min,
                   ratio_max (of one round)
    targets        [{part, what, headline, wanted, found, met}]; `found` and `met` are null
                   where the target was not measured, `headline` is "" for most
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import orjson

from scripts.benchmarks.harness import Group, Part
from scripts.benchmarks.settings import Settings
from scripts.benchmarks.targets import judge

FORMAT = 2
QUIET_LOAD = 1.5


def to_json(settings: Settings, machine: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    """The whole run. The targets of a quick run are shown, but they mean nothing."""
    return {
        "format": FORMAT,
        "finished": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "quick": settings.quick,
        "scale": settings.scale,
        "repeats": settings.repeats,
        "against": sorted(settings.against),
        "machine": machine,
        "parts": {part.name: part.to_json() for part in parts},
        "targets": judge(parts),
    }


def write_json(report: dict[str, Any], path: Path) -> None:
    path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


def show_machine(machine: dict[str, Any], settings: Settings) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    print(
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, files on {machine['file_system']}\n{versions}\n"
        f"{settings.repeats} repeats after {settings.warm_ups} to warm up, scale {settings.scale:g}, segments of "
        f"{settings.segment_bytes / 2**20:g} MiB, load {machine['load'][0]}"
    )
    if machine["load"][0] > QUIET_LOAD:
        print("The machine is busy with something else: times are not to be trusted, ratios only a little.")
    if settings.quick:
        print("A quick run shows that everything works; its numbers mean nothing.")


def show_group(part: str, group: Group) -> None:
    """A table for each metric that the floor has, and one for the metrics of single contestants."""
    named = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in group.settings.items())
    print(f"\n{part}: {group.name}\n  {named}")
    alone: list[tuple[str, str, dict[str, float]]] = []
    for metric in group.metrics:
        found = [(name, group.summary(name, metric.name)) for name in group.samples]
        rows = [(name, summary) for name, summary in found if summary]
        if len(rows) == 1 and rows[0][0] != group.floor:
            alone.append((rows[0][0], metric.unit, rows[0][1]))
        elif rows:
            head = f"{metric.unit} ({metric.better} is better)"
            _show_rows(head, [(name, summary, _ratio(summary, name == group.floor)) for name, summary in rows])
    for name in dict.fromkeys(name for name, _, _ in alone):
        _show_rows(name, [(unit, summary, "") for whose, unit, summary in alone if whose == name])


def _show_rows(head: str, rows: list[tuple[str, dict[str, float], str]]) -> None:
    width = max(len(head), *(len(name) + 2 for name, _, _ in rows))
    ratios = "   × floor" if any(ratio for _, _, ratio in rows) else ""
    print(f"  {head:<{width}}        min     median        max{ratios}")
    for name, summary, ratio in rows:
        numbers = "".join(f"{number_text(summary[key]):>11}" for key in ("min", "median", "max"))
        print(f"    {name:<{width - 2}}{numbers}   {ratio}".rstrip())


def _ratio(summary: dict[str, float], is_floor: bool) -> str:
    if is_floor:
        return "  floor"
    if "ratio" not in summary:
        return ""
    return f"{summary['ratio']:7.2f}  ({summary['ratio_min']:.2f} to {summary['ratio_max']:.2f})"


def number_text(value: float) -> str:
    """A number with three significant digits; from a hundred on without decimals."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show_end(report: dict[str, Any]) -> None:
    """What was skipped, what failed, and which targets were met."""
    print()
    for name, part in report["parts"].items():
        for kind in ("skipped", "failed"):
            for entry in part[kind]:
                print(f"{kind}: {name}: {entry['name']}: {entry['reason']}")
    judged = [] if report["quick"] else [target for target in report["targets"] if target["found"] is not None]
    if judged:
        print("\ntargets")
    for target in judged:
        verdict = "met   " if target["met"] else "MISSED"
        print(
            f"  {verdict}  {target['part']}: {target['what']}: {number_text(target['found'])}, wanted {target['wanted']}"
        )

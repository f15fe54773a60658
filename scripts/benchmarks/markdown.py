"""Fills BENCHMARKS.md: a run fills the places between markers; the prose is written by hand.

- `<!-- bench: run -->`: when, with which options, on which machine
- `<!-- bench: targets -->`: every target and what was found
- `<!-- bench: parts -->`: a heading, a picture and the tables of each part
- `<!-- end -->` ends each of them
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from scripts.benchmarks.report import number_text

COLUMNS = 4
"""How many metrics one table has room for. Each other metric has its own table below."""
_MARKED = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(report: dict[str, Any], path: Path, pictures: Path) -> None:
    """Fills the file's marked places; makes the file where it does not exist.

    `pictures` is the directory of `<part>.png`. Raises ValueError where a marker is missing.
    """
    names = ("run", "targets", "parts")
    text = path.read_text() if path.exists() else "\n".join(f"<!-- bench: {name} -->\n<!-- end -->\n" for name in names)
    if missing := set(names) - {found[2] for found in _MARKED.finditer(text)}:
        raise ValueError(f"{path} has no lines <!-- bench: {min(missing)} --> and <!-- end -->")
    made = {
        "run": _run(report),
        "targets": _targets(report["targets"]),
        "parts": "\n\n".join(
            _part(name, part, report["repeats"], _picture(pictures / f"{name}.png", path.parent))
            for name, part in report["parts"].items()
        ),
    }
    path.write_text(_MARKED.sub(lambda found: f"{found[1]}{made.get(found[2], '')}\n{found[3]}", text))


def _run(report: dict[str, Any]) -> str:
    machine, against = report["machine"], ",".join(report["against"])
    minutes = sum(part["seconds"] for part in report["parts"].values()) / 60
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"The last full run, of {report['finished'][:10]}: `scripts/bench all{f' --against {against}' if against else ''}`. "
        f"It took {minutes:.0f} minutes; the load before it was {machine['load'][0]}.\n\n"
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, files on {machine['file_system']}; {versions}."
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|" for cells in lines)


def _targets(targets: list[dict[str, Any]]) -> str:
    rows = []
    for one in targets:
        found = "not measured" if one["found"] is None else number_text(one["found"])
        met = {True: "yes", False: "no", None: ""}[one["met"]]
        rows.append([one["part"], one["what"], one["wanted"], found, met])
    return _table(["part", "target", "wanted", "found", ""], rows)


def _picture(path: Path, base: Path) -> str:
    return os.path.relpath(path, base) if path.exists() else ""


def _part(name: str, part: dict[str, Any], repeats: int, picture: str) -> str:
    found = [f"## {name}"]
    if picture:
        found.append(f"![{name}]({picture})")
    for group in part["groups"]:
        settings = {key: value for key, value in group["settings"].items() if (key, value) != ("repeats", repeats)}
        said = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in settings.items())
        found += [f"**{group['name']}** — {said}", _measured(group)]
    for kind in ("skipped", "failed"):
        found += [f"{kind.capitalize()}: {one['name']}: {one['reason']}" for one in part[kind]]
    return "\n\n".join(found)


def _measured(group: dict[str, Any]) -> str:
    contestants = group["contestants"]
    metrics = [metric for metric in group["metrics"] if any(metric["name"] in one["measured"] for one in contestants)]
    tables = [_metrics(metrics[at : at + COLUMNS], group) for at in range(0, len(metrics), COLUMNS)]
    return "\n\n".join(tables)


def _metrics(metrics: list[dict[str, Any]], group: dict[str, Any]) -> str:
    """A table of the contestants with one of the metrics; its ratios are the first metric's."""
    first, rows = metrics[0]["name"], []
    for one in group["contestants"]:
        found = [one["measured"].get(metric["name"]) for metric in metrics]
        if any(found):
            ratio = "floor" if one["name"] == group["floor"] else _ratio(one["measured"].get(first, {}))
            rows.append([one["name"], *map(_cell, found), ratio])
    has_ratio = any(row[-1] for row in rows)
    head = ["", *(f"{metric['unit']}, median (min – max)" for metric in metrics), "× floor"]
    return _table(head, rows) if has_ratio else _table(head[:-1], [row[:-1] for row in rows])


def _ratio(summary: dict[str, float]) -> str:
    if "ratio" not in summary:
        return ""
    return f"{summary['ratio']:.2f} ({summary['ratio_min']:.2f} – {summary['ratio_max']:.2f})"


def _cell(summary: dict[str, float] | None) -> str:
    if summary is None:
        return ""
    median, least, most = (number_text(summary[key]) for key in ("median", "min", "max"))
    return f"{median} ({least} – {most})"

"""Fills BENCHMARKS.md: a run fills the places between markers; the prose is written by hand.

- `<!-- bench: run -->`: when, with which options, on which machine
- `<!-- bench: results -->`: the numbers that say most
- `<!-- bench: targets -->`: the targets of each part that were met, and those that were missed
- `<!-- end -->` ends each of them

All other numbers are in what the bench prints, and in its JSON file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scripts.benchmarks.report import number_text

_MARKED = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(report: dict[str, Any], path: Path) -> None:
    """Fills the file's marked places; makes the file where it does not exist.

    Raises ValueError where a marker is missing.
    """
    made = {"run": _run(report), "results": _results(report["targets"]), "targets": _targets(report["targets"])}
    text = path.read_text() if path.exists() else "\n".join(f"<!-- bench: {name} -->\n<!-- end -->\n" for name in made)
    if missing := made.keys() - {found[2] for found in _MARKED.finditer(text)}:
        raise ValueError(f"{path} has no lines <!-- bench: {min(missing)} --> and <!-- end -->")
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


def _results(targets: list[dict[str, Any]]) -> str:
    """The numbers that say most, as `Target.headline` chooses them."""
    rows = [[one["headline"], _found(one), one["wanted"]] for one in targets if one["headline"]]
    return _table(["", "found", "wanted"], rows)


def _targets(targets: list[dict[str, Any]]) -> str:
    """How many targets each part has met, and those that it has missed."""
    rows = []
    for part in dict.fromkeys(one["part"] for one in targets):
        judged = [one for one in targets if one["part"] == part and one["found"] is not None]
        missed = [f"{one['what']}: {_found(one)}, wanted {one['wanted']}" for one in judged if not one["met"]]
        rows.append([part, f"{len(judged) - len(missed)} of {len(judged)}", "; ".join(missed)])
    return _table(["part", "met", "missed"], rows)


def _found(target: dict[str, Any]) -> str:
    return "not measured" if target["found"] is None else number_text(target["found"])

"""The dashboard for Grafana and the alerts for Prometheus: what they ask for is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from commitlog.cli.app import COMMANDS
from commitlog.config import Config
from commitlog.watching.health import CODES
from tests.builders.scrape import full_scrape
from tests.pasted import check_knobs

CONFIGS = Path(__file__).parents[2] / "configs"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CONFIGS / "prometheus-rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARDS: dict[str, dict[str, Any]] = {
    name: json.loads((CONFIGS / name).read_text()) for name in ("grafana-dashboard.json", "grafana-fleet.json")
}
PANELS: list[dict[str, Any]] = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel.get("targets", ())]
EXPRESSIONS = [
    *((rule["alert"], rule["expr"]) for rule in RULES),
    *((title, target["expr"].replace("$__rate_interval", "1m")) for title, target in TARGETS),
]
_USED = re.compile(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}")


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """What an expression asks for. Raises ValueError for what is no PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return iter(found)


def test_each_expression_asks_for_what_is_there(tmp_path: Path) -> None:
    """Names, labels, and the values that labels have, in a scrape of a store that has it all."""
    scrape = full_scrape(tmp_path)
    labels = {name: known | {"instance"} for name, known in scrape.labels().items()}
    labels["up"] = {"job", "instance"}  # Prometheus makes both
    assert len(EXPRESSIONS) > 50
    for title, expression in EXPRESSIONS:
        for selector in selectors(expression):
            assert selector.name in labels, f"{title}: there is no {selector.name}"
            for matcher in selector.matchers.matchers:
                assert matcher.name in labels[selector.name], f"{title}: {selector.name} has no {matcher.name}"
                values = {one.labels.get(matcher.name, "") for one in scrape.samples if one.name == selector.name}
                values |= {"commitlog"} if matcher.name == "job" else set()  # as docs/metrics.md says
                values |= set(CODES) if matcher.name == "code" else set()  # a store can't have all at once
                if not matcher.value.startswith("$"):
                    assert set(matcher.value.split("|")) <= values, f"{title}: {matcher.name} is {values}"
        known = set().union(*(labels[str(selector.name)] for selector in selectors(expression)))
        grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        assert {name.strip() for names in grouped for name in names.split(",") if name} <= known, title


def test_either_side_of_or_gives_a_store_once() -> None:
    """An aggregation drops labels: without `on` its series would stand beside the other side's."""
    modifiers: list[str] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.BinaryExpr) and str(part.op) == "or":
            sides = (type(part.lhs), type(part.rhs))
            modifiers.extend(str(part.modifier) for side in sides if side is promql_parser.AggregateExpr)

    for _, expression in EXPRESSIONS:
        promql_parser.walk(promql_parser.parse(expression), visit)
    assert modifiers == ["on (instance, store)"] * 5


def test_machines_are_told_apart() -> None:
    """Stores of two machines may have the same path: no group and no name is without `instance`."""
    for title, expression in EXPRESSIONS:
        for names in re.findall(r"(?:by|on) \(([^)]+)\)", expression):
            assert "instance" in names.split(", "), title
        assert " by " not in expression or "by (" in expression
    for title, target in TARGETS:
        assert "{{instance}}" in target["legendFormat"], title
        assert 'instance=~"$instance"' in target["expr"], title
    for rule in RULES:
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"], rule["alert"]


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_names_the_way_out(rule: dict[str, Any]) -> None:
    """It waits, or looks back over a range; its text uses labels that its expression has."""
    assert "for" in rule or "[15m]" in rule["expr"]
    assert rule["labels"]["severity"] in ("warning", "critical")
    texts = " ".join(rule["annotations"].values())
    assert set(rule["annotations"]) == {"summary", "description"}
    assert set(_USED.findall(texts)) - {"else", "end"} <= {"store", "instance", "lane", "forwarder", "target"}
    assert {command.split()[1] for command in re.findall(r"`(commitlog [^`]*)`", texts)} <= set(COMMANDS)
    for section, knob in re.findall(r"\[(store|retention)\] ([a-z_]+)", texts):
        assert hasattr(getattr(Config(), section), knob)
    check_knobs(texts)
    assert not re.search(r"\b(store|retention)\.[a-z]|`commitlog [a-z]+ \{", texts), "a shell and an operator read it"


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=list(DASHBOARDS))
def test_the_dashboard_is_whole(dashboard: dict[str, Any]) -> None:
    """Each panel has a place of its own, says what it shows, and asks the chosen data source."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel.get("targets", ()):
            assert 'store=~"$store"' in target["expr"], panel["title"]
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "instance", "store"]


def test_what_comes_and_goes_is_seen() -> None:
    """A line between points shows no value that is there at one time only, and hides equal ones."""
    seen = 0
    for panel in PANELS:
        expressions = " ".join(target["expr"] for target in panel.get("targets", ()))
        if panel["type"] == "timeseries" and re.search(r"> 0|_fault\b|_reasons\b|_warning\b", expressions):
            drawn = panel["fieldConfig"]["defaults"]["custom"]
            is_bars = drawn["drawStyle"] == "bars" and drawn["stacking"]["mode"] == "normal"
            assert is_bars or drawn["showPoints"] == "auto", panel["title"]
            seen += 1
    assert seen


def test_the_files_are_in_the_package() -> None:
    """`commitlog/configs` is what an installed package has."""
    installed = Path(__file__).parents[2] / "commitlog/configs"
    for name in (*DASHBOARDS, "prometheus-rules.yml"):
        assert (installed / name).read_bytes() == (CONFIGS / name).read_bytes()


def test_alerts_ask_health_by_codes_that_it_has() -> None:
    """So a limit is said once. Other reasons still make the store degraded."""
    rules = " ".join(rule["expr"] for rule in RULES)
    assert 'status="down"' in rules
    assert 'status="degraded"' in rules
    asked = {code for codes in re.findall(r'code=~?"([^"]*)"', rules) for code in codes.split("|")}
    assert len(asked) == 20
    assert asked <= set(CODES)

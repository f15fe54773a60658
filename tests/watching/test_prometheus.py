"""Dashboards and alerts in a real Prometheus (`prometheus` and `promtool` on the PATH).

Two stores are scraped under two names of machines, and have the same path, as those of a fleet do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

import commitlog
from commitlog.disk.backup_note import BackupNote, write_backup_note
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.store_directory import StoreDirectory
from commitlog.watching.health import DEFAULT_LIMITS
from tests.builders.scrape import SMALL, halted, set_lane
from tests.ports import free_port
from tests.waiting import wait_until

CONFIGS = Path(__file__).parents[2] / "configs"
RULES_FILE = CONFIGS / "prometheus-rules.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
DASHBOARDS = ("grafana-dashboard.json", "grafana-fleet.json")
PATH_OF_BOTH = "/var/lib/commitlog/events"

pytestmark = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="there is no prometheus with its promtool"
)


class Prometheus:
    """A Prometheus that scrapes exporters by the names of their machines, four times a second.

    It has our rules, without the time that a cause has to hold for.
    """

    def __init__(self, directory: Path, exporters: dict[str, int]) -> None:
        self.port = free_port()
        rules = RULES_FILE.read_text()
        (directory / "rules.yml").write_text(re.sub(r"^ +for: .*\n", "", rules, flags=re.MULTILINE))
        same_path = {"target_label": "store", "replacement": PATH_OF_BOTH, "source_labels": ["store"], "regex": ".+"}
        scrape = {
            "job_name": "commitlog",
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in exporters.items()
            ],
            "metric_relabel_configs": [same_path],
        }
        often = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"}
        config = {"global": often, "rule_files": ["rules.yml"], "scrape_configs": [scrape]}
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.command = [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=error",
        ]

    def asked(self, what: str, **parameters: Any) -> Any:
        """The data of an answer. Raises AssertionError with what Prometheus has against a query."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{what}?{urlencode(parameters)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return {"result": [], "alerts": []}  # it starts
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        except (URLError, ConnectionError):
            return {"result": [], "alerts": []}  # it does not listen yet

    def series(self, expression: str) -> list[dict[str, str]]:
        return [one["metric"] for one in self.asked("query", query=expression)["result"]]

    def fires(self, alert: str, instance: str) -> bool:
        found = [one for one in self.asked("alerts")["alerts"] if one["labels"]["alertname"] == alert]
        return instance in {one["labels"].get("instance") for one in found if one["state"] == "firing"}


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def exporter(store: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "commitlog", "metrics", str(store), "--listen", str(port)]
    with running(*command) as process:
        yield process


class Fleet:
    """A store each on machines db1 and db2, and the Prometheus that watches them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.stores = {name: stack.enter_context(busy_store(directory / name)) for name in ("db1", "db2")}
        ports = {name: free_port() for name in self.stores}
        self.exporters = {
            name: stack.enter_context(exporter(store.path, ports[name])) for name, store in self.stores.items()
        }
        self.prometheus = Prometheus(directory, ports)
        stack.enter_context(running(*self.prometheus.command))
        wait_until(lambda: len(self.prometheus.series("commitlog_up == 1")) == 2, "both are scraped")


@contextmanager
def busy_store(path: Path) -> Iterator[commitlog.Store]:
    """A store with all that panels show: readers, forwarders, a backup."""
    with commitlog.Store.open(path, SMALL) as store, store.producer() as producer:
        producer.send_batch("apples", [b"x"] * 10)
        producer.flush(timeout=60)
        with commitlog.Reader(store.path, topic="apples", name="billing") as reader:
            reader.commit(next(iter(reader)))
        write_forwarder(StoreDirectory(path), ForwarderStatistics("kafka", "kafka://one:9092", 1))
        write_backup_note(StoreDirectory(path), BackupNote("/mnt/backup", 1))
        yield store


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def queries(dashboard: str) -> list[tuple[str, dict[str, Any]]]:
    panels = json.loads((CONFIGS / dashboard).read_text())["panels"]
    return [(panel["title"], target) for panel in panels for target in panel.get("targets", ())]


def legend(form: str, series: dict[str, str]) -> str:
    """The name of a line, as Grafana makes it."""
    return re.sub(r"{{(\w+)}}", lambda word: series.get(word[1], ""), form)


def tells_both(prometheus: Prometheus, expression: str) -> bool:
    """Whether both machines have as many series. A rate needs two scrapes of each."""
    machines = [series.get("instance") for series in prometheus.series(expression)]
    return machines.count("db1") == machines.count("db2")


def test_each_query_tells_machines_apart(fleet: Fleet) -> None:
    """Prometheus takes it, and each of its series has a machine; what both have comes twice."""
    prometheus = fleet.prometheus
    for dashboard in DASHBOARDS:
        for title, target in queries(dashboard):
            expression = target["expr"].replace("$__rate_interval", "2s")
            expression = expression.replace("$instance", ".*").replace("$store", ".*")
            wait_until(partial(tells_both, prometheus, expression), f"{title}: as much of each machine")
            found = prometheus.series(expression)
            assert {series.get("instance") for series in found} <= {"db1", "db2"}, title
            names = [legend(target["legendFormat"], series) for series in found]
            assert len(set(names)) == len(names), f"{title}: two lines have one name"


def test_a_row_of_the_fleet_for_each_machine(fleet: Fleet) -> None:
    """Good, down, and not scraped: each has its own number."""
    (health,) = (
        target["expr"].replace("$instance", ".*").replace("$store", ".*")
        for title, target in queries("grafana-fleet.json")
        if title == "Stores" and target["refId"] == "A"
    )

    def rows() -> dict[str, float]:
        found = fleet.prometheus.asked("query", query=health)["result"]
        assert len(found) == len({one["metric"]["instance"] for one in found})
        return {one["metric"]["instance"]: float(one["value"][1]) for one in found}

    wait_until(lambda: rows() == {"db1": 0, "db2": 0}, "both are good")
    fleet.stores["db1"].close()
    fleet.exporters["db2"].terminate()
    wait_until(lambda: rows() == {"db1": 2, "db2": 3}, "one is down, one not scraped")
    assert fleet.prometheus.series(health)[0].keys() == {"instance", "store"}


def test_alerts_by_their_causes(fleet: Fleet) -> None:
    """Each cause on one machine raises the alert of that machine, and not of the other one."""
    prometheus, (one, other) = fleet.prometheus, fleet.stores.values()

    def await_alert(alert: str, instance: str = "db1") -> None:
        wait_until(lambda: prometheus.fires(alert, instance), f"{alert} of {instance}")
        silent = {"db1": "db2", "db2": "db1"}[instance]
        assert not prometheus.fires(alert, silent)

    wait_until(lambda: prometheus.fires("CommitlogBackupOld", "db1"), "a backup of 1970")
    write_backup_note(StoreDirectory(one.path), BackupNote("/mnt/backup", 4_000_000_000_000))
    wait_until(lambda: not prometheus.fires("CommitlogBackupOld", "db1"), "a backup of today")
    assert prometheus.fires("CommitlogBackupOld", "db2")
    with halted(one.path):
        await_alert("CommitlogStageSilent")
        set_lane(one.path, FLUSHER_FAULT=28)
        await_alert("CommitlogFault")
        await_alert("CommitlogDown")  # nobody watches over the stages
        set_lane(one.path, FLUSHER_FAULT=0)
    (one.path / "readers/billing.json").write_text("{}")
    await_alert("CommitlogReaderDamaged")
    await_alert("CommitlogDegraded")
    os.rename(other.path / "store.json", other.path / "store.away")
    await_alert("CommitlogUnreadable", "db2")
    os.rename(other.path / "store.away", other.path / "store.json")
    fleet.exporters["db2"].terminate()
    await_alert("CommitlogNotScraped", "db2")


def reason(code: str) -> str:
    return f'commitlog_health_reasons{{code="{code}", severity="degraded", LABELS}}'


CAUSES: dict[str, tuple[str, str]] = {
    "CommitlogNotScraped": ('up{job="commitlog", LABELS}', "0"),
    "CommitlogUnreadable": ("commitlog_up{LABELS}", "0"),
    "CommitlogDown": ('commitlog_health_status{status="down", LABELS}', "1"),
    "CommitlogDegraded": ('commitlog_health_status{status="degraded", LABELS}', "1"),
    "CommitlogStageSilent": (reason("stage-silent"), "1"),
    "CommitlogStageRestarted": (reason("stage-restarts"), "1"),
    "CommitlogFault": (reason("stage-fault"), "1"),
    "CommitlogNotFlushed": ('commitlog_lane_unflushed_seconds{lane="3", LABELS}', "31"),
    "CommitlogProducerBlocked": (reason("producer-blocked"), "1"),
    "CommitlogDiskHigh": (reason("disk-forces"), "1"),
    "CommitlogDiskRefuses": (reason("disk-refuses"), "1"),
    "CommitlogDiskFillsUp": ("commitlog_disk_free_bytes{LABELS}", "1000000-1000x600"),
    "CommitlogSharedMemoryLow": ("commitlog_shared_memory_free_bytes{LABELS}", "10"),
    "CommitlogReaderStandsStill": (reason("reader-still"), "1"),
    "CommitlogReaderDamaged": (reason("reader-unreadable"), "1"),
    "CommitlogDamaged": (reason("index-damaged"), "1"),
    "CommitlogReplicaBehind": (reason("replica-gone"), "1"),
    "CommitlogForwarderBehind": ('commitlog_forwarder_behind_seconds{forwarder="kafka", LABELS}', "301"),
    "CommitlogBackupOld": ("commitlog_backup_age_seconds{LABELS}", "180000"),
}
"""What each alert's cause looks like: a series, and its value, or how it goes on each minute."""
WELL = {"CommitlogSharedMemoryLow": "1000", "CommitlogDiskFillsUp": "1000000x600", "CommitlogNotScraped": "1"}
"""The value on the machine where all is well; else 0."""


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_fires_where_its_cause_is(rule: dict[str, Any], tmp_path: Path) -> None:
    """promtool lets hours pass: db1 has the cause, and db2 has none; only db1 has the alert."""
    (series, bad), minutes = CAUSES[rule["alert"]], 600
    well = WELL.get(rule["alert"], "1" if rule["alert"] == "CommitlogUnreadable" else "0")
    given = []
    for instance, value in (("db1", bad), ("db2", well)):
        labels = f'instance="{instance}", store="{PATH_OF_BOTH}"'
        values = value if "x" in value else f"{value}x{minutes}"
        given.append({"series": series.replace("LABELS", labels), "values": values})
        given.append({"series": f"commitlog_segment_size_bytes{{{labels}}}", "values": f"100x{minutes}"})
        if "commitlog_up" not in series:
            given.append({"series": f"commitlog_up{{{labels}}}", "values": f"1x{minutes}"})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    test = {"interval": "1m", "input_series": given, "alert_rule_test": [
        {"eval_time": f"{minutes - 1}m", "alertname": rule["alert"], "exp_alerts": []}
    ]}  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    found = subprocess.run(
        ["promtool", "test", "rules", "test.yml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    fired = re.findall(r'instance="(\w+)"', found.stdout.partition("got:")[2])
    assert set(fired) == {"db1"}, found.stdout
    assert "<no value>" not in found.stdout


def test_promtool_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES_FILE)], check=True, stdout=subprocess.DEVNULL)


def test_unflushed_has_the_limit_of_health() -> None:
    (expression,) = (rule["expr"] for rule in RULES if rule["alert"] == "CommitlogNotFlushed")
    assert expression.endswith(f"> {DEFAULT_LIMITS.unflushed_ms // 1000}")

"""Dashboards and alerts in a real Prometheus (`prometheus` and `promtool` on the PATH).

Two stores are scraped under two names of machines, and have the same path, as those of a fleet do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import commitlog
from commitlog.disk.backup_note import BackupNote, write_backup_note
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DiskFull
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.reader_states import STANDS_STILL_MS
from commitlog.watching.health import DEFAULT_LIMITS
from tests.builders.scrape import halted, set_lane
from tests.crash.scene import halted_process, kill, pid_of
from tests.faults.supervisor import patched_stages
from tests.waiting import wait_until
from tests.watching.prometheus_scene import CONFIGS, PATH_OF_BOTH, ROOMY, RULES_FILE, Fleet, Prometheus

RULES: list[dict[str, Any]] = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
DASHBOARDS = ("grafana-dashboard.json", "grafana-fleet.json")

pytestmark = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="there is no prometheus with its promtool"
)


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
            expression = target["expr"].replace("$__rate_interval", "10s")
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


OTHER = {"db1": "db2", "db2": "db1"}


def await_alert(prometheus: Prometheus, alert: str, instance: str = "db1") -> None:
    """It comes for the machine with the cause, and not for the other one."""
    wait_until(lambda: prometheus.fires(alert, instance), f"{alert} of {instance}")
    assert not prometheus.fires(alert, OTHER[instance])


def fill(producer: commitlog.Producer) -> None:
    """Sends more than the write buffers of a lane hold."""
    for _ in range(30):
        producer.send("apples", bytes(10_000))


def test_alerts_of_stages_and_machines(fleet: Fleet) -> None:
    """Each cause on one machine raises the alert of that machine, and not of the other one."""
    prometheus, (one, other) = fleet.prometheus, fleet.stores.values()
    comes = partial(await_alert, prometheus)
    for _ in range(3):
        kill(pid := pid_of(one.path, "dispatcher"))
        wait_until(lambda pid=pid: pid_of(one.path, "dispatcher") not in (0, pid), "the next one")  # type: ignore[misc]
    comes("CommitlogStageRestarted")
    with one.producer() as producer:
        producer.send("apples", b"early").wait("flushed", 60)
        with halted_process(pid_of(one.path, "flusher")):
            producer.send("apples", b"late")
            comes("CommitlogNotFlushed")
        filling = threading.Thread(target=fill, args=[producer])
        with halted_process(pid_of(one.path, "committer")):
            filling.start()
            comes("CommitlogProducerBlocked")
        filling.join()
    with halted(one.path):
        comes("CommitlogStageSilent")
        set_lane(one.path, FLUSHER_FAULT=28)
        comes("CommitlogFault")
        comes("CommitlogDown")  # nobody watches over the stages
        set_lane(one.path, FLUSHER_FAULT=0)
    os.rename(other.path / "store.json", other.path / "store.away")
    comes("CommitlogUnreadable", "db2")
    os.rename(other.path / "store.away", other.path / "store.json")
    fleet.exporters["db2"].terminate()
    comes("CommitlogNotScraped", "db2")


def test_alerts_of_files_and_disks(fleet: Fleet) -> None:
    """The same for what others do to a store. A start on a full disk comes last."""
    prometheus, one = fleet.prometheus, fleet.stores["db1"]
    directory, comes = StoreDirectory(one.path), partial(await_alert, fleet.prometheus)
    wait_until(lambda: prometheus.fires("CommitlogBackupOld", "db1"), "a backup of 1970")
    write_backup_note(directory, BackupNote("/mnt/backup", 4_000_000_000_000))
    wait_until(lambda: not prometheus.fires("CommitlogBackupOld", "db1"), "a backup of today")
    assert prometheus.fires("CommitlogBackupOld", "db2")
    write_forwarder(directory, ForwarderStatistics("kafka", "kafka://one:9092", 1, behind_messages=1))
    comes("CommitlogForwarderBehind")
    ReplicaFiles(directory).save(ReplicaState("standby", "replica", directory.load().id))
    comes("CommitlogReplicaBehind")
    readers = NamedReaders(directory)
    reader = readers.load("billing")
    readers.save(replace(reader, moved_ms=reader.moved_ms - STANDS_STILL_MS, boot="another"))
    comes("CommitlogReaderStandsStill")
    (one.path / "readers/billing.json").write_text("{}")
    comes("CommitlogReaderDamaged")
    comes("CommitlogDegraded")
    (directory.lane_directory(0).path / "trimmed.json").write_text("{")
    comes("CommitlogDamaged")
    (directory.lane_directory(0).path / "trimmed.json").unlink()
    one.close()
    with patched_stages("tests.faults.stage:on_a_full_disk"), commitlog.Store.open(one.path, ROOMY) as full:
        comes("CommitlogDiskHigh")
        with full.producer() as producer, pytest.raises(DiskFull):
            fill(producer)
        comes("CommitlogDiskRefuses")


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
    "CommitlogSharedMemoryLow": (reason("shared-memory-nearly-full"), "1"),
    "CommitlogReaderStandsStill": (reason("reader-still"), "1"),
    "CommitlogReaderDamaged": (reason("reader-unreadable"), "1"),
    "CommitlogDamaged": (reason("index-damaged"), "1"),
    "CommitlogReplicaBehind": (reason("replica-gone"), "1"),
    "CommitlogForwarderBehind": ('commitlog_forwarder_behind_seconds{forwarder="kafka", LABELS}', "301"),
    "CommitlogBackupOld": ("commitlog_backup_age_seconds{LABELS}", "180000"),
}
"""What each alert's cause looks like: a series, and its value, or how it goes on each minute."""
WELL = {"CommitlogDiskFillsUp": "1000000x600", "CommitlogNotScraped": "1"}
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

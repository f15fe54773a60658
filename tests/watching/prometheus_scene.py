"""Two stores of one path on two machines, and a real Prometheus that scrapes both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

import commitlog
from commitlog.disk.backup_note import BackupNote, write_backup_note
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.store_directory import StoreDirectory
from tests.ports import free_port
from tests.waiting import wait_until

CONFIGS = Path(__file__).parents[2] / "configs"
RULES_FILE = CONFIGS / "prometheus-rules.yml"
PATH_OF_BOTH = "/var/lib/commitlog/events"
ROOMY: dict[str, Any] = {
    "store": {"segment_bytes": 1 << 16},
    "supervisor": {"hung_after_ms": 600_000},
    "producer": {"buffer_wait_ms": 100_000},
}
"""Stages that are halted stay halted, and producers wait."""


class Prometheus:
    """A Prometheus that scrapes exporters by the names of their machines, each second.

    It has our rules, without the time that a cause has to hold for. Messages may wait for a tenth
    of a second in place of 30 s and 300 s.
    """

    def __init__(self, directory: Path, exporters: dict[str, int]) -> None:
        self.port = free_port()
        rules = RULES_FILE.read_text()
        rules = re.sub(r"^ +for: .*\n", "", rules, flags=re.MULTILINE)
        rules, shortened = re.subn(r"(_seconds\)?) > 30+$", r"\1 > 0.1", rules, flags=re.MULTILINE)
        assert shortened == 2
        (directory / "rules.yml").write_text(rules)
        same_path = {"target_label": "store", "replacement": PATH_OF_BOTH, "source_labels": ["store"], "regex": ".+"}
        scrape = {
            "job_name": "commitlog",
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in exporters.items()
            ],
            "metric_relabel_configs": [same_path],
        }
        often = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "250ms"}
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
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{what}?{urlencode(parameters)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return {"result": [], "alerts": []}  # it starts
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        except OSError:
            return {"result": [], "alerts": []}  # it does not listen yet, or the machine is busy

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
    with commitlog.Store.open(path, ROOMY) as store, store.producer() as producer:
        producer.send_batch("apples", [b"x"] * 10)
        producer.flush(timeout=60)
        with commitlog.Reader(store.path, topic="apples", name="billing") as reader:
            reader.commit(next(iter(reader)))
        write_forwarder(StoreDirectory(path), ForwarderStatistics("kafka", "kafka://one:9092", 1))
        write_backup_note(StoreDirectory(path), BackupNote("/mnt/backup", 1))
        yield store

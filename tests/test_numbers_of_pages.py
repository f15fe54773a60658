"""Numbers in pages: limits are those of the code, and what was measured says when and where."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from commitlog import Reader, Store, logging
from commitlog.appending import attachment
from commitlog.appending.row_options import RowOptions
from commitlog.cli.demo import demo
from commitlog.cli.stop import stop
from commitlog.client import store
from commitlog.config import AUTO_SEGMENT_BYTES_MAX, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, Config
from commitlog.disk.checkpoint import SLOT_BYTES, STORE_CHECKPOINT_BYTES
from commitlog.disk.consume_queue import ENTRY_BYTES
from commitlog.forwarding import cluster, forwarder
from commitlog.ingest import feeding
from commitlog.ingest.producer_loop import IDLE_SECONDS
from commitlog.opening import pool_sizing
from commitlog.reading import watched_words
from commitlog.record.body_compression import PLAIN_BODY_BYTES_MAX
from commitlog.record.record_layout import (
    IPV4_BYTES,
    IPV6_BYTES,
    PORT_BYTES,
    PROPERTIES_BYTES_MAX,
    V1_TOPIC_BYTES_MAX,
)
from commitlog.remote import fetching, flight_connection, outbox, remote_index, requests, stream_threads
from commitlog.replicas import replica
from commitlog.schemas import types
from commitlog.serving import append_streams, flights, limits, memory_bounds, served_store, server_processes
from commitlog.shm.layout import CONTROL_BYTES, LINE_WORDS, WORD_BYTES
from commitlog.spark import server_wait
from commitlog.spark.launching import jvm_memory
from commitlog.stages import supervisor
from commitlog.stages.supervising import log_files
from commitlog.ui import looks
from commitlog.watching import health
from commitlog.watching.exposition import StoreCollector
from commitlog.watching.metric import DURATION_LIMITS, PUT_TIME_LIMITS
from scripts.wheel_building import SDIST_MB, WHEEL_MB
from tests.programs import BLOCK, DOCS

ROOT = DOCS.parent
_CODE = re.compile(r"`[^`\n]*`")


def mib(size: int) -> str:
    return f"{size >> 20} MiB"


def server_table() -> str:
    return (DOCS / "serve.md").read_text().partition("| | most |\n| --- | --- |\n")[2].partition("\n\n")[0]


def test_what_a_server_allows() -> None:
    """The numbers in the table of docs/serve.md, row by row."""
    wanted = [
        [f"{limits.CONNECTIONS_MAX:,}"],
        [f"{limits.STREAMS_MAX}", mib(memory_bounds.STREAM_BYTES)],
        [f"{limits.ACTIONS_MAX}"],
        [f"{limits.WAITS_MAX:,}"],
        [mib(limits.REQUEST_BYTES_MAX), mib(requests.BATCH_BYTES_MAX), mib(append_streams.METADATA_BYTES_MAX)],
        [f"{limits.NAMED_MAX:,}"],
        [f"{flights.ENDPOINTS_MAX:,}"],
        [f"{limits.COLUMNS_MAX:,}", f"{types.NESTING_MAX}"],
        [f"{served_store.NAMES_PER_CLIENT_MAX}"],
        [f"{limits.UNKNOWN_SECONDS:g} seconds", mib(limits.UNKNOWN_BYTES_MAX)],
        [f"{limits.STALLED_SECONDS / 60:g} minutes"],
        [f"{limits.SILENT_SECONDS / 3600:g} hour"],
        [mib(server_processes.LEAST_BYTES)],
        [f"{memory_bounds.ARROW_BYTES_MAX >> 30} GiB"],
    ]
    rows = [row.split(" | ")[1] for row in server_table().splitlines()]
    assert [re.findall(r"\d+(?:,\d+)*(?: (?:[MG]iB|seconds|minutes|hour))?", row) for row in rows] == wanted


def test_how_many_descriptors_are_needed() -> None:
    producer, opened, client = (module._NEEDED_DESCRIPTORS for module in (attachment, store, flight_connection))
    said = f"a producer takes up to {producer}, a store {opened}, a client of a server {client}."
    page = (DOCS / "recover.md").read_text()
    assert said in page
    assert f"A stage needs {supervisor._DESCRIPTORS_LEAST}," in page


# ---- every number has a source -----------------------------------------------------------------

_WORDS = "a|half a|an|some|two|three|four|five|ten|twenty|thirty|a few|a hundred|hundreds of|thousands of"
_UNITS = "ns|µs|us|ms|s|seconds?|minutes?|hours?|h|kB|MB|GB|KiB|MiB|GiB|M/s|MB/s|GB/s|%|percent|cores?|million|times as"
_UNITS += "|bytes|entries|days|months|years"
QUANTITY = re.compile(
    rf"(?<![\w.:/-])\d[\d,.]*(?: ?(?:to|and|–|or) \d[\d,.]*)?\s?(?:{_UNITS})(?![\w/])"
    rf"|\b(?:{_WORDS})[ -](?:micro|milli)seconds?\b"
    r"|\b(?:percent|(?:hundred|thousand)ths?|half|third|quarter|fifth|sixth|tenth)s? of (?:a|the) (?:core|time|CPU)"
    r"|\b(?:half an?|two|three|four|five|six|ten|twenty|thirty|sixty) (?:seconds|minutes?|hours?|days|months|years)\b"
    r"|\b(?:two|three|four|five|ten) times as\b|\bmillion\b|\bpercent\b"
)
_DATE, _MACHINE = re.compile(r"\b20\d\d-\d\d-\d\d\b"), re.compile(r"\b\d+ cores\b")
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def undefined(page: Path, defined: list[str]) -> list[str]:
    """Quantities of a page that neither the code defines, nor a date and a machine are beside.

    A paragraph may also link to BENCHMARKS.md, whose numbers `scripts/bench` makes.
    """
    text = _INDENTED.sub("\n", _CODE.sub("`…`", BLOCK.sub("", page.read_text())))
    for phrase in defined:
        text, count = re.subn(r"\s+".join(map(re.escape, phrase.split())), "…", text)
        assert count, f"{page.name} does not say {phrase!r}: the code does"
    found = []
    for section in re.split(r"^#+ .*$", text, flags=re.MULTILINE):
        if not (_DATE.search(section) and _MACHINE.search(section)):
            for paragraph in re.split(r"\n\n|\n(?=[|-] ?)", section):
                if "BENCHMARKS.md" not in paragraph:
                    found += [
                        f"{match[0]}: {' '.join(paragraph.split())[:120]}" for match in QUANTITY.finditer(paragraph)
                    ]
    return found


MIB, GIB = 1 << 20, 1 << 30
_SHM_OF_DOCKER = 64 * MIB
TRACE = f"traceparent\1 00-{'0' * 32}-{'0' * 16}-01\2"


def gib(size: int) -> str:
    assert size % GIB == 0
    return f"{size >> 30} GiB"


def s(seconds: float) -> str:
    return f"{seconds:g} s"


_WORD = {1: "one", 2: "two", 3: "three", 4: "four"}


def in_words(seconds: float) -> str:
    """As a page says it: ten seconds, two minutes."""
    count, unit = (seconds / 60, "minutes") if seconds >= 60 else (seconds, "seconds")
    return f"{ {2: 'two', 5: 'five', 10: 'ten'}[int(count)] } {unit}"


def alert_days(name: str) -> str:
    """The limit of an alert that is said as days, in words."""
    rules = (ROOT / "configs/prometheus-rules.yml").read_text()
    found = re.search(rf"alert: {name}\n +expr: .* > (\d+) \* 24 \* 3600\n", rules)
    assert found
    return _WORD[int(found[1])]


def planner_seconds() -> int:
    """How long Spark's JVM waits for a planner."""
    found = re.search(r'LIMIT, "(\d+)s"', (ROOT / "commitlog/spark/java/Planner.java").read_text())
    assert found
    return int(found[1])


def probed_seconds() -> int:
    """How long the probes in Kubernetes wait for a start."""
    parts = yaml.safe_load_all((ROOT / "configs/kubernetes/store/store.yaml").read_text())
    (state,) = (part for part in parts if part["kind"] == "StatefulSet")
    probe = state["spec"]["template"]["spec"]["initContainers"][0]["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def default(command: Callable[..., None], option: str) -> Any:
    """An option's value where nobody gives it."""
    return inspect.signature(command).parameters[option].default


def segment_bytes_of(free: int) -> int:
    """The size of the segments of a new store, where so much shared memory is free."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_sizing, "free_bytes", lambda _: free)
        return pool_sizing.choose_segment_bytes(
            CONFIG.store.buffers_per_lane, AUTO_SEGMENT_BYTES_MAX, MIN_SEGMENT_BYTES
        )


CONFIG = Config()
BUFFERS = f"{CONFIG.store.buffers_per_lane} × {mib(AUTO_SEGMENT_BYTES_MAX)}"

OF_A_LANE = mib(CONFIG.store.buffers_per_lane * AUTO_SEGMENT_BYTES_MAX)
DISK_OF_A_LANE = mib((1 + CONFIG.allocator.segments_ahead) * AUTO_SEGMENT_BYTES_MAX)
DEMO = in_words(default(demo, "seconds"))
CHECKED = "half a minute" if forwarder._CHECK_NS == 30 * 10**9 else ""

DEFINED: dict[str, list[str]] = {
    "README.md": [
        f"Segments are deleted after {CONFIG.retention.reserved_hours} hours",
        f"shows it in {DEMO}",
        f"| {DEMO} to look at",
        f"| {OF_A_LANE} of /dev/shm",
        f"| {DISK_OF_A_LANE} of disk",
    ],
    "docs/README.md": [f"look at it for {DEMO}"],
    "docs/backup.md": [f"An alert comes after {alert_days('CommitlogBackupOld')} days"],
    "docs/command-line.md": ["a percent sign", f"runs for {DEMO} ("],
    "docs/compatibility.md": ["at least three months"],  # a promise
    "docs/containers.md": [
        f"/dev/shm has {mib(_SHM_OF_DOCKER)}",
        "the limit is `…` and 512 MiB more",  # configs/kubernetes/store/store.yaml, which tests/recipes compares
    ],
    "docs/forward.md": [
        f"librdkafka's queue, {cluster.QUEUE_KIBIBYTES >> 10} MiB",
        f"every {forwarder._CHECK_NS // 10**9} seconds",
        f"which sees them within {CHECKED}",
        f"gives them back within {CHECKED} after",
        f"has not answered for {in_words(cluster.SILENT_SECONDS)}",
    ],
    "docs/from-kafka.md": [f"A message is at most {mib(PLAIN_BODY_BYTES_MAX)}"],
    "docs/from-rocketmq.md": [
        f"1 GiB → what /dev/shm has room for, {mib(AUTO_SEGMENT_BYTES_MAX)} at most",
        f"false → waits {s(CONFIG.producer.buffer_wait_ms / 1000)}",
        "100 MiB → no limit",
        f"an entry of {ENTRY_BYTES} bytes for a message",
        f"{CONFIG.dispatcher.queue_file_entries:,} entries of {ENTRY_BYTES} bytes",
    ],
    "docs/internals/files.md": [
        f"a port of {PORT_BYTES} bytes",
        f"one of IPv6 takes {IPV6_BYTES - IPV4_BYTES} bytes more",
        f"topics above {V1_TOPIC_BYTES_MAX} bytes",
        f"is the {ENTRY_BYTES} bytes at q × {ENTRY_BYTES}",
        f"× {ENTRY_BYTES} bytes, and is sparse",
        f"Two slots of {SLOT_BYTES:,} bytes, written in turn: sequence s is at s mod 2 × {SLOT_BYTES:,}",
        "| 96 | CRC-32 of the 96 bytes before",  # a test of its own has the fields
        f"StoreCheckpoint: {STORE_CHECKPOINT_BYTES:,} bytes",
        f"{CONTROL_BYTES:,} bytes: words of {8 * WORD_BYTES} bits",
        f"a cache line of {LINE_WORDS * WORD_BYTES} bytes",
        f"full at {mib(log_files.LOG_BYTES)}; 1 is the newest of {log_files.LOGS_KEPT}",
        f"a power of two from 4 KiB to {gib(MAX_SEGMENT_BYTES)}",
    ],
    "docs/logs.md": [
        f"each some {IDLE_SECONDS * 1000:g} to {feeding._NOTICE_NS // 10**6} ms after the last",
        f"a line is longer than {mib(feeding.LINE_BYTES_MAX)}",
        f"it tries again every {in_words(logging._RETRY_NS / 10**9)}",
    ],
    "docs/metrics.md": [
        f"from {PUT_TIME_LIMITS[0] * 1000:g} ms to {s(PUT_TIME_LIMITS[-2])}",
        f"from {DURATION_LIMITS[0] * 1e6:.0f} µs to {DURATION_LIMITS[-2]:.1f} s",
    ],
    "docs/native.md": [
        "of the last ten years",  # of other projects
        f"A wheel has less than {WHEEL_MB} MB, the sdist less than {SDIST_MB} MB",
    ],
    "docs/operate.md": [
        f"waits up to `…` ({s(default(stop, 'timeout'))})",
        f"{BUFFERS} at most by",
        f"Docker's {mib(_SHM_OF_DOCKER)} give segments of {mib(segment_bytes_of(_SHM_OF_DOCKER))}",
        f"| {gib(CONFIG.retention.disk_enough_bytes)} | a disk with so much free",
        f"a file has {mib(log_files.LOG_BYTES)} at most",
        "every 30 seconds is a good interval",  # advice
        f"plots of the last {in_words(looks.KEPT * looks.INTERVAL_SECONDS)}",
        f"the last time within {in_words(health.RESTARTS_MS / 1000)}",
        f"A recovery has {in_words(probed_seconds())} there",
        f"with less than {gib(health.ENOUGH_BYTES)} free",
        f"has lacked for {s(health.HealthLimits.replica_behind_ms / 1000)}",
        f"`…` ({s(CONFIG.supervisor.stop_timeout_ms / 1000)}) for it",
    ],
    "docs/python.md": [f"during {watched_words._BUSY_NS // 10**6} ms after each one"],
    "docs/recover.md": [
        f"or gave none in {in_words(planner_seconds())}",
        f"more than {PROPERTIES_BYTES_MAX:,} bytes",
    ],
    "docs/remote-producers.md": [
        f"for {outbox.LINGER_NS // 10**6} ms, or up to {outbox.BATCH_MESSAGES:,} messages or {mib(outbox.BATCH_BYTES)}",
        f"while {mib(outbox.OUTBOX_BYTES)} are on their way",
        f"at most {mib(requests.BATCH_BYTES_MAX)}",
        f"If {stream_threads.RESEND_SECONDS:g} seconds do not suffice",
    ],
    "docs/replicate.md": [
        f"within {replica._PAUSES[-1]:g} s after",
        f"of a lane ({gib(CONFIG.replication.keep_bytes)})",
    ],
    "docs/sensors.md": ["10 to 100 ms is a good beginning"],  # advice
    "docs/serve.md": [
        _CODE.sub("`…`", server_table()),  # a test of its own compares it
        f"the wait is {server_wait.SHORT_WAIT_MS} ms",
        f"wait up to {flight_connection.PATIENCE_SECONDS:g} seconds",
        f"renews it every {remote_index.RENEW_SECONDS:g} seconds",
        f"a machine that vanished after {served_store.LEASE_NS / 1e9:g} seconds",
        f"{flight_connection.PATIENCE_SECONDS:g} seconds at most",
        f"a busy one {flight_connection.BUSY_PATIENCE_SECONDS / 60:g} minutes",
        f"up to {mib(fetching.AHEAD_BYTES)} ahead",
        f"asks every {requests.NAMED_WAIT_MS_MAX // 1000} seconds",
    ],
    "docs/spark.md": [
        "`…` returns after ten seconds",  # an argument of the example
        "Spark gives a Python process ten seconds to start",  # PySpark's own
    ],
    "docs/tracing.md": [f"takes some {round(len(TRACE), -1)} bytes in each record"],
    "docs/tune.md": [
        f"buffers × segment: {BUFFERS} by default",
        f"written and two ahead: {1 + CONFIG.allocator.segments_ahead} × {mib(AUTO_SEGMENT_BYTES_MAX)}",
        f"takes {mib(CONFIG.store.buffers_per_lane * 16 * MIB)} in place of {OF_A_LANE.removesuffix(' MiB')}",
        f"less than {gib(jvm_memory.ENOUGH_BYTES)} a quarter of that, at least {mib(jvm_memory.LEAST_BYTES)}",
    ],
    "docs/typed-topics.md": [f"{RowOptions.max_rows:,} rows or {mib(RowOptions.max_bytes)}"],
    "docs/web-service.md": [
        f"`…` ({s(importlib.import_module('gunicorn.config').GracefulTimeout.default)})",
        f"`…` ({s(CONFIG.producer.buffer_wait_ms / 1000)}) for a write",
    ],
}
"""Page → what it says of numbers that the code defines. Others than the code are named beside."""


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_number_has_a_source(page: Path) -> None:
    assert undefined(page, DEFINED.get(str(page.relative_to(ROOT)), [])) == []


_DEFAULT = re.compile(r'`(\w+)\.(\w+)`(?: \(| \| )(?:\d+ → |the same: )?("\w*"|[\d,]+)(?= \||[;,)]| entries)')
"""A knob, and behind it its default: in brackets, in the next cell, or behind RocketMQ's."""


def test_a_default_in_a_page_is_that_of_the_code() -> None:
    said = {
        (page.name, section, knob): value.strip('"').replace(",", "")
        for page in DOCS.rglob("*.md")
        for section, knob, value in _DEFAULT.findall(page.read_text())
    }
    assert len(said) > 12
    for (page, section, knob), value in said.items():
        assert str(getattr(getattr(CONFIG, section), knob)) == value, f"{page}: {section}.{knob}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 15 ms.", ["15 ms"]),
        ("It takes 15\nms.", ["15\nms"]),
        ("It takes 0.5 to 2 GB, or half of the time, at 1.5M/s.", ["0.5 to 2 GB", "half of the time", "1.5M/s"]),
        ("Less than a microsecond, and\n20 % of it.", ["a microsecond", "20 %"]),
        ("It takes 15 ms ([BENCHMARKS.md](../BENCHMARKS.md)).", []),
        ("On 2026-11-27, with 2 cores.\n\nIt takes 15 ms.", []),
        ("On 2026-11-27, with 2 cores.\n\n## More\n\nIt takes 15 ms.", ["15 ms"]),
        ("On 2026-11-27 it takes 15 ms.", ["15 ms"]),  # on which machine?
        ("`--seconds 15s` or\n\n    15 s\n\n```sh\nsleep 15 s\n```\n", []),
        ("At most 4 MiB, the code says.", []),
        ("In five minutes, or 4,096 bytes.", ["five minutes", "4,096 bytes"]),
    ],
)
def test_a_number_without_a_source_is_found(text: str, found: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    defined = ["At most 4 MiB"] if "4 MiB" in text else []
    assert [one.partition(":")[0] for one in undefined(page, defined)] == found


# ---- measured here -----------------------------------------------------------------------------


def test_the_memory_of_an_idle_store(tmp_path: Path) -> None:
    """What the tables of README and of docs/tune.md say is near what it is, and near each other."""
    readme, tune = (ROOT / "README.md").read_text(), (DOCS / "tune.md").read_text()
    whole = re.search(r"\| a store \| (\d+) MB in five processes", readme)
    parts = re.search(r"\| an idle store \| (\d+) MB for its five processes, and (\d+) MB that they share", tune)
    assert whole
    assert parts
    own, shared = map(int, parts.groups())
    assert abs(own + shared - int(whole[1])) <= 2
    with Store.open(tmp_path / "store") as opened:
        supervisor_process = psutil.Process(opened._process.pid)
        processes = [supervisor_process, *supervisor_process.children()]
        assert len(processes) == 5
        found = sum(process.memory_full_info().uss for process in processes) / 1e6
    assert own / 1.5 < found < own * 1.5


def test_the_samples_of_a_scrape(tmp_path: Path) -> None:
    """How many each lane, stage, topic and reader has: docs/metrics.md says it in words."""
    with Store.open(tmp_path / "store", {"store": {"segment_bytes": MIN_SEGMENT_BYTES}}) as opened:
        for producer in (opened.producer(), opened.producer()):
            producer.send("orders", b"")
            producer.flush()
        with Reader(opened.path, name="billing") as reader:
            reader.commit(list(reader)[-1])
        samples = [one for family in StoreCollector([opened.path], print).collect() for one in family.samples]
    labels = [frozenset(one.labels) - {"store", "le"} for one in samples]

    def with_only(*names: str) -> int:
        return labels.count(frozenset(names))

    store_samples = len(labels) - sum(bool(one & {"lane", "stage", "reader"}) for one in labels)
    counts = [
        f"A store has {store_samples} samples",
        f"each lane {with_only('lane') // 2}",
        f"each stage {with_only('stage') // 4}",
        f"a topic {_WORD[with_only('lane', 'topic') // 2]} for each of its lanes",
        f"a reader {_WORD[with_only('reader') + with_only('reader', 'kind')]} and {_WORD[with_only('reader', 'topic')]} for",
    ]
    page = " ".join((DOCS / "metrics.md").read_text().split())
    assert [said for said in counts if said not in page] == []

"""What this project wants to reach: ratios of medians within one run, and a few plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commitlog.shm.layout import STAGES
from scripts.benchmarks.harness import Part

Value = Callable[[str, str, str], float]


@dataclass(frozen=True)
class Target:
    """One target: what `find` gives is compared with `limit`.

    `find` gets a function (group, contestant, metric) → median.
    """

    part: str
    what: str
    sign: str
    limit: float
    find: Callable[[Value], float]
    headline: str = ""
    """What BENCHMARKS.md calls it in its table of results; most targets are not there."""

    def met_by(self, found: float) -> bool:
        return found <= self.limit if self.sign == "≤" else found >= self.limit


def _ratio(
    group: str, one: str, other: str, metric: str = "wall", metric_of_other: str = ""
) -> Callable[[Value], float]:
    return lambda value: value(group, one, metric) / value(group, other, metric_of_other or metric)


def _plain(group: str, one: str, metric: str) -> Callable[[Value], float]:
    return lambda value: value(group, one, metric)


def _more(group: str, one: str, other: str, metric: str) -> Callable[[Value], float]:
    return lambda value: value(group, one, metric) - value(group, other, metric)


_OS_WRITE, _FILE = "os.write, the record", "file.write, the bodies"
_PIPELINE, _SENDS = "1 KB in batches of 1,000, one producer", "100 B by send, one producer"
_OVERLAPPED, _HELD = "pwrite + fdatasync, overlapped", "append alone, the stages held"
_WAIT, _FLOOR = "1 KB, one at a time", "1 × pwrite + fdatasync"
_NOOP, _STREAM, _SINK = "batch, noop sink", "stream, noop sink, steady batches, 100 B", "batch, Parquet sink, 100 B"
_COMMITTED = "committer, from send to committed"
_SCANNED, _WALKED = "all flushed, nothing dispatched", "scan() of the mapped files, with CRCs"
_VALUE = "batch, value only, noop sink, 100 B"
_COLUMNS, _TYPED = "batch of 8 columns, noop sink", "typed topic, 1,000 rows a message"
_SENT = "rows of 8 columns"
_ALONE, _ALONE_1KB = "one client, read_arrow, 100 B", "one client, read_arrow, 1024 B"
_READER = "one client, a Reader, 100 B"
_SERVED = "stream, 50 messages/s, by path and by URL"
_CATCH_UP, _COPY, _BARE = "a new replica catches up, 1 KB", "replica, over TLS", "pwrite, and fdatasync each 16 MiB"
_EACH = "1 KB, one at a time, with a replica"
_REAL_TIME, _COPIED = "Real-Time Mode, 1000 messages/s", "log to log to Reader"
_LIVE, _DEFAULTS = (f"stream, 50 messages/s, {session}" for session in ("commitlog's session", "Spark's defaults"))

TARGETS = (
    Target(
        "append",
        "send, 100 B, by os.write",
        "≤",
        0.5,
        _ratio("send, 100 B", "send", _OS_WRITE),
        headline="`send` of 100 B, of the time of an `os.write` of the record",
    ),
    Target("append", "send with a key, by os.write", "≤", 0.7, _ratio("send, 100 B", "send, with key", _OS_WRITE)),
    Target("append", "body CRC only, by os.write", "≤", 1.2, _ratio("send, 100 B", "send, body CRC only", _OS_WRITE)),
    Target(
        "append",
        "Kafka's produce() by send",
        "≥",
        1.2,
        _ratio("send, 100 B", "Kafka, produce()", "send"),
        headline="`send` of 100 B, times as quick as `produce()` of Kafka, which keeps it in the process",
    ),
    Target(
        "append",
        "Queue by send, 100 B",
        "≥",
        10,
        _ratio("send, 100 B", "multiprocessing.Queue", "send"),
        headline="the same, times as quick as a `multiprocessing.Queue`",
    ),
    Target("append", "send, 1 KB, by os.write", "≤", 0.4, _ratio("send, 1024 B", "send", _OS_WRITE)),
    Target(
        "append",
        "batches, messages/s",
        "≥",
        6e6,
        _plain("send_batch, 100 B", "batches of 1,000", "rate"),
        headline="`send_batch` of 1,000 × 100 B, messages/s",
    ),
    Target("append", "without CRC", "≥", 10e6, _plain("send_batch, 100 B", "batches of 1,000, body CRC only", "rate")),
    Target(
        "append",
        "without CRC, by file.write",
        "≤",
        3,
        _ratio("send_batch, 100 B", "batches of 1,000, body CRC only", _FILE),
    ),
    Target("append", "Arrow, messages/s", "≥", 8e6, _plain("send_batch, 100 B", "Arrow, batches of 1,000", "rate")),
    Target(
        "append",
        "Arrow by bytes",
        "≤",
        1.0,
        _ratio("send_batch, 100 B", "Arrow, batches of 1,000", "batches of 1,000"),
    ),
    Target(
        "pipeline",
        "by the overlapped floor",
        "≥",
        0.8,
        _ratio(_PIPELINE, "commitlog", _OVERLAPPED, "rate"),
        headline="until all is synced, 1 KB, of what pwrite and fdatasync can do",
    ),
    Target(
        "pipeline",
        "by LMDB not synced",
        "≥",
        2.5,
        _ratio(_PIPELINE, "commitlog", "LMDB not synced, transactions of 1,000", "rate"),
    ),
    Target(
        "pipeline",
        "by SQLite FULL",
        "≥",
        5,
        _ratio(_PIPELINE, "commitlog", "SQLite FULL, transactions of 1,000", "rate"),
        headline="the same, times as quick as SQLite with synchronous=FULL",
    ),
    Target("pipeline", "100 B, by append alone", "≥", 0.9, _ratio(_SENDS, "commitlog", _HELD, "append rate")),
    Target(
        "pipeline",
        "send to flushed, CPU seconds a million",
        "≤",
        1.5,
        lambda value: sum(value(_SENDS, "commitlog", f"{who} cpu") for who in ("producers", *STAGES)),
    ),
    Target("pipeline", "committer and flusher, of the producer", "≤", 0.25, _plain(_SENDS, "commitlog", "share")),
    Target(
        "append",
        "send_rows, rows/s",
        "≥",
        10e6,
        _plain(_SENT, "send_rows, an Arrow table", "rate"),
        headline="`send_rows` of an Arrow table of 8 columns, rows/s",
    ),
    Target("append", "rows.append, µs of CPU", "≤", 2, _plain(_SENT, "rows.append", "each")),
    Target("pipeline", "idle, of a core", "≤", 0.01, _plain("at rest", "idle", "cores")),
    Target("pipeline", "1,000 messages/s, of a core", "≤", 0.05, _plain("at rest", "1,000 messages/s", "cores")),
    Target(
        "pipeline",
        "send to flushed, p50, µs",
        "≤",
        15_000,
        _plain("at rest", "1,000 messages/s", "p50"),
        headline="from `send` to the disk, with 1,000 messages/s, median, µs",
    ),
    Target("pipeline", "a stage's memory, MB", "≤", 60, _plain(_PIPELINE, "commitlog", "memory")),
    Target(
        "durable",
        "p50 by the floor",
        "≤",
        1.4,
        _ratio(_WAIT, "commitlog", _FLOOR, "p50"),
        headline="SYNC_FLUSH, one at a time, median, times that of a bare pwrite and fdatasync",
    ),
    Target("durable", "p99 by the floor", "≤", 3, _ratio(_WAIT, "commitlog", _FLOOR, "p99")),
    Target(
        "durable",
        "Kafka's p50 by ours",
        "≥",
        1,
        _ratio(_WAIT, "Kafka", "commitlog", "p50"),
        headline="the same, times as quick as Kafka with flush.messages=1",
    ),
    Target("durable", "answers/s with 16 waiting", "≥", 55_000, _plain("1 KB, 16 outstanding", "commitlog", "answers")),
    Target("durable", "with 1,000 waiting", "≥", 350_000, _plain("1 KB, 1,000 outstanding", "commitlog", "answers")),
    Target(
        "scale",
        "two producers by one",
        "≥",
        1.7,
        lambda value: value("2 producers", "commitlog", "rate") / value("1 producer", "commitlog", "rate"),
    ),
    Target(
        "scale",
        "sixteen by two",
        "≥",
        0.9,
        lambda value: value("16 producers", "commitlog", "rate") / value("2 producers", "commitlog", "rate"),
    ),
    Target("scale", "slowest of sixteen, by the fastest", "≥", 0.6, _plain("16 producers", "commitlog", "fairness")),
    Target(
        "recover",
        "full scan, 1 KB, MB/s",
        "≥",
        3000,
        _plain("full scan, 1024 B", _SCANNED, "megabytes"),
        headline="a start after a kill, without a pool: MB of the log scanned a second",
    ),
    Target(
        "recover", "full scan, 1 KB, twice RocketMQ's", "≥", 900, _plain("full scan, 1024 B", _SCANNED, "megabytes")
    ),
    Target("recover", "scan with CRCs, 1 KB, MB/s", "≥", 4000, _plain("full scan, 1024 B", _WALKED, "megabytes")),
    Target("recover", "scan with CRCs, 100 B, MB/s", "≥", 2000, _plain("full scan, 100 B", _WALKED, "megabytes")),
    Target("recover", "full scan, 100 B, MB/s", "≥", 250, _plain("full scan, 100 B", _SCANNED, "megabytes")),
    Target("recover", "memory, large logs, MB", "≤", 200, _plain("two lanes side by side", "large logs", "memory")),
    Target("dispatch", "records/s, 100 B", "≥", 8e6, _plain("100 B records", "dispatcher", "rate")),
    Target("stages", "rung to committed, p50, µs", "≤", 300, _plain(_COMMITTED, "asleep, and rung", "p50")),
    Target(
        "stages",
        "killed, the slowest, ms",
        "≤",
        1000,
        lambda value: max(value("kill -9 of a stage, until data moves again", name, "milliseconds") for name in STAGES),
        headline="a stage is killed with -9: until data moves again, ms",
    ),
    Target("planning", "a batch, ms of CPU", "≤", 100, _plain("a batch is planned", "many segments a lane", "cpu")),
    Target("planning", "idle, ms of CPU", "≤", 1, _plain("a stream that is up to date asks", "many lanes", "cpu")),
    Target(
        "spark",
        "batch, 100 B, by Kafka",
        "≥",
        4.5,
        _ratio(f"{_NOOP}, 100 B", "commitlog", "Kafka", "rate"),
        headline="Spark reads 100 B messages, times as quick as from Kafka",
    ),
    Target("spark", "batch, 1 KB, by Kafka", "≥", 2.5, _ratio(f"{_NOOP}, 1024 B", "commitlog", "Kafka", "rate")),
    Target(
        "spark",
        "stream, by Kafka",
        "≥",
        1.5,
        _ratio(_STREAM, "commitlog", "Kafka", "rate"),
        headline="Spark streams them, times as quick as from Kafka",
    ),
    Target("spark", "Parquet sink, by Kafka", "≥", 1.6, _ratio(_SINK, "commitlog", "Kafka", "rate")),
    Target(
        "spark", "value only, by prebuilt", "≥", 0.95, _ratio(_VALUE, "commitlog", "prebuilt RecordBatches", "rate")
    ),
    Target(
        "spark",
        "typed topic, by Parquet",
        "≥",
        1.5,
        _ratio(_COLUMNS, _TYPED, "Parquet files", "rate"),
        headline="Spark reads a typed topic of 8 columns, times as quick as Parquet files",
    ),
    Target("spark", "typed topic, by from_json", "≥", 5, _ratio(_COLUMNS, _TYPED, "values, from_json", "rate")),
    Target("spark", "typed topic, by Kafka's from_json", "≥", 8, _ratio(_COLUMNS, _TYPED, "Kafka, from_json", "rate")),
    Target(
        "spark", "values=json, by from_json", "≥", 0.8, _ratio(_COLUMNS, "values=json", "values, from_json", "rate")
    ),
    Target(
        "spark",
        "50 messages/s, p50, ms",
        "≤",
        150,
        _plain(_LIVE, "commitlog", "p50"),
        headline="from `send` to a row in a Spark query, with 50 messages/s, median, ms",
    ),
    Target(
        "read",
        "100 B, value and offset, µs of CPU",
        "≤",
        0.6,
        _plain("100 B", "Reader, value and offset", "cpu"),
        headline="a `Reader` gives a message of 100 B, value and offset, µs of CPU",
    ),
    Target(
        "read", "100 B, key and headers too, µs of CPU", "≤", 1, _plain("100 B", "Reader, key and headers too", "cpu")
    ),
    Target("read", "100 B, batches, µs of CPU", "≤", 0.45, _plain("100 B", "Reader.batches", "cpu")),
    Target("read", "100 B, read_arrow, µs of CPU", "≤", 0.3, _plain("100 B", "read_arrow", "cpu")),
    Target("read", "100 B, by URL, µs of CPU", "≤", 1, _plain("100 B", "Reader by URL, batches", "cpu")),
    Target(
        "read",
        "Kafka's consumer by Reader",
        "≥",
        1.5,
        _ratio("100 B", "Kafka's consumer, one by one", "Reader, value and offset", "cpu"),
        headline="Kafka's consumer takes for it, times the CPU of a `Reader`",
    ),
    Target(
        "read",
        "Kafka's consume(1000) by Reader.batches",
        "≥",
        1.5,
        _ratio("100 B", "Kafka's consumer, consume(1000)", "Reader.batches", "cpu"),
    ),
    Target("read", "sent and read, µs of CPU", "≤", 1, _plain("100 B, sent and read", "send, then Reader", "cpu")),
    *(
        Target(
            "read",
            f"{rate}/s, {name}, {metric}, µs",
            "≤",
            most,
            _plain(f"a reader that follows, {rate} messages/s", name, metric),
        )
        for rate in (50, 1000)
        for name, metric, most in (
            ("accepted", "p50", 150),
            ("accepted", "p99", 2000),
            ("flushed, in a hurry", "p50", 1500),
        )
    ),
    Target(
        "read",
        "an idle reader, of a core",
        "≤",
        0.003,
        _plain("a reader that follows, 50 messages/s", "accepted", "idle"),
    ),
    Target("spark", "50 messages/s, p99, ms", "≤", 250, _plain(_LIVE, "commitlog", "p99")),
    *(
        Target("spark", f"real time, {level}, p50, ms", "≤", most, _plain(_REAL_TIME, f"commitlog, {level}", "p50"))
        for level, most in (("accepted", 2.5), ("committed", 4), ("flushed", 5))
    ),
    *(
        Target("spark", f"real time, {level}, p99, ms", "≤", most, _plain(_REAL_TIME, f"commitlog, {level}", "p99"))
        for level, most in (("accepted", 7), ("flushed", 22))
    ),
    Target(
        "spark", "real time, accepted by Kafka's p50", "≤", 1, _ratio(_REAL_TIME, "commitlog, accepted", "Kafka", "p50")
    ),
    Target(
        "spark", "real time, Spark, of a core", "≤", 0.05, _plain(_REAL_TIME, "commitlog, accepted, to Java", "query")
    ),
    Target(
        "spark",
        "real time, log to log to Reader, p50, ms",
        "≤",
        8,
        _plain(_REAL_TIME, f"commitlog, accepted, {_COPIED}", "p50"),
    ),
    Target("spark", "real time, idle, of a core", "≤", 0.015, _plain(_REAL_TIME, "commitlog, accepted", "idle")),
    Target("spark", "Spark's defaults, p50 by Kafka's", "≤", 1, _ratio(_DEFAULTS, "commitlog", "Kafka", "p50")),
    Target("spark", "Spark's defaults, p99 by Kafka's", "≤", 1, _ratio(_DEFAULTS, "commitlog", "Kafka", "p99")),
    *(
        target
        for size in ("100 B", "1024 B")
        for batch in [f"batch, all columns, noop sink, {size}"]
        for target in (
            Target("serve", f"executor, {size}, by path", "≤", 1.2, _ratio(batch, "by URL", "by path", "executor")),
            Target("serve", f"everything, {size}, by Kafka", "≥", 3, _ratio(batch, "by URL", "Kafka", "together")),
        )
    ),
    Target("serve", "the server, µs of CPU a row of 100 B", "≤", 0.2, _plain(_ALONE, "by URL", "server")),
    Target("serve", "rows of 100 B a CPU second of the server", "≥", 3e6, _plain(_ALONE, "by URL", "core")),
    Target("serve", "TLS, s/GB more at the server", "≤", 0.35, _more(_ALONE_1KB, "by URL, TLS", "by URL", "server GB")),
    Target("serve", "TLS, s/GB more at the client", "≤", 0.35, _more(_ALONE_1KB, "by URL, TLS", "by URL", "client GB")),
    Target("serve", "messages of 100 B a CPU second of a Reader", "≥", 1e6, _plain(_READER, "by URL", "core")),
    Target("serve", "50 messages/s, p50, ms more than by path", "≤", 10, _more(_SERVED, "by URL", "by path", "p50")),
    Target("serve", "an idle stream, the server, of a core", "≤", 0.005, _plain(_SERVED, "by URL", "source")),
    Target(
        "replicate",
        "catch-up, MB/s",
        "≥",
        300,
        _plain(_CATCH_UP, _COPY, "megabytes"),
        headline="a new replica catches up over TLS, MB/s",
    ),
    Target("replicate", "catch-up, by the bare floor", "≥", 0.5, _ratio(_CATCH_UP, _COPY, _BARE, "megabytes")),
    Target("replicate", "sender, CPU s a GB, with TLS", "≤", 0.6, _plain(_CATCH_UP, _COPY, "sender")),
    Target(
        "replicate",
        "replicated behind flushed, p50, µs, less 1.5 × the floor",
        "≤",
        1000,
        lambda value: (
            value(_EACH, "replicated", "p50") - value(_EACH, "flushed", "p50") - 1.5 * value(_EACH, _FLOOR, "p50")
        ),
    ),
    Target("replicate", "Kafka's p50 by ours", "≥", 1, _ratio(_EACH, "Kafka, two brokers", "replicated", "p50")),
    Target(
        "replicate",
        "RocketMQ's p50 by ours",
        "≥",
        1,
        _ratio(_EACH, "RocketMQ, SYNC_MASTER and slave", "replicated", "p50"),
    ),
    Target("replicate", "the HAService idle, of a core", "≤", 0.005, _plain("nothing is sent", "HAService", "core")),
    Target("replicate", "the replica idle, of a core", "≤", 0.005, _plain("nothing is sent", "replica", "core")),
    Target(
        "replicate",
        "flushed, with a replica by without",
        "≥",
        0.9,
        _ratio("1 KB in batches of 1,000, until flushed", "with a replica", "without a replica", "rate"),
    ),
    Target(
        "replicate",
        "promotion of 1 GB, s",
        "≤",
        2,
        _plain("promotion of a copy, after kill -9", "promoted, and opened", "seconds"),
        headline="a replica of 1 GB is promoted after kill -9, s",
    ),
    Target("spark", "idle query, by Kafka's", "≤", 1, _ratio(_LIVE, "commitlog", "Kafka", "query")),
    *(
        Target(
            "replicate",
            f"forward to Kafka, {size}, by from memory",
            "≥",
            0.8,
            _ratio(f"forward, {size}", "commitlog forward", "confluent-kafka, from memory", "rate"),
        )
        for size in ("100 B", "1024 B")
    ),
)


def judge(parts: list[Part]) -> list[dict[str, Any]]:
    """Judges every target of the parts that were run."""
    found = []
    for part in parts:
        groups = {group.name: group for group in part.groups}

        def value(group: str, contestant: str, metric: str, groups: Any = groups) -> float:
            median: float | None = groups[group].median(contestant, metric)
            if median is None:
                raise KeyError(contestant)
            return median

        for target in TARGETS:
            if target.part == part.name:
                found.append(_judge(target, value))
        found += _adoptions(part)
    return found


def _judge(target: Target, value: Value) -> dict[str, Any]:
    try:
        number: float | None = target.find(value)
    except (KeyError, ZeroDivisionError):  # the contestant did not take part
        number = None
    return {
        "part": target.part,
        "what": target.what,
        "headline": target.headline,
        "wanted": f"{target.sign} {target.limit:,g}" if target.limit < 10_000 else f"{target.sign} {target.limit:,.0f}",
        "found": number,
        "met": None if number is None else target.met_by(number),
    }


def _adoptions(part: Part) -> list[dict[str, Any]]:
    """A start in the same boot takes less than 50 ms, whatever the size of the log."""
    for group in part.groups:
        if group.name.startswith("same boot"):
            limit = 50.0
            medians = [group.median(name, "milliseconds") for name in group.samples]
            slowest = max(median for median in medians if median is not None)
            what = "same boot, the slowest, ms"
            return [
                {
                    "part": part.name,
                    "what": what,
                    "headline": "a start in the same boot, whatever the size of the log, ms",
                    "wanted": "< 50",
                    "found": slowest,
                    "met": slowest < limit,
                }
            ]
    return []

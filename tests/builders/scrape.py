"""What Prometheus gets from stores, read by the parsers of its own client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families
from prometheus_client.registry import Collector

import commitlog
from commitlog.disk.backup_note import BackupNote, write_backup_note
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.server_files import ClientTraffic, ServerFile, ServerStatistics
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import ALL_STAGES, Lane
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.watching.exposition import StoreCollector
from tests.crash.scene import halted_process, pid_of
from tests.fake_clock import SetClock

SMALL = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"hung_after_ms": 600_000}}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """One scrape's families and samples. `store` in labels is left out."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = list(families)
        self.samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The value of the one sample that has this name and these labels. Raises ValueError."""
        (value,) = self.values(name, **labels)
        return value

    def values(self, name: str, **labels: str) -> list[float]:
        return [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def labels(self) -> dict[str, set[str]]:
        """Name of a sample → names of its labels."""
        found: dict[str, set[str]] = {}
        for sample in self.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        return found


def read_openmetrics(text: str) -> Scrape:
    """What a strict parser of OpenMetrics understands. Raises ValueError."""
    return Scrape(openmetrics_families(text))


def read_prometheus(text: str) -> Scrape:
    """What a parser of Prometheus' older format, 0.0.4, understands."""
    return Scrape(prometheus_families(text))


@contextmanager
def scraping(*stores: Path, clock: Clock = SYSTEM_CLOCK) -> Iterator[StoreCollector]:
    """A collector that raises what it has to report."""
    collector = StoreCollector(stores, _raise, clock)
    try:
        yield collector
    finally:
        collector.close()


def _raise(error: Exception) -> None:
    raise error


class Taken(Collector):
    """What one scrape has taken, to be written in several formats."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = list(families)

    def collect(self) -> list[Metric]:
        return self.families


def scrape(collector: StoreCollector) -> Scrape:
    """A scrape, which must be the same in both formats."""
    taken = Taken(collector.collect())
    encode, _ = choose_encoder(OPENMETRICS)
    found = read_openmetrics(encode(taken).decode())
    assert found.samples == read_prometheus(generate_latest(taken).decode()).samples
    return found


@contextmanager
def halted(store: Path) -> Iterator[None]:
    """Stops the supervisor and all stages with SIGSTOP, for a while."""
    stages = [name for name in ALL_STAGES if (store / "locks" / name).exists()]
    with ExitStack() as stack:
        for name in ("", *stages):
            stack.enter_context(halted_process(pid_of(store, name)))
        yield


def set_lane(store: Path, **words: int) -> None:
    """Stores words of lane 0, as the stages do: only while they are halted, or dead."""
    directory = StoreDirectory(store)
    pool = directory.load().pool
    assert pool is not None
    control = ControlRegion.attach(Path(pool.directory), writable=True)
    try:
        for name, value in words.items():
            control.row(0)[getattr(Lane, name)] = value
    finally:
        control.close()


def full_scrape(directory: Path) -> Scrape:
    """A scrape that has a sample of every metric: the stages hang, and a lane has a fault."""
    with commitlog.Store.open(directory / "store", SMALL) as store, store.producer() as producer:
        producer.send("apples", b"x")
        producer.flush(timeout=60)
        with commitlog.Reader(store.path, topic="apples", name="billing") as reader:
            reader.commit(next(iter(reader)))
        with halted(store.path):
            set_lane(store.path, FLUSHER_FAULT=28)
            clock = SetClock()
            clock.pass_seconds(3600)
            server = ServerFile(StoreDirectory(store.path))
            server.write(ServerStatistics("commitlog://127.0.0.1:4433/store", 1, {"billing": ClientTraffic()}))
            standby = ReplicaState("standby", "replica", "id", acknowledged={0: 1})
            ReplicaFiles(StoreDirectory(store.path)).save(standby)
            write_forwarder(StoreDirectory(store.path), ForwarderStatistics("kafka", "kafka://127.0.0.1:9092", 1))
            write_backup_note(StoreDirectory(store.path), BackupNote("/mnt/backup", 1))
            with scraping(store.path, clock=clock) as collector:
                found = scrape(collector)
            server.close()
            set_lane(store.path, FLUSHER_FAULT=0)
    return found

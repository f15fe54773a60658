"""The metrics of stores in the formats of Prometheus, made by its own client library.

Raises MissingPackage at the import where that library is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from commitlog.disk.store_directory import checked_path
from commitlog.errors import CommitLogError, MissingPackage, how_to_install
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.watching.metric import Distribution, Metric, Sample
from commitlog.watching.metrics import METRICS, UP
from commitlog.watching.snapshot import StoreSnapshot, StoreWatch

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client import metrics_core as families
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingPackage(f"metrics need prometheus-client: {how_to_install('tools', 'prometheus-client')}") from None


class WatchedStore:
    """One store, whether it can be read or not. `label` is its path."""

    def __init__(self, path: str | os.PathLike[str], clock: Clock) -> None:
        checked_path(path)
        self.label, self.error = os.path.abspath(path), ""
        self._clock = clock
        self._watch: StoreWatch | None = None

    def snapshot(self) -> StoreSnapshot:
        """The store now. Raises CommitLogError, OSError; the next call opens the store anew."""
        try:
            if self._watch is None:
                self._watch = StoreWatch(self.label, self._clock)
            return self._watch.snapshot()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes what is open of the store."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class StoreCollector(Collector):
    """Gives Prometheus' client library the metrics of some stores, at each scrape anew.

    A store that can't be read has the metric `commitlog_up` only, with the value 0. `report` is
    called with the error when that begins. Threads may scrape at the same time. Close it at last.
    """

    def __init__(
        self,
        stores: Iterable[str | os.PathLike[str]],
        report: Callable[[Exception], object],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._stores = {store.label: store for store in (WatchedStore(path, clock) for path in stores)}
        self._report = report
        self._lock = Lock()
        self.registry = CollectorRegistry()
        """Has the metrics of these stores only."""
        self.registry.register(self)

    def describe(self) -> list[families.Metric]:
        """All metrics, without samples."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterator[families.Metric]:
        """The metrics of all stores. A metric without samples is left out."""
        with self._lock:
            found = [(store.label, self._snapshot(store)) for store in self._stores.values()]
        for metric in METRICS:
            family = _family(metric)
            for label, snapshot in found:
                _add(family, metric, label, _samples(metric, snapshot))
            if family.samples:
                yield family

    def _snapshot(self, store: WatchedStore) -> StoreSnapshot | None:
        try:
            snapshot = store.snapshot()
        except (CommitLogError, OSError) as error:
            if str(error) != store.error:
                self._report(error)
            store.error = str(error)
            return None
        store.error = ""
        return snapshot

    def close(self) -> None:
        """Closes all stores."""
        with self._lock:
            for store in self._stores.values():
                store.close()


def _samples(metric: Metric, snapshot: StoreSnapshot | None) -> Iterable[Sample]:
    if snapshot is not None:
        return metric.samples(snapshot)
    return [((), 0)] if metric is UP else []


def _family(metric: Metric) -> families.Metric:
    return families.Metric(metric.family, metric.meaning, metric.kind, metric.unit)


def _add(family: families.Metric, metric: Metric, store: str, samples: Iterable[Sample]) -> None:
    for values, value in samples:
        labels = {"store": store, **dict(zip(metric.labels, values, strict=True))}
        if isinstance(value, Distribution):
            _add_histogram(family, labels, value)
        else:
            family.add_sample(metric.name, labels, value)


def _add_histogram(family: families.Metric, labels: dict[str, str], value: Distribution) -> None:
    for limit, count in zip(value.limits, value.counts, strict=True):
        le = "+Inf" if limit == float("inf") else str(limit)
        family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, count)
    family.add_sample(f"{family.name}_count", labels, value.counts[-1])
    family.add_sample(f"{family.name}_sum", labels, value.total)

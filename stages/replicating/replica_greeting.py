"""Decides whether a replica may follow: it has to have a part of this store's log, and no other.

A replica that has gone on by itself, or that follows the store of another epoch, is told by name
what is wrong, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from commitlog.config import ReplicationConfig
from commitlog.disk.epochs import epochs_from_json, is_of_history, shared_end
from commitlog.disk.replica_mark import mark_superseded, superseded
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import ReplicaRefused
from commitlog.record.crc import crc32
from commitlog.replicas.wire import Hello, LaneTail, Welcome
from commitlog.shm.layout import Lane, segment_start
from commitlog.shm.memory_order import observe
from commitlog.stages.replicating.lane_log import LaneLog

_AGAIN = "set the copy aside and begin anew with `commitlog replica … --again`"
_REJOIN = "bring it back with `commitlog rejoin`, or set it aside with `commitlog replica … --again`"


class Greeting:
    """What this store answers to a Hello."""

    def __init__(
        self,
        directory: StoreDirectory,
        facts: StoreFacts,
        lane_logs: Mapping[int, LaneLog],
        config: ReplicationConfig,
    ) -> None:
        self._directory, self._facts, self._lane_logs, self._config = directory, facts, lane_logs, config
        self._epochs = epochs_from_json(facts.epochs)

    def check(self, hello: Hello, address: str) -> None:
        """Raises ReplicaRefused, and StoreSuperseded where this store must not go on."""
        facts = self._facts
        if hello.store and hello.store != facts.id:
            raise ReplicaRefused(
                f"{hello.name} is a copy of store {hello.store}, and this is store {facts.id}: give each store a directory "
                f"of its own for its copy"
            )
        if hello.store and hello.epoch > facts.epoch:
            mark_superseded(self._directory, hello.epoch, f"{hello.name} at {address}")
            raise superseded(self._directory)
        if hello.follows:
            if (hello.wants or any(tail.end for tail in hello.lanes)) and not is_of_history(self._epochs, hello.epoch):
                raise ReplicaRefused(
                    f"{hello.name} is of epoch {hello.epoch}, in which this store never was (it is in {facts.epoch}): two "
                    f"replicas of it were promoted, or backups started: {_REJOIN}"
                )
            for tail in hello.lanes:
                self._check_lane(hello, tail)
            for lane, starts in hello.wants.items():
                self._check_wanted(hello, lane, starts)

    def _check_wanted(self, hello: Hello, lane: int, starts: tuple[int, ...]) -> None:
        """Raises ReplicaRefused where a lost segment was not the same one in both."""
        size, shared = self._facts.segment_bytes, shared_end(self._epochs, hello.epoch, lane)
        for start in starts:
            if start % size or start + size > shared:
                raise ReplicaRefused(
                    f"lane {lane} of {hello.name} lacks a segment at {start:,}, of epoch {hello.epoch}: epoch "
                    f"{self._facts.epoch} of this store began since, with {shared:,} bytes: {_REJOIN}"
                )

    def _check_lane(self, hello: Hello, tail: LaneTail) -> None:
        log, shared = self._lane_logs.get(tail.lane), shared_end(self._epochs, hello.epoch, tail.lane)
        if tail.end > shared:
            raise ReplicaRefused(
                f"lane {tail.lane} of {hello.name} is of epoch {hello.epoch} and ends at {tail.end:,}: epoch "
                f"{self._facts.epoch} of this store began since, with {shared:,} bytes: {_REJOIN}"
            )
        if tail.end == 0:
            return
        if log is None or tail.end > observe(log.row, Lane.FLUSHED):
            has = f"{observe(log.row, Lane.FLUSHED):,} bytes" if log else "none"
            raise ReplicaRefused(
                f"lane {tail.lane} of {hello.name} ends at {tail.end:,}, and this store has {has}: the copy has diverged: "
                f"{_AGAIN}"
            )
        if tail.end < log.first:
            raise ReplicaRefused(
                f"lane {tail.lane} of {hello.name} ends at {tail.end:,}, and retention keeps this store's from "
                f"{log.first:,} on: the copy is too far behind: {_AGAIN}"
            )
        if self._crc(log, tail) not in (tail.crc, None):
            raise ReplicaRefused(
                f"lane {tail.lane} of {hello.name} differs from this store's before offset {tail.end:,}: the copy has "
                f"diverged: {_AGAIN}"
            )

    def _crc(self, log: LaneLog, tail: LaneTail) -> int | None:
        """CRC-32 of the same bytes here; None where retention has deleted them."""
        start = segment_start(max(tail.end - 1, 0), log.size)
        try:
            with log.channel.opened(log.directory.segment_path(start)) as fd:
                return crc32(log.channel.pread(fd, tail.end - tail.begin, tail.begin - start))
        except FileNotFoundError:
            return None

    def welcome(self, acknowledged: Mapping[int, int] = MappingProxyType({})) -> Welcome:
        """What a replica needs to begin or to go on, and what it had `acknowledged` before."""
        facts, lanes = self._facts, dict(self._lane_logs)
        return Welcome(
            store=facts.id,
            epoch=facts.epoch,
            segment_bytes=facts.segment_bytes,
            generation=facts.generation,
            heartbeat_ms=self._config.heartbeat_ms,
            housekeeping_ms=self._config.housekeeping_ms,
            config={name: section for name, section in facts.config.items() if name != "replication"},
            epochs=self._epochs,
            lanes={lane: (log.first, log.limit) for lane, log in sorted(lanes.items())},
            acknowledged={lane: min(end, lanes[lane].limit) for lane, end in acknowledged.items() if lane in lanes},
        )

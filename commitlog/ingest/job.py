"""The main job: starts store, Spark and producers, shows progress, drains, stops, and judges.

One loop in one thread: it waits for messages of the processes, looks at the control region five
times a second, and draws.

`--seconds` count from the moment when the query is ready and the producers may send. So the
latencies are those of a running pipeline, and the live table is there from the first second.

A Ctrl-C ends the sending, never the pipeline: what was sent is drained. A second one ends the
draining too.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from commitlog.client.store import Store
from commitlog.disk.store_directory import StoreDirectory, refuse_backup
from commitlog.errors import IngestError
from commitlog.ingest.dashboard import Display, Snapshot
from commitlog.ingest.history import History
from commitlog.ingest.link import Child, Message
from commitlog.ingest.meter import Meter
from commitlog.ingest.resources import Resources
from commitlog.ingest.run_settings import STDIN, Places, Settings
from commitlog.ingest.store_trouble import StoreTrouble
from commitlog.reading.view import StoreView

if TYPE_CHECKING:
    from commitlog.serving.server_processes import Server

LOOK_SECONDS = 0.2
USAGE_SECONDS = 1.0
START_LIMIT_SECONDS = 300.0
FLUSH_LIMIT_SECONDS = 90.0
STALL_LIMIT_SECONDS = 120.0
"""Draining is given up when Spark has read nothing for this long."""
_HURRY_SECONDS = 5.0
_STOPPING = "stopping Spark and the store"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class ProducerState:
    """What the job knows of one producer process."""

    child: Child
    number: int
    lane: int | None = None
    sent: int = 0
    skipped: int = 0
    body_bytes: int = 0
    next_offset: int = 0
    waits: int = 0
    done: bool = False
    failed: bool = False

    @property
    def gone(self) -> bool:
        return self.done or self.failed or self.child.link.closed


class Job:
    """One run.

    `run` does all of it. Afterwards `history`, `producers` and `errors` hold what there is to
    report.
    """

    def __init__(self, settings: Settings, display: Display) -> None:
        self.settings = settings
        self.display = display
        self.history = History()
        self.producers: list[ProducerState] = []
        self.errors: list[str] = []
        self._failed: set[str] = set()
        self.phase = ""
        self.interrupts = 0
        self.sending_seconds = 0.0
        self.start_seconds = 0.0
        self.drain_seconds = 0.0
        self.segment_bytes = 0
        self._query: Child | None = None
        self._query_said: set[str] = set()
        self._meter: Meter | None = None
        self._server: Server | None = None
        self._trouble = StoreTrouble(settings.store)
        self._resources = Resources()
        self._began = self._looked_at = self._used_at = -math.inf
        self._running = False  # from the first message on
        self._sending = False

    # ---- the course of a run --------------------------------------------------------------------

    def run(self) -> None:
        """Runs the job. Raises CommitLogError if the job could not begin.

        Later errors are in `errors`.
        """
        refuse_backup(StoreDirectory(self.settings.store))
        before = {number: signal.signal(number, self._interrupt) for number in _SIGNALS}
        showwarning = warnings.showwarning
        warnings.showwarning = self._warn
        places = Places(self.settings)
        try:
            places.make()
            query = self._start_spark()
            try:
                self._show("opening the store")
                store = Store.open(self.settings.store, self.settings.config)
            except BaseException:
                query.end(0)
                self.settings.spark_log.unlink()
                places.undo()
                raise
            self.segment_bytes = store.segment_bytes
            try:
                self._with_store(store)
            except BaseException:
                if not self._running:
                    places.discard()
                raise
            if not self._running:
                self._give_up(places)
        finally:
            warnings.showwarning = showwarning
            for number, handler in before.items():
                signal.signal(number, handler)

    def _give_up(self, places: Places) -> None:
        """Raises the error of a run that ended before its first message.

        Only the log that explains the error stays.
        """
        if self._failed:
            places.discard_store()
            raise IngestError(self.errors[0])
        places.discard()
        raise IngestError(self.errors[0] if self.errors else "stopped before the first message; nothing was kept")

    def _with_store(self, store: Store) -> None:
        try:
            view = StoreView(self.settings.store)
        except BaseException:
            self._end_children()
            store.close()
            raise
        try:
            if view.control is None:
                raise IngestError(
                    f"{self.settings.store}: its shared memory can't be seen; is /dev/shm another one here?"
                )
            self._meter = Meter(view.control)
            self._resources.pool = view.control.region.path.parent
            with self._served() as place:
                self._pipeline(place)
        finally:
            self._end_children()
            self._meter = None
            view.close()
            self._show(_STOPPING)
            report = store.close()
            for kept in report.kept:
                self.history.event(f"the store kept {kept}")
            self._show("counting the rows in Parquet" if self._running else "stopped")

    @contextmanager
    def _served(self) -> Iterator[str]:
        """Where Spark finds the store: its directory, or its URL while a server runs."""
        if not self.settings.serve:
            yield str(self.settings.store)
            return
        from commitlog.serving.server_processes import Server
        from commitlog.serving.server_settings import ServerSettings

        settings = ServerSettings({"run": str(self.settings.store)}, "127.0.0.1", 0, advertise="127.0.0.1")
        with Server(settings) as self._server:
            yield str(self._server.address("run"))

    def _pipeline(self, place: str) -> None:
        self._start_producers()
        query = self._query
        assert query is not None
        query.link.send({"do": "read", "place": place})
        ready = self._wait_for(
            lambda: self._all_ready() or self._stopped_early() or bool(self._trouble.said()), START_LIMIT_SECONDS
        )
        if not self._all_ready() and not self._stopped_early() and self._trouble.said():
            self._failed.add("the store")
            self.errors.append(f"{self.settings.store} takes no messages: {self._trouble.said()}")
        elif not ready:
            self._failed.add("Spark")
            self.errors.append(f"not ready within {START_LIMIT_SECONDS:.0f} s; see {self.settings.spark_log}")
        self.start_seconds = time.monotonic() - self._began
        if ready and self._all_ready() and not self._stopped_early():
            self._send_messages()
        self._drain()

    def _send_messages(self) -> None:
        assert self._meter is not None
        for producer in self.producers:
            if producer.lane is not None:
                self._meter.follow(producer.lane)
        self.history.start_clock()
        self._running = self._sending = True
        self.phase = "running" if self.settings.live else "reading the input"
        for producer in self.producers:
            producer.child.link.send({"do": "go"})
        limit = self.settings.seconds
        self._wait_for(lambda: self._stopped_early() or all(producer.gone for producer in self.producers), limit)
        self._sending = False
        self.phase = "draining: Spark reads what is left"
        for producer in self.producers:
            producer.child.link.send({"do": "stop"})
        limit = FLUSH_LIMIT_SECONDS
        if not self._wait_for(lambda: self._or_stuck(all(p.gone for p in self.producers)), limit):
            self.errors.append(f"the producers did not finish within {limit:.0f} s")
        self.sending_seconds = self.history.elapsed

    def _drain(self) -> None:
        """Waits until the query has read all that was sent, is stuck, or the user gives up."""
        began = time.monotonic()
        query = self._query
        assert query is not None
        if self._running and not query.link.closed:
            query.link.send(
                {
                    "do": "drain",
                    "until": {str(p.lane): p.next_offset for p in self.producers if p.lane is not None and p.sent},
                    "settle": not all(p.done for p in self.producers),
                }
            )
            self.history.last_progress = began
            while not self._wait_for(lambda: self._or_stuck("drained" in self._query_said or query.link.closed), 1.0):
                if time.monotonic() - self.history.last_progress > STALL_LIMIT_SECONDS:
                    self.errors.append(
                        f"Spark read nothing for {STALL_LIMIT_SECONDS:.0f} s; given up with the rest unread"
                    )
                    break
            if "drained" not in self._query_said and self.interrupts > 1:
                self.errors.append("draining was given up at the second Ctrl-C")
        self._read_meters(force=True)
        self.drain_seconds = time.monotonic() - began
        self.phase = _STOPPING
        query.link.send({"do": "stop"})
        if self._running:  # otherwise it has nothing to finish, and its start may take long
            self._wait_for(lambda: self._or_given_up(query.link.closed), 60.0)

    def _end_children(self) -> None:
        for producer in self.producers:
            producer.child.end(1.0 if producer.gone else _HURRY_SECONDS)
        if self._query is not None:
            self._query.end(30.0 if self._running and self.interrupts < 2 else _HURRY_SECONDS)

    # ---- processes ------------------------------------------------------------------------------

    def _common(self) -> Message:
        """The settings that all processes get."""
        return {"run": self.settings.run, "topic": self.settings.topic, "store": str(self.settings.store)}

    def _start_spark(self) -> Child:
        """Starts the Spark process. Java takes long to start, so the store is opened meanwhile."""
        settings = self.settings
        self._began = time.monotonic()
        existed = (settings.store / "store.json").exists()
        said = self._common() | {
            "out": str(settings.out),
            "live": settings.live,
            "real_time": settings.real_time,
            "short": settings.is_short,
            "starting_offsets": "latest" if existed else "earliest",
        }
        with open(settings.spark_log, "wb") as log:
            self._query = Child("Spark", "commitlog.ingest.query", said, output=log)
        return self._query

    def _start_producers(self) -> None:
        settings = self.settings
        self.phase = "starting Spark"
        with open(settings.out / "producers.log", "wb") as log:
            for number in range(settings.producers):
                own = {"producer": number, "producers": settings.producers, "rate": settings.rate}
                inputs = list(settings.inputs[number :: settings.producers])
                module = "sampling" if settings.live else "feeding"
                child = Child(
                    f"producer {number}",
                    f"commitlog.ingest.{module}",
                    self._common()
                    | own
                    | {"inputs": inputs, "follow": settings.follow, "skip_long": settings.skip_long},
                    output=log,
                    stdin=0 if STDIN in inputs else None,
                )
                self.producers.append(ProducerState(child, number))

    def _all_ready(self) -> bool:
        return "ready" in self._query_said and all(producer.lane is not None for producer in self.producers)

    def _stopped_early(self) -> bool:
        return bool(self.interrupts or self.errors)

    def _or_given_up(self, condition: bool) -> bool:
        return condition or self.interrupts > 1

    def _or_stuck(self, condition: bool) -> bool:
        """Whether the condition holds, or nobody should wait for it any longer.

        A store that can't write what it has accepted keeps producers and Spark from their end.
        """
        if self._or_given_up(condition):
            return True
        reading = self.history.reading
        if reading is None or reading.bytes["sent"] <= reading.bytes["flushed"]:
            return False
        trouble = self._trouble.said((reading.bytes, self.history.spark_rows))
        text = f"{self.settings.store} does not write what it has accepted: {trouble}"
        if trouble and text not in self.errors:
            self.errors.append(text)
        return bool(trouble)

    def _wait_for(self, condition: Callable[[], bool], limit: float | None) -> bool:
        """Runs the loop until the condition holds; False when the limit came first."""
        deadline = None if limit is None else time.monotonic() + limit
        while not condition():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._turn()
        return True

    def _turn(self) -> None:
        """One turn of the loop: waits a little for messages of the processes, looks, draws."""
        links = {child.link.fileno(): child for child in self._children() if not child.link.closed}
        for number in select.select(list(links), [], [], LOOK_SECONDS / 2)[0]:
            child = links[number]
            for message in child.link.receive(0):
                self._receive(child, message)
            if child.link.closed:
                self._note_end(child)
        self._read_meters()
        self._show()

    def _children(self) -> list[Child]:
        query = [self._query] if self._query else []
        return query + [producer.child for producer in self.producers]

    def _receive(self, child: Child, message: Message) -> None:
        if child is not self._query:
            self._receive_from_producer(next(p for p in self.producers if p.child is child), message)
        elif message["event"] == "batch":
            self.history.add_batch(message)
        elif message["event"] == "failed":
            self._failed.add(child.name)
            self.errors.append(f"{message['name']}: {message['text']}")
        elif message["event"] == "phase":
            self.phase = message["text"] if not self._running else self.phase
        else:
            self._query_said.add(message["event"])
            if message["event"] == "cold":  # it has looked before: in an old store it would miss messages
                self.producers[0].child.link.send({"do": "warm up"})

    def _receive_from_producer(self, producer: ProducerState, message: Message) -> None:
        event = message["event"]
        if event == "ready":
            producer.lane = message["lane"]
        elif event == "waiting":
            self.history.event(f"producer {producer.number} waits: {message['text']}")
        elif event == "said":
            self.history.event(message["text"])
        elif event == "failed":
            producer.failed = True
            self.errors.append(f"producer {producer.number}: {message['name']}: {message['text']}")
        else:
            producer.sent, producer.body_bytes = message["sent"], message["body_bytes"]
            producer.next_offset, producer.waits = message["next_offset"], message["waits"]
            producer.skipped = message["skipped"]
            producer.done = event == "done"
            self.history.flushed_latencies.add(np.asarray(message["flushed_us"], np.float64) / 1000)

    def _note_end(self, child: Child) -> None:
        """Handles the end of a link. After a process's last message it is expected.

        Otherwise the process has died.
        """
        child.wait(_HURRY_SECONDS)
        code = child.process.returncode
        if child is self._query:
            if code != 0 and not self.errors and self.phase != _STOPPING:
                self._failed.add(child.name)
                self.errors.append(f"the Spark process died (exit code {code}); see {self.settings.spark_log}")
            return
        producer = next(p for p in self.producers if p.child is child)
        if producer.done or producer.failed:
            return
        producer.failed = True
        self._failed.add(child.name)
        text = f"producer {producer.number} died (exit code {code}) after {producer.sent} messages that it had noted"
        self.history.event(text)
        if not self.settings.live or code != -signal.SIGKILL or not self._running:
            self.errors.append(f"{text}; see {self.settings.out / 'producers.log'}")

    # ---- looking and showing --------------------------------------------------------------------

    def _read_meters(self, force: bool = False) -> None:
        now = time.monotonic()
        if self._meter is None or not self._running or (not force and now - self._looked_at < LOOK_SECONDS):
            return
        self._looked_at = now
        reading = self._meter.read(self.history.elapsed)
        self.history.add_reading(reading)
        if now - self._used_at >= USAGE_SECONDS:
            self._used_at = now
            usage = self._resources.measure(
                {
                    "stages": [pid for pid in reading.pids.values() if pid],
                    "producers": [p.child.pid for p in self.producers if not p.gone],
                    "spark": [self._query.pid] if self._query else [],
                    "server": self._server.pids if self._server else (),
                    "job": [os.getpid()],
                }
            )
            self.history.add_usage(usage, self._resources.pool_bytes)

    def _show(self, phase: str | None = None) -> None:
        self.phase = phase or self.phase
        self.display.show(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Makes the snapshot to show now."""
        history = self.history
        syncs, sync_p50, sync_p99 = history.sync_facts()
        reading = history.reading
        return Snapshot(
            run=self.settings.run,
            phase=self.phase,
            elapsed=history.elapsed,
            seconds=self.settings.seconds if self._sending else None,
            steps=history.step_lines(),
            buffers_free=reading.buffers_free if reading else 0,
            buffers=reading.buffers if reading else 0,
            syncs_per_second=syncs,
            sync_p50_ms=sync_p50,
            sync_p99_ms=sync_p99,
            flushed_p50_ms=history.flushed_latencies.percentile(0.5),
            flushed_p99_ms=history.flushed_latencies.percentile(0.99),
            batch=history.last_batch,
            cpu_cores=history.cores,
            memory_bytes=history.memory,
            grids=history.grids,
            events=tuple(history.events + [f"error: {error}" for error in self.errors]),
        )

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1

    def _warn(self, message: Any, *_: Any, **__: Any) -> None:
        """Shows the store's warnings, which would otherwise be written over the dashboard."""
        self.history.event(str(message))

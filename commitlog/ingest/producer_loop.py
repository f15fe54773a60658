"""The loop of a producer process: each message has its run, producer and sequence number.

It sends at a given pace, or as fast as it goes. A message counts as sent when `send` has returned.
The job hears the count five times a second, and the last number at the end. So a process that dies
is judged by what it had noted.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any, NamedTuple, Protocol

from commitlog.errors import (
    CommitLogError,
    DiskError,
    IngestError,
    MessageTooLarge,
    NoBufferAvailable,
    RecordError,
    StoreStopped,
    WaitTimeout,
)
from commitlog.ingest.link import Link, Message
from commitlog.system.clock import LONG_AGO_NS

WARM_UP = "warm-up"
"""The end of the names of topic and run, for messages that are sent before the clock starts."""
WARM_UP_MESSAGES = 500
"""As many as a micro-batch of a run with the default rate has."""
NOTE_SECONDS = 0.2
TURN_SECONDS = 0.002
"""The longest sleep of a paced producer; also the resolution of its latencies."""
IDLE_SECONDS = 0.02
TURN_MESSAGES = 256
PROBE_EVERY = 100
_PROBES_MAX = 32
_PROBE_SECONDS = 0.004
_FLUSH_SECONDS = 60.0
_BEHIND_SECONDS_MAX = 0.5


class Item(NamedTuple):
    """One message of a source, before it gets its run, producer and sequence number."""

    key: str | None
    value: bytes
    headers: dict[str, str]


class Source(Protocol):
    """Where messages come from."""

    done: bool

    @property
    def skipped(self) -> int:
        """How many messages were passed over, because they were too large."""

    def tick(self) -> None:
        """Called every few milliseconds, whether or not messages are wanted."""

    def take(self, limit: int) -> list[Item]:
        """Up to `limit` messages; none when there are none at the moment."""

    def sent(self, count: int) -> None:
        """Says how many of the messages that `take` gave last have been sent."""

    def close(self) -> None:
        """Gives back what the source holds open."""


class Sender:
    """Sends the messages of a source, and counts them."""

    def __init__(self, link: Link, settings: Message) -> None:
        from commitlog.client.producer import Producer

        self.link = link
        self.topic: str = settings["topic"]
        self.rate: float = settings["rate"]
        self.identity = {"run": settings["run"], "producer": str(settings["producer"])}
        self.producer = Producer(settings["store"])
        self._skips: bool = settings["skip_long"]
        self._skipped = 0
        self.sequence = 0
        self.body_bytes = 0
        self.waits = 0
        self.next_offset = 0
        self._probes: deque[tuple[int, Any]] = deque()
        self._flushed_us: list[int] = []
        self._probed_ns = LONG_AGO_NS
        self._next_probe = 0
        self._noted_at = -math.inf
        self._stop = False

    def run(self, source: Source) -> None:
        """Sends until the source is done or the job says stop; then flushes everything."""
        began, before = time.monotonic(), 0
        while not self._stop and not source.done:
            source.tick()
            now = time.monotonic()
            due = TURN_MESSAGES
            if self.rate:
                late = (now - began) * self.rate - (self.sequence - before)
                if late > self.rate * _BEHIND_SECONDS_MAX + 1:  # no burst after a stall
                    began, before, late = now, self.sequence, 1
                due = min(int(late), TURN_MESSAGES)
            items = source.take(due) if due > 0 else []
            if items:
                source.sent(self._send(items))
            self._check_probes()
            self._report(now, source)
            if not items or (self.rate and due < TURN_MESSAGES):
                self._pause(bool(items))

    def warm_up(self, source: Source) -> None:
        """Sends messages of the source to a topic of their own.

        The query reads them before the clock starts. They stay in the source.
        """
        items = source.take(WARM_UP_MESSAGES) or [Item(None, b"{}", {"source": WARM_UP})]
        for number, (key, value, headers) in enumerate(islice(cycle(items), WARM_UP_MESSAGES)):
            own = {**headers, **self.identity, "run": f"{self.identity['run']}.{WARM_UP}", "sequence": str(number)}
            self.producer.send(f"{self.topic}.{WARM_UP}", value, key=key, headers=own)

    def finish(self, source: Source) -> None:
        """Waits until everything is flushed, and gives the lane back."""
        source.close()
        deadline = time.monotonic() + _FLUSH_SECONDS
        while self._probes and time.monotonic() < deadline:
            self._check_probes()
            self._report(time.monotonic(), source)
            time.sleep(TURN_SECONDS / 2)
        try:
            self.producer.flush(timeout=max(deadline - time.monotonic(), 0.1))
        finally:
            self._report(time.monotonic(), source, last=True)
            with contextlib.suppress(StoreStopped):
                self.producer.close()

    def _pause(self, busy: bool) -> None:
        """Sleeps a turn, or longer where a source has nothing to give."""
        idle = not busy and self.rate == 0 and not self._probes
        time.sleep(IDLE_SECONDS if idle else TURN_SECONDS)

    def _send(self, items: list[Item]) -> int:
        """Sends the items in order.

        Returns how many were accepted. These are fewer if the job says stop.
        """
        send, topic, identity = self.producer.send, self.topic, self.identity
        for count, (key, value, headers) in enumerate(items):
            own = {**headers, **identity, "sequence": str(self.sequence)}
            try:
                receipt = send(topic, value, key=key, headers=own)
            except (NoBufferAvailable, DiskError, WaitTimeout) as error:
                if error.receipt is None:
                    self._wait_for_room(error)
                    return count
                receipt = error.receipt  # the message is in the log; only its flush came too late
            except RecordError as error:
                if self._skips and isinstance(error, MessageTooLarge):
                    self._skipped += 1
                    continue
                where = headers.get("source", "this machine")
                raise IngestError(f"message {self.sequence + 1} of {where}: {error}") from error
            self.sequence += 1
            self.body_bytes += len(value)
            self.next_offset = receipt.offset + 1
            if self.sequence >= self._next_probe:
                self._add_probe(receipt)
        return len(items)

    def _wait_for_room(self, error: CommitLogError) -> None:
        """Waits before the same message is sent again: it was not accepted, and may be soon."""
        self.waits += 1
        self.link.send({"event": "waiting", "text": f"{type(error).__name__}: {error}"})
        if not self._stop_was_asked():
            time.sleep(0.1)

    def _add_probe(self, receipt: Any) -> None:
        """Remembers a receipt, to see when it is flushed; only some, so that sending stays fast."""
        now = time.monotonic_ns()
        self._next_probe = self.sequence + (PROBE_EVERY if self.rate == 0 or self.rate > 500 else 1)
        if len(self._probes) < _PROBES_MAX and now - self._probed_ns > _PROBE_SECONDS * 1e9:
            self._probes.append((now, receipt))
            self._probed_ns = now

    def _check_probes(self) -> None:
        probes = self._probes
        while probes and probes[0][1].done("flushed"):
            self._flushed_us.append((time.monotonic_ns() - probes.popleft()[0]) // 1000)

    def _stop_was_asked(self) -> bool:
        self._stop = self._stop or any(m["do"] == "stop" for m in self.link.receive(0)) or self.link.closed
        return self._stop

    def _report(self, now: float, source: Source, *, last: bool = False) -> None:
        """Tells the job the numbers now and then, and reads its messages."""
        if not last:
            if now - self._noted_at < NOTE_SECONDS:
                return
            self._stop_was_asked()
        self._noted_at = now
        self.link.send(
            {
                "event": "done" if last else "note",
                "sent": self.sequence,
                "skipped": self._skipped + source.skipped,
                "body_bytes": self.body_bytes,
                "flushed_us": self._flushed_us,
                "waits": self.waits,
                "next_offset": self.next_offset,
            }
        )
        self._flushed_us = []


def _wait_for_start(link: Link, sender: Sender, source: Source) -> bool:
    """Waits for the job's start; False when the job ends the run before it."""
    with contextlib.suppress(EOFError):
        while (message := link.receive_one())["do"] == "warm up":
            sender.warm_up(source)
        return bool(message["do"] == "go")
    return False


def run_producer(link: Link, make_sender: Callable[[], Sender], make_source: Callable[[], Source]) -> None:
    """The life of a producer process: lease a lane, say so, wait for the start, send, drain.

    It ignores the signals of a terminal: the job decides when the run is over. An error goes to the
    job with its name.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        sender = make_sender()
        source = make_source()
        link.send({"event": "ready", "lane": sender.producer.lane})
        if _wait_for_start(link, sender, source):
            try:
                sender.run(source)
            finally:
                sender.finish(source)
        else:
            sender.finish(source)
    except CommitLogError as error:
        link.send({"event": "failed", "name": type(error).__name__, "text": str(error)})

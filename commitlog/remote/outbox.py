"""The messages of a RemoteProducer: collected into batches, sent, and kept until they are flushed.

Messages have numbers from 1 on, in the order in which they came. Batches go in that order too, so
one number says how far all are accepted, and another how far they are flushed.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from commitlog.appending.callbacks import Tell, Teller, Waiter, Waiters, check_callback, told
from commitlog.appending.thread_turns import INSIDE
from commitlog.errors import (
    CommitLogError,
    ConcurrentUse,
    ForkedProducer,
    IllegalArgument,
    NoBufferAvailable,
    ProducerClosed,
    WaitTimeout,
)
from commitlog.status import PutMessageStatus
from commitlog.system.clock import SYSTEM_CLOCK, limit_ns
from commitlog.system.forks import settle

RemoteLevel = Literal["accepted", "flushed"]

LINGER_NS = 3_000_000
"""How long a message waits for others to come along, unless somebody waits for it."""
BATCH_MESSAGES, BATCH_BYTES = 10_000, 1 << 20
OUTBOX_BYTES = 32 << 20
"""How many bytes may be on their way. A message that is larger is sent when nothing else is."""
ROOM_SECONDS = 60.0
"""How long `add` waits for room."""
_MESSAGE_BYTES = 200
"""How much memory a message takes besides its own bytes, about."""

_PAIRS = pa.list_(pa.struct({"key": pa.string(), "value": pa.string()}))
SCHEMA = pa.schema(
    {"topic": pa.string(), "value": pa.binary(), "key": pa.binary(), "tags": pa.string(), "headers": _PAIRS}
)
"""The columns of a stream."""


class Outgoing(NamedTuple):
    """A message on its way. Nothing of it changes."""

    topic: str
    value: bytes
    key: str | bytes | None
    tags: str | None
    headers: Mapping[str, str] | None


class Batch:
    """Messages that are sent together. `before` is the number of the last message before them."""

    __slots__ = ("before", "messages", "since_ns", "size")

    def __init__(self, before: int) -> None:
        self.before, self.messages = before, list[Outgoing]()
        self.size = self.since_ns = 0

    @property
    def end(self) -> int:
        """The number of its last message."""
        return self.before + len(self.messages)

    def to_arrow(self) -> pa.RecordBatch:
        """The columns of the messages."""
        topics, values, keys, tags, headers = zip(*self.messages, strict=True)
        pairs = [found and [{"key": name, "value": value} for name, value in found.items()] for found in headers]
        columns = zip((topics, values, keys, tags, pairs), SCHEMA.types, strict=True)
        return pa.RecordBatch.from_arrays([pa.array(items, kind) for items, kind in columns], schema=SCHEMA)


class Outbox:
    """Any thread may add messages and wait for them; one thread sends them, another one listens.

    A signal handler or a finalizer inside a call of its own thread is refused: the call would be
    interrupted in the middle of a change, and could not go on before what the handler waits for.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # `is_inside` asks whose it is
        self.own_threads: set[int] = set()  # the identities of the threads that send and listen
        self._work, self._moved = threading.Condition(self._lock), threading.Condition(self._lock)
        self._unsent = deque([Batch(0)])
        """The last one is open, so an interrupt finds it either open or sealed."""
        self._sent: deque[Batch] = deque()
        self._size = self._wanted = 0
        self.accepted = self.flushed = 0
        self._fault: CommitLogError | None = None
        self._error: CommitLogError | None = None
        self._closing = self._forked = False
        self._waiters = Waiters(get_args(RemoteLevel))
        self._teller = Teller(self._waiters, self._lock, SYSTEM_CLOCK, "commitlog-calls-back")

    # ---- those who send and wait ----------------------------------------------------------------

    def add(self, messages: Iterable[tuple[Outgoing, int]]) -> int:
        """Collects messages, each with its bytes, and returns the number of the last message.

        Raises NoBufferAvailable if there was no room in time, what has ended the sending,
        ProducerClosed, ForkedProducer, ConcurrentUse. The messages before are on their way then.
        """
        self.refuse_inside(waits=False)
        with self._lock:
            self.check()
            number = self.last
            for message, own_size in messages:
                size = own_size + _MESSAGE_BYTES
                if self._size and self._size + size > OUTBOX_BYTES:
                    self._await_room(size)
                batch = self._unsent[-1]
                if batch.messages and (len(batch.messages) >= BATCH_MESSAGES or batch.size + size > BATCH_BYTES):
                    self._seal()
                    batch = self._unsent[-1]
                batch.messages.append(message)
                batch.size += size
                self._size += size
                if not batch.since_ns:
                    batch.since_ns = SYSTEM_CLOCK.monotonic_ns()
                    self._work.notify()
                number = batch.end
            return number

    def is_inside(self) -> bool:
        """Whether a call of this outbox is further up on this thread's stack."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001

    def refuse_inside(self, *, waits: bool = True) -> None:
        """Raises ConcurrentUse inside a call of this outbox.

        It also does so in a thread that sends or listens, if the caller would wait for that thread.
        """
        if self.is_inside() or (waits and threading.get_ident() in self.own_threads):
            raise ConcurrentUse(INSIDE)

    def check(self) -> None:
        """Raises if no message can be added any more."""
        settle()
        if self._forked:
            raise ForkedProducer("this producer belongs to the parent process; make one in the child")
        if self._closing:
            raise ProducerClosed("this producer was closed")
        if self._error is not None:
            raise _copy(self._error)

    def _await_room(self, size: int) -> None:
        if threading.get_ident() in self.own_threads:
            raise NoBufferAvailable(
                f"{self._size:,} bytes are on their way, and this thread is the one that sends them"
            )
        deadline = SYSTEM_CLOCK.monotonic_ns() + int(ROOM_SECONDS * 1e9)
        self._want(self.last)
        while self._size and self._size + size > OUTBOX_BYTES:
            left = deadline - SYSTEM_CLOCK.monotonic_ns()
            if left <= 0:
                raise NoBufferAvailable(
                    f"{self._size:,} bytes are on their way to the server, and did not become flushed within "
                    f"{ROOM_SECONDS:g} s: {self._fault or 'the server does not keep up'}"
                )
            self._moved.wait(left / 1e9)
            self.check()

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self._unsent[-1].end

    def reached(self, level: RemoteLevel, number: int) -> bool:
        """Whether a message has reached a level. Raises IllegalArgument for one that is none."""
        if level not in get_args(RemoteLevel):
            raise IllegalArgument(f"a level of a remote message is 'accepted' or 'flushed', not {level!r:.80}")
        return (self.accepted if level == "accepted" else self.flushed) >= number

    def wait(self, level: RemoteLevel, number: int, timeout: float | None) -> PutMessageStatus:
        """See RemoteReceipt.wait."""
        settle()
        limit, began = limit_ns(timeout), SYSTEM_CLOCK.monotonic_ns()
        if not self.reached(level, number):
            self.refuse_inside()
        with self._lock:
            if not self.reached(level, number):
                if self._forked:
                    raise ForkedProducer("the producer of this receipt belongs to the parent process; wait there")
                self._want(number)
            while not self.reached(level, number):
                error = self._error or (self._fault if level == "flushed" else None)
                if error is not None:
                    raise _copy(error)
                left = limit - (SYSTEM_CLOCK.monotonic_ns() - began)
                if left <= 0:
                    raise WaitTimeout(
                        f"{number - (self.flushed if level == 'flushed' else self.accepted):,} messages are not {level} "
                        f"after {limit / 1e9:g} s; they are still on their way: wait again, to send them again would "
                        f"double them"
                    )
                self._moved.wait(min(left / 1e9, threading.TIMEOUT_MAX))
        return PutMessageStatus.PUT_OK

    def call_back(
        self, level: RemoteLevel, number: int, callback: Callable[[PutMessageStatus], object], timeout: float | None
    ) -> None:
        """See RemoteReceipt.add_callback."""
        check_callback(callback)

        def tell(outcome: PutMessageStatus | CommitLogError) -> None:
            callback(outcome.status if isinstance(outcome, CommitLogError) else outcome)

        self._enlist(level, number, limit_ns(timeout), tell, of_faults=False)

    async def wait_async(self, level: RemoteLevel, number: int) -> PutMessageStatus:
        """See RemoteReceipt.wait_async."""
        if self.reached(level, number):
            return PutMessageStatus.PUT_OK
        return await told(
            lambda tell: self._enlist(level, number, math.inf, tell, of_faults=level == "flushed"), self._withdraw
        )

    def _enlist(self, level: RemoteLevel, number: int, limit: float, tell: Tell, *, of_faults: bool) -> Waiter:
        """Has a thread of its own call `tell`, once, when a message has reached a level.

        It also calls `tell` when the limit (ns) is over, and when the sending has ended.
        """
        settle()
        self.reached(level, number)  # raises where the level does not exist
        with self._lock:
            if self._forked:
                raise ForkedProducer("the producer of this receipt belongs to the parent process; wait there")
            waiter = self._waiters.add(level, number, SYSTEM_CLOCK.monotonic_ns(), limit, tell, of_faults=of_faults)
            self._want(number)
            self._teller.serve(waiter, self._take_due, self._await_any)
            self._moved.notify_all()
        return waiter

    def _withdraw(self, waiter: Waiter) -> None:
        self._waiters.withdraw(waiter)
        with self._lock:
            self._moved.notify_all()

    def _await_any(self) -> None:
        """Waits until a waiter may be due, unless one has become so since the last look."""
        with self._lock:
            if not self._take_due() and self._waiters.outstanding:
                left_ns = self._waiters.next_deadline - SYSTEM_CLOCK.monotonic_ns()
                self._moved.wait(max(min(left_ns / 1e9, threading.TIMEOUT_MAX), 0))

    def _take_due(self) -> bool:
        row = {"accepted": self.accepted, "flushed": self.flushed}
        if self._waiters.take_due(row, SYSTEM_CLOCK.monotonic_ns()):
            return True
        if self._error is not None:
            return self._waiters.take_all(self._error)
        return self._fault is not None and self._waiters.take_patient(self._fault, math.inf)

    def _want(self, number: int) -> None:
        """Has everything up to a message sent without delay."""
        if number > self._wanted:
            self._wanted = number
            self._work.notify()

    def close(self) -> None:
        """Takes no more messages; the collected ones are sent without delay."""
        with self._lock:
            self._closing = True
            self._work.notify()

    # ---- the thread that sends ------------------------------------------------------------------

    def next_batch(self, is_broken: threading.Event) -> Batch | None:
        """The next batch to send, when it is time.

        None: the stream is broken, and there are messages to send again; or all were sent, and no
        more come.
        """
        with self._lock:
            while True:
                if is_broken.is_set() and self.flushed < self.last:
                    return None
                if len(self._unsent) > 1:
                    self._sent.append(self._unsent.popleft())
                    return self._sent[-1]
                wait: float | None = None
                batch = self._unsent[0]
                if batch.messages:
                    age = SYSTEM_CLOCK.monotonic_ns() - batch.since_ns
                    if self._closing or self._wanted > batch.before or age >= LINGER_NS:
                        self._seal()
                        continue
                    wait = (LINGER_NS - age) / 1e9
                elif self._closing:
                    return None
                self._work.wait(wait)

    def _seal(self) -> None:
        self._unsent.append(Batch(self.last))
        self._work.notify()

    def wake(self) -> None:
        """Has `next_batch` look again."""
        with self._lock:
            self._work.notify()

    def send_again(self) -> int:
        """Takes back what was sent and is not flushed; returns up to which message all are."""
        with self._lock:
            self._unsent.extendleft(reversed(self._sent))
            self._sent.clear()
            self._fault = None
            return self._unsent[0].before

    def told(self, accepted: int, flushed: int, fault: CommitLogError | None) -> None:
        """Notes how far the messages are accepted and flushed, as the server says."""
        with self._lock:
            self.accepted, self.flushed = max(accepted, self.accepted), max(flushed, self.flushed)
            self._fault = fault
            while self._sent and self._sent[0].end <= self.flushed:
                self._size -= self._sent.popleft().size
            self._moved.notify_all()

    def fail(self, error: CommitLogError) -> None:
        """Ends the sending: all who wait, and all who come, hear of the error."""
        with self._lock:
            self._error = error
            self._moved.notify_all()

    @property
    def error(self) -> CommitLogError | None:
        """What has ended the sending."""
        return None if self._error is None else _copy(self._error)

    def leave_to_parent(self) -> None:
        """Called in a forked child, where no other thread is left."""
        self._forked = True
        self._lock = threading.RLock()  # a thread of the parent may hold the other one


def _copy(error: CommitLogError) -> CommitLogError:
    """The same error anew: each raise adds to a traceback."""
    made = type(error)(*error.args)
    made.__notes__ = list(getattr(error, "__notes__", ()))
    return made

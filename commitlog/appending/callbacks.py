"""Callbacks and awaitables that wait to be told that a message has reached a level."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Protocol

from commitlog.errors import CommitLogError, IllegalArgument
from commitlog.status import PutMessageStatus
from commitlog.system.clock import Clock
from commitlog.system.threads import Background

Word = Hashable
Outcome = PutMessageStatus | CommitLogError
Tell = Callable[[Outcome], object]
Due = tuple[Tell, Outcome]

_TIDY_ABOVE = 1_000
"""How many entries a queue may have beyond twice the number of waiters.

If it has more, the entries of waiters that were told are dropped.
"""

_NO_MEMORY_SECONDS = 0.01

log = logging.getLogger(__name__)


class Row(Protocol):
    """How far each level has come."""

    def __getitem__(self, word: Any, /) -> int: ...


@dataclass(slots=True)
class Waiter:
    since: int  # monotonic ns
    tell: Tell | None  # None: it was told, or was withdrawn


_Heap = list[tuple[float, int, Waiter]]
"""Entries: the sort key, a number that orders equal keys, the waiter."""


class Waiters:
    """Outstanding callbacks, sorted by the place they wait for and by when they give up.

    So no waiter waits for another one. `words` name the levels, and a row has for each word the
    place up to which everything has reached that level. Only one thread may use the object at a
    time, but any thread may call `is_any_reached` and `withdraw`. `due` has the waiters whose wait
    is over, with the outcome, until `tell_due` has told them. If memory is short, a waiter is
    either in the queues or in `due`, and the call may be repeated.
    """

    def __init__(self, words: Iterable[Word]) -> None:
        self._by_where: dict[Word, _Heap] = {word: [] for word in words}
        self._by_deadline: _Heap = []
        self._of_faults: deque[Waiter] = deque()  # waiters that are told of faults, in the order they came
        self._withdrawn: deque[Waiter] = deque()
        self._numbers = count()
        self.outstanding = 0
        self.due: deque[Due] = deque()

    def add(self, word: Word, where: int, now: int, limit: float, tell: Tell, *, of_faults: bool) -> Waiter:
        """Adds a waiter for the moment when a word reaches `where`.

        `now` is in monotonic ns; `limit` is in ns from then on.
        """
        number, waiter, outstanding = next(self._numbers), Waiter(now, tell), self.outstanding + 1
        try:
            heappush(self._by_where[word], (where, number, waiter))
            if limit < math.inf:
                heappush(self._by_deadline, (now + limit, number, waiter))
            if of_faults:
                self._of_faults.append(waiter)
        except BaseException:  # no memory, or an interrupt
            waiter.tell = None  # the caller hears of it
            raise
        self.outstanding = outstanding
        return waiter

    def withdraw(self, waiter: Waiter) -> None:
        """Makes sure that a waiter is not told any more.

        It takes no lock, because the garbage collector may call it anywhere.
        """
        if waiter.tell is not None:
            self._withdrawn.append(waiter)

    def take_due(self, row: Row, now: int) -> bool:
        """Makes the waiters due whose wait is over. All `take_…` say whether any is due."""
        while self._withdrawn:
            self._turn_out(self._withdrawn[0])
            self._withdrawn.popleft()
        for word, heap in self._by_where.items():
            self._take(heap, row[word], PutMessageStatus.PUT_OK)
        self._take(self._by_deadline, now, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        if len(self._of_faults) > self._most:
            self._of_faults = deque(waiter for waiter in self._of_faults if waiter.tell is not None)
        return bool(self.due)

    def take_all(self, error: CommitLogError) -> bool:
        """Makes all waiters due, with the same error."""
        for heap in self._by_where.values():
            self._take(heap, math.inf, error)
        return bool(self.due)

    def take_patient(self, error: CommitLogError, since: float) -> bool:
        """Makes the waiters due that are told of faults and came before a time (monotonic ns)."""
        waiters = self._of_faults
        while waiters and (waiters[0].tell is None or waiters[0].since < since):
            self._turn_out(waiters[0], error)
            waiters.popleft()
        return bool(self.due)

    def take_behind(self, where: float, error: CommitLogError) -> bool:
        """Makes the waiters for a place behind `where` due, with the same error."""
        for heap in self._by_where.values():
            for place, _, waiter in heap:
                if place > where:
                    self._turn_out(waiter, error)
        return bool(self.due)

    def take_reached(self, word: Word, where: int, error: CommitLogError) -> bool:
        """Makes the waiters for a word due whose place is not behind `where`."""
        self._take(self._by_where[word], where, error)
        return bool(self.due)

    def tell_due(self) -> None:
        """Tells the waiters that are due.

        An error in a callback is logged, and stops no other callback.
        """
        while self.due:
            _call(*self.due[0])
            self.due.popleft()

    def _take(self, heap: _Heap, limit: float, outcome: Outcome) -> None:
        while heap and (heap[0][0] <= limit or heap[0][2].tell is None):
            self._turn_out(heap[0][2], outcome)
            heappop(heap)
        if len(heap) > self._most:
            heap[:] = [entry for entry in heap if entry[2].tell is not None]
            heapify(heap)

    @property
    def next_deadline(self) -> float:
        """When the next waiter gives up, in monotonic ns. It may be one that was told already."""
        return self._by_deadline[0][0] if self._by_deadline else math.inf

    @property
    def _most(self) -> int:
        """How long a queue may become. A longer one drops the waiters that were told."""
        return 2 * self.outstanding + _TIDY_ABOVE

    def _turn_out(self, waiter: Waiter, outcome: Outcome | None = None) -> None:
        """Marks a waiter as told, and makes it due; without an outcome nobody tells it.

        The waiter stays in the other queues until it is the first there.
        """
        if waiter.tell is None:
            return
        outstanding = self.outstanding - 1
        if outcome is not None:
            self.due.append((waiter.tell, outcome))
        waiter.tell, self.outstanding = None, outstanding  # last: this takes no memory

    def is_any_reached(self, row: Row) -> bool:
        """Whether any position that a waiter waits for is reached."""
        return any(heap and row[word] >= heap[0][0] for word, heap in self._by_where.items())


class Teller:
    """Tells waiters in a thread of its own, which ends when there are no waiters.

    The lock guards the waiters.
    """

    def __init__(self, waiters: Waiters, lock: threading.RLock, clock: Clock, name: str) -> None:
        self._waiters, self._lock, self._clock, self._name = waiters, lock, clock, name
        self._thread: object = None  # a token, which only the thread in charge has

    def serve(self, waiter: Waiter, take_due: Callable[[], bool], rest: Callable[[], object]) -> None:
        """Makes sure that a thread tells the waiter. The caller has the lock.

        The thread calls `take_due` with the lock: it makes waiters due, and says whether any is.
        It calls `rest` without the lock: it waits until some may be due. Raises what Background
        raises, and the waiter is withdrawn then.
        """
        if self._thread is not None:
            return
        try:
            self._thread = thread = object()
            Background(partial(self._run, thread, take_due, rest), self._name)
        except BaseException:
            self._thread = None  # a thread that has started is one too many
            self._waiters.withdraw(waiter)  # the caller hears of it
            raise

    def _run(self, thread: object, take_due: Callable[[], bool], rest: Callable[[], object]) -> None:
        is_needed = True
        while is_needed:
            try:
                is_needed = self._look(thread, take_due, rest)
            except MemoryError:  # without this thread nobody would be told any more: it looks again
                self._clock.sleep(_NO_MEMORY_SECONDS)

    def _look(self, thread: object, take_due: Callable[[], bool], rest: Callable[[], object]) -> bool:
        """Tells the waiters that are due, or rests.

        Returns False where no waiter is left, or another thread is in charge.
        """
        with self._lock:
            if self._thread is not thread:
                return False
            is_due = take_due()
            if not is_due and not self._waiters.outstanding:
                self._thread = None
                return False
        if is_due:
            self._waiters.tell_due()
        else:
            rest()
        return True


def check_callback(callback: object) -> None:
    """Raises IllegalArgument for what can't be called."""
    if not callable(callback):
        raise IllegalArgument(f"a callback is called with a PutMessageStatus, and {callback!r:.80} can't be called")


def _call(tell: Tell, outcome: Outcome) -> None:
    """Calls a user's callback once. If this function raises, the callback was not called."""
    try:
        tell(outcome)
    except BaseException:  # sys.exit() too: it would end the thread that tells all the others
        try:  # noqa: SIM105  # `suppress` takes memory itself
            log.exception("a callback of an acknowledgement failed")
        except MemoryError:
            pass


async def told(enlist: Callable[[Tell], Waiter], withdraw: Callable[[Waiter], None]) -> PutMessageStatus:
    """Waits in asyncio for a waiter's outcome. If the outcome is an error, raises it.

    A cancelled wait leaves nothing behind.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[PutMessageStatus] = loop.create_future()

    def settle(outcome: Outcome) -> None:
        if future.done():
            return
        if isinstance(outcome, CommitLogError):
            future.set_exception(type(outcome)(*outcome.args))  # a copy: each raise adds to a traceback
        else:
            future.set_result(outcome)

    def tell(outcome: Outcome) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, outcome)

    waiter = enlist(tell)
    try:
        return await future
    finally:
        withdraw(waiter)

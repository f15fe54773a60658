"""The position of a named reader in a served store. The server holds the name for this process.

The lease is renewed by a thread. A server that was started again, or from which a connection is
lost, knows of no lease, and is asked for the name anew. If somebody else has moved the reader
meanwhile, this one is told so at its next step: two readers never work under one name unnoticed.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping

from commitlog.appending.program_end import close_at_end
from commitlog.errors import (
    CommitLogError,
    ReaderError,
    ServerBusy,
    ServerError,
    ServerUnavailable,
    StoreRefused,
)
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.named_reader import PYTHON, NamedReader, check_name
from commitlog.reading.starting_point import Offsets
from commitlog.remote import requests
from commitlog.remote.flight_connection import PATIENCE_SECONDS, Connection, connection_of
from commitlog.remote.remote_index import RENEW_SECONDS, RemoteIndex
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.system.threads import Background

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.2
_AWAY = (ServerUnavailable, ServerBusy, StoreRefused)
"""The errors of a server that is away, and of a replica that may be promoted soon."""
_CLOSE_SECONDS = 2.0


class LeasedPosition:
    """See KeptPosition. Making one takes the name.

    Raises ReaderInUse, ReaderError, AccessDenied, ServerBusy, StoreRefused (a replica).
    """

    def __init__(self, index: RemoteIndex, name: str) -> None:
        check_name(name)
        self._lease = lease = _Lease(index, name)
        self.place, self.store_id = index.path, lease.store_id
        lease.start()
        self._end = weakref.finalize(self, lease.end)
        self._end.atexit = False

    def flushed(self, places: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return dict(places)  # a server gives a reader with a name nothing else

    def load(self) -> NamedReader | None:
        found = self._lease.position
        if found is None:
            return None
        return NamedReader(
            self._lease.name,
            found.store_id,
            found.offsets,
            moved_ms=0,
            kind=PYTHON,
            all_topics=found.all_topics,
            lanes=LaneChoice.of(found.lanes, found.members),
        )

    def save(self, reader: NamedReader, epoch: int | None) -> None:
        numbers = reader.lanes.numbers
        wanted = requests.Position(
            reader.store_id,
            {topic: dict(lanes) for topic, lanes in reader.offsets.items()},
            all_topics=reader.all_topics,
            lanes=None if numbers is None else tuple(sorted(numbers)),
            members=reader.lanes.member,
        )
        self._lease.move(wanted, epoch)

    def check(self) -> None:
        if self._lease.error is not None:
            raise self._lease.error.with_traceback(None)

    def let_go(self) -> None:
        self._end.detach()
        self._lease.close()


class _Lease:
    """A name that a server holds, and what is known of its position. Threads may share it."""

    def __init__(self, index: RemoteIndex, name: str) -> None:
        self.name, self._pid = name, os.getpid()
        self._path, self._store = index.path, index.address.store
        self._connection: Connection = connection_of(index.address)
        self._asking = threading.Lock()
        self._ended = threading.Event()
        self.error: CommitLogError | None = None
        held = self._hold()
        self._lease, self.store_id, self._epoch, self.position = held.lease, held.store_id, held.epoch, held.position
        self._tried: Offsets = {}
        """The furthest offsets that the server may have, by topic and lane."""

    def start(self) -> None:
        self._thread = Background(self._keep, f"renews {self.name}")
        close_at_end(self, _Lease._leave_to_parent, holds_data=False)

    def _leave_to_parent(self) -> None:
        """The child holds no name."""

    def _keep(self) -> None:
        """Renews the lease until the end, and then gives the name back."""
        while not self._ended.wait(RENEW_SECONDS):
            with self._asking:
                self._renew()
        with self._asking:
            self._release()

    def _renew(self) -> None:
        try:
            if self.error is None and not self._tell(None, None):
                self._hold_again()
        except _AWAY as error:
            log.info("reader %s: its lease is not renewed for now: %s", self.name, error)
        except MemoryError:
            log.info("reader %s: its lease is not renewed for now: no memory", self.name)
        except CommitLogError as error:
            self.error = error

    def _release(self) -> None:
        if self.error is not None:
            return
        try:
            self._tell(None, None, release=True)
        except (CommitLogError, MemoryError) as error:
            log.warning("reader %s: its name is free only when its lease has run out: %s", self.name, error)

    def end(self) -> None:
        """Has the thread give the name back. In a forked child it does nothing."""
        if os.getpid() == self._pid:
            self._ended.set()

    def close(self) -> None:
        """Gives the name back, and waits a little for that."""
        self.end()
        if os.getpid() == self._pid:
            self._thread.join(_CLOSE_SECONDS)

    def move(self, wanted: requests.Position, epoch: int | None) -> None:
        """Moves the position. Raises what the server raises, and if the name is another's now."""
        with self._asking:
            if self.error is not None:
                raise self.error.with_traceback(None)
            for topic, lanes in wanted.offsets.items():
                known = self._tried.setdefault(topic, {})
                known |= {lane: max(offset, known.get(lane, 0)) for lane, offset in lanes.items()}
            until = SYSTEM_CLOCK.monotonic_ns() + int(PATIENCE_SECONDS * 1e9)
            while not self._has_moved(wanted, epoch, until):
                SYSTEM_CLOCK.sleep(_PAUSE_SECONDS)
            self.position = wanted

    def _has_moved(self, wanted: requests.Position, epoch: int | None, until: int) -> bool:
        """Tries it once. A server that is away is asked again for a while."""
        try:
            if self._tell(wanted, epoch):
                return True
            self._hold_again()
            return self._tell(wanted, epoch)
        except _AWAY:
            if self._ended.is_set() or SYSTEM_CLOCK.monotonic_ns() >= until:
                raise
            return False

    def _tell(self, position: requests.Position | None, epoch: int | None, *, release: bool = False) -> bool:
        """Renews the lease. False if the server does not know it."""
        request = requests.MoveName(self._store, self._lease, position, now=True, release=release, epoch=epoch)
        return bool(self._connection.ask("move_name", request, patient=False))

    def _hold(self, *, patient: bool = True) -> requests.HeldReader:
        answer = self._connection.ask("hold_reader", requests.HoldReader(self._store, self.name), patient=patient)
        try:
            position = answer["position"]
            if position is not None:
                lanes, members = position["lanes"], position["members"]
                offsets = {
                    topic: {int(lane): int(offset) for lane, offset in known.items()}
                    for topic, known in position["offsets"].items()
                }
                position = requests.Position(
                    str(position["store_id"]),
                    offsets,
                    all_topics=bool(position["all_topics"]),
                    lanes=None if lanes is None else tuple(lanes),
                    members=None if members is None else (int(members[0]), int(members[1])),
                )
            return requests.HeldReader(str(answer["lease"]), str(answer["store_id"]), int(answer["epoch"]), position)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise ServerError(
                f"{self._path}: its server's answer can't be read ({error}); is it of another version?"
            ) from None

    def _hold_again(self) -> None:
        """Takes the name anew, where it was lost. Raises ReaderInUse, ReaderError.

        In a store that was promoted since, the position may be an older one: then this reader goes
        on where it is.
        """
        try:
            held = self._hold(patient=False)
            if held.store_id != self.store_id:
                raise ReaderError(f"reader {self.name}: {self._path} is another store now: make a new reader for it")
            self._lease = held.lease
            if not self._is_mine(held):
                self._tell(None, None, release=True)
                raise ReaderError(
                    f"reader {self.name}: its name was lost for a while, and somebody else has moved or removed it: make a "
                    "new reader, which begins where it is now"
                )
        except CommitLogError as error:
            if not isinstance(error, _AWAY):
                self.error = error
            raise
        self._epoch, self.position = held.epoch, held.position

    def _is_mine(self, held: requests.HeldReader) -> bool:
        """Whether nobody else may have moved the position meanwhile."""
        mine: Offsets = {} if self.position is None else self.position.offsets
        now: Offsets = {} if held.position is None else held.position.offsets
        least = {} if held.epoch != self._epoch else mine
        return not (_is_beyond(now, mine, self._tried) or _is_beyond(least, now))


def _is_beyond(offsets: Offsets, *known: Offsets) -> bool:
    """Whether one of the offsets is greater than all known ones of its queue."""
    return any(
        offset > max(one.get(topic, {}).get(lane, 0) for one in known)
        for topic, lanes in offsets.items()
        for lane, offset in lanes.items()
    )

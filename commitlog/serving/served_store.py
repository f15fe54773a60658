"""One served store: its index, which all clients share, and the names that its readers hold."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, get_args

from commitlog.columns.read_plan import Isolation
from commitlog.disk.replica_mark import refuse_replica
from commitlog.disk.store_directory import StoreDirectory, boot_id
from commitlog.errors import (
    AccessDenied,
    CommitLogError,
    IllegalArgument,
    ReaderError,
    ReaderInUse,
    ServerBusy,
    StoreNotFound,
)
from commitlog.planning.reader_name import HeldReaderName
from commitlog.planning.store_index import LocalIndex
from commitlog.reading.named_reader import Client, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.remote import requests
from commitlog.remote.remote_index import RENEW_SECONDS
from commitlog.serving.abandoned_calls import ClientGone, check_client
from commitlog.serving.access import EVERYTHING, Access
from commitlog.serving.flush_notices import FlushNotices
from commitlog.serving.held_position import HeldPosition
from commitlog.system.clock import SYSTEM_CLOCK, Clock

_ISOLATIONS = get_args(Isolation)
NAMES_PER_CLIENT_MAX = 100
"""Names of readers that a client may have. Each is a file, and retention waits for it."""
LEASE_NS = int(3 * RENEW_SECONDS * 1e9)
"""How long a reader's name is held for a client that does not say that it still is there."""


Held = TypeVar("Held", HeldReaderName, HeldPosition)


@dataclass
class _Lease:
    held: HeldReaderName | HeldPosition
    access: Access
    peer: str
    until_ns: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class ServedStore:
    """A store that is read, and may be appended to. It may stop, start, and be made again."""

    def __init__(self, name: str, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name, self.path, self.clock = name, path, clock
        self._locks = {(isolation, reads): threading.Lock() for isolation in _ISOLATIONS for reads in (False, True)}
        self._indexes: dict[tuple[str, bool], tuple[LocalIndex, str]] = {}
        self.notices = FlushNotices(self._version)
        self.boot_id = boot_id()
        self._run = secrets.token_hex(4)
        self._looks = 0
        self._leases: dict[str, _Lease] = {}
        self._leases_lock = threading.Lock()

    @contextlib.contextmanager
    def index(self, isolation: Isolation = "flushed", *, reads: bool = False) -> Iterator[tuple[LocalIndex, str]]:
        """The index, up to date, and its version; nobody else uses it meanwhile.

        Questions for which it `reads` the log may take long: they have an index of their own, so
        that nobody else waits for them. After an error the index is opened anew, unless the error
        came of what a client has asked, or the client is gone. Raises what LocalIndex does, and
        ClientGone.
        """
        key = isolation, reads
        with self._locks[key]:
            check_client()  # it may have waited for long
            index, version = self._indexes.pop(key) if key in self._indexes else self._opened(isolation)
            try:
                if index.refresh() or not version:
                    self._looks += 1
                    version = f"{self._run}.{self._looks}"
            except BaseException:
                index.close()
                raise
            try:
                yield index, version
            except (ReaderError, IllegalArgument, ClientGone):
                self._indexes[key] = index, version
                raise
            except BaseException:
                index.close()
                raise
            self._indexes[key] = index, version

    def _opened(self, isolation: Isolation) -> tuple[LocalIndex, str]:
        return LocalIndex(self.path, isolation, check_client), ""

    # ---- names of readers -----------------------------------------------------------------------

    def hold_name(self, name: str, access: Access, peer: str) -> str:
        """Takes the name of a Spark query's reader, and returns the lease.

        `peer` is the client's end of its connection. Raises ReaderInUse, ReaderError, ServerBusy,
        and AccessDenied where the position that the name has is of topics that this client may not
        read, or is another client's.
        """
        return self._leased(name, access, peer, lambda: HeldReaderName(self.path, name, self.clock))[0]

    def hold_reader(self, name: str, access: Access, peer: str) -> requests.HeldReader:
        """Takes the name of a Python reader. Raises what `hold_name` raises."""
        directory = StoreDirectory(self.path)
        lease, held = self._leased(name, access, peer, lambda: HeldPosition(directory, name, _host(peer), self.clock))
        return requests.HeldReader(lease, held.store_id, held.epoch, held.told())

    def _leased(self, name: str, access: Access, peer: str, hold: Callable[[], Held]) -> tuple[str, Held]:
        with self._leases_lock:
            holder = next((lease for lease in self._leases.values() if lease.held.name == name), None)
            own = {lease.held.name for lease in self._leases.values() if lease.access.name == access.name}
        if holder is not None:
            sees = access.covers_all or holder.access.name == access.name
            whose = f"client {holder.access.name} at {holder.peer}" if sees else "another client"
            raise ReaderInUse(
                f"reader {name} is in use by {whose}: stop that reader first, or give this one another name"
            )
        readers = NamedReaders(StoreDirectory(self.path), self.clock)
        self._check_owner(readers, name, access)  # before it takes the name, for which others may wait
        own |= _made_by(access, readers)
        if name not in own and len(own) >= NAMES_PER_CLIENT_MAX:
            raise ServerBusy(
                f"client {access.name} has {len(own)} names of readers, which is the limit; stop some readers, or ask who "
                "runs the server to drop those that are gone"
            )
        held = hold()
        try:
            self._check_owner(readers, name, access)
        except BaseException:
            held.close()
            raise
        lease = secrets.token_urlsafe(16)
        with self._leases_lock:
            self._leases[lease] = _Lease(held, access, peer, self.clock.monotonic_ns() + LEASE_NS)
        return lease, held

    def _check_owner(self, readers: NamedReaders, name: str, access: Access) -> None:
        """Raises AccessDenied where the position of the name may not be replaced by this client."""
        try:
            known = readers.load(name)
        except FileNotFoundError:
            return
        except ReaderError:
            if access.covers_all:
                return  # it is replaced
            raise AccessDenied(
                f"reader {name} has a position that can't be read, so nobody knows whose it is; choose a name of your own, "
                "or ask who runs the server to drop that reader"
            ) from None
        may_read = all(map(access.covers, known.offsets)) and (known.pattern is None or self._is_own(known, access))
        if known.store_id == self._store_id() and not (may_read and self._is_own(known, access, of_nobody=True)):
            raise AccessDenied(
                f"reader {name} is not for the token {access.name}: it has a position of another client, or of other "
                "topics; choose a name of your own, or ask who runs the server to drop that reader"
            )

    @staticmethod
    def _is_own(known: NamedReader, access: Access, *, of_nobody: bool = False) -> bool:
        """Whether a client may have made this reader. `of_nobody`: or somebody on this machine."""
        if access.covers_all:
            return True
        return of_nobody if known.client is None else known.client.is_like(_as_client(access))

    def _version(self) -> str:
        with self.index() as (_, version):
            return version

    def _store_id(self) -> str:
        with self.index() as (index, _):
            return index.store_id

    def move_name(self, request: requests.MoveName, access: Access, peer: str) -> bool:
        """Renews a lease, moves its reader, and ends it if asked to; False if there is none."""
        with self._leases_lock:
            lease = self._leases.get(request.lease)
            if lease is None:
                refuse_replica(StoreDirectory(self.path))  # of several hosts, another one may have the lease
                return False
            if not _as_client(lease.access).is_like(_as_client(access)):
                raise AccessDenied(f"the lease of reader {lease.held.name} is another client's")
            lease.access, lease.peer = access, peer
            lease.until_ns = self.clock.monotonic_ns() + LEASE_NS
            if request.release:
                del self._leases[request.lease]
        with lease.lock:
            try:
                if isinstance(lease.held, HeldPosition):
                    if request.position is not None:
                        self._commit(lease.held, request, access, peer)
                else:
                    if request.position is not None:
                        lease.held.move(self._position(lease.held.name, request.position, access, peer))
                    lease.held.write(now=request.now)
            finally:
                if request.release:
                    lease.held.close()
        return True

    def _commit(self, held: HeldPosition, request: requests.MoveName, access: Access, peer: str) -> None:
        """Moves a Python reader, no further than what is flushed.

        Raises AccessDenied for topics that the client may not read. All topics are among them if
        the reader is one of all: it would keep those that the client does not see.
        """
        position = request.position
        assert position is not None
        access.check_reads(position.offsets)
        if position.all_topics and not access.covers_all:
            raise AccessDenied(
                f"reader {held.name} would keep the messages of all topics, and the token {access.name} is for "
                f"{', '.join(access.topics)}: name the topics of the reader, or ask who runs the server for a token"
            )
        with self.index() as (index, _):
            queues = {topic: index.ranges(topic).sound for topic in position.offsets}
        held.commit(position, request.epoch, queues, _client_of(access), _host(peer))

    def _position(self, name: str, position: requests.Position, access: Access, peer: str) -> NamedReader:
        """The position as it is written.

        Topics that the client may not see count as passed over, or they would be kept for it.
        Raises ReaderError for offsets that no reader can have.
        """
        access.check_reads(position.offsets)
        passed_over = set(position.passed_over)
        with self.index("committed") as (index, _):
            if position.pattern is not None:
                passed_over |= {topic for topic in index.topics() if not access.covers(topic)}
            ends = {
                topic: {lane: queue.end for lane, queue in index.ranges(topic).sound.items()}
                for topic in position.offsets
            }
        for topic, lanes in position.offsets.items():
            for lane, offset in lanes.items():
                end = ends[topic].get(lane)
                if end is not None and offset > end:
                    raise ReaderError(
                        f"reader {name}: offset {offset} of topic {topic}, lane {lane}, which ends at {end}"
                    )
        moved = NamedReader(
            name,
            position.store_id,
            position.offsets,
            moved_ms=0,
            pattern=position.pattern,
            all_lanes=position.all_lanes,
            passed_over=frozenset(passed_over),
            client=_client_of(access),
            host=_host(peer),
        )
        NamedReaders.check(moved)
        return moved

    def end_old_leases(self, peers: set[str]) -> None:
        """Gives back the names of clients that are gone.

        They are not among the `peers` that are connected, or have not been heard of for LEASE_NS.
        """
        now = self.clock.monotonic_ns()
        with self._leases_lock:
            old = [key for key, lease in self._leases.items() if lease.until_ns < now or lease.peer not in peers]
            ended = [self._leases.pop(lease) for lease in old]
        for lease in ended:
            with lease.lock, contextlib.suppress(CommitLogError):  # its client is told at its next call
                lease.held.close()

    def close(self) -> None:
        """Gives all names back, with their positions written, and closes the indexes."""
        self.notices.close()
        with self._leases_lock:
            ended, self._leases = list(self._leases.values()), {}
        for lease in ended:
            with lease.lock, contextlib.suppress(CommitLogError):
                lease.held.close()
        for index, _ in self._indexes.values():
            index.close()
        self._indexes.clear()


def _client_of(access: Access) -> Client | None:
    return None if access is EVERYTHING else _as_client(access)


def _as_client(access: Access) -> Client:
    return Client(access.name, access.topics)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _made_by(access: Access, readers: NamedReaders) -> set[str]:
    """The names of the readers that clients with this token have made. Without tokens, of none."""
    made = set()
    for name in () if access is EVERYTHING else readers.names():
        with contextlib.suppress(FileNotFoundError, ReaderError):
            client = readers.load(name).client
            if client is not None and client.name == access.name:
                made.add(name)
    return made


def find_store(stores: Mapping[str, ServedStore], name: str) -> ServedStore:
    """The served store of a name. Raises StoreNotFound."""
    found = stores.get(name)
    if found is None:
        raise StoreNotFound(f"no store {name[:80]!r} is served here; those are {', '.join(stores)}")
    return found

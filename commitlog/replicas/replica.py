"""Keeps a replica: follows a store over TLS for as long as it runs (`commitlog replica`).

One thread takes in: it writes what comes, syncs it, and only then acknowledges it. It syncs when
nothing more is there. Where more is there, a second thread syncs each 16 MiB meanwhile. A third one
indexes and records positions. So an index that is behind never delays an acknowledgement.

A copy that has lost a segment gets it back first (`lost_segments.py`). While nothing comes, it
reads its whole segments again, and those that have changed are lost, too.

A connection that is lost is made again, with growing pauses. While the disk is full, there is no
connection, and it waits for room. The store may refuse the copy by name; then this ends, or begins
anew (`again`).
"""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from commitlog.disk.epochs import epochs_to_json, shared_end
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.replica_mark import ReplicaMark, load_mark, save_mark
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import (
    CommitLogError,
    DiskError,
    DiskFull,
    QuotaExceeded,
    ReplicaRefused,
    StoreSuperseded,
    refusal,
)
from commitlog.replicas.copy_place import faults_of_copy, refuse_other_things, set_aside, take_lock
from commitlog.replicas.greeting import exchange
from commitlog.replicas.incoming import Incoming
from commitlog.replicas.lane_copy import LaneCopy
from commitlog.replicas.lost_segments import LaneChain, Mending, look_at_lanes, shorten
from commitlog.replicas.tls import Credentials, connect
from commitlog.replicas.wire import (
    ACKNOWLEDGEMENT,
    NO_LANE,
    FrameReader,
    Hello,
    Welcome,
)
from commitlog.replicas.witnessing import Witnessing
from commitlog.system.clock import SYSTEM_CLOCK, Clock, SignalEvent

_SYNC_BYTES = 16 << 20
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before the next try to connect. The last one is for all further tries."""
_ROOM_SECONDS = 2.0
"""How often to look whether a full disk has room again."""
_RECORD_SECONDS = 1.0
_INDEX_SECONDS = 0.05
_ROUND_SECONDS = 7 * 24 * 3600
"""How often all whole segments are read again."""
_HEARTBEAT_MS_MOST = 5_000
"""The store hears of a replica at least this often, also where nothing is new."""

Tell = Callable[[str], None]
"""Takes a line for whoever runs it."""


class Replica:
    """A replica's directory, and who keeps it. `run` does the work until `stop`.

    Raises ReplicaRefused, StoreSuperseded, ReplicationRefused, StoreRunning, StoreRefused,
    DiskError, RecoveryError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        source: str,
        credentials: Credentials,
        name: str,
        *,
        again: bool = False,
        verify_all: bool = False,
        tell: Tell = lambda line: None,
        channel: FileChannel = DISK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.directory = StoreDirectory(path, channel)
        self.source, self.name, self._credentials = source, name, credentials
        self._again, self._verify_all = again, verify_all
        self._tell, self._clock, self.channel = tell, clock, channel
        self._failures = 0
        """Tries to connect that have failed since the store was there last."""
        self._stop_event = SignalEvent()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.RLock()
        """Is held to write to `_wake` and to close it. A signal handler may come then."""
        self._index_lock = threading.Lock()
        """Held by either thread for files that both write, and for what the other one uses."""
        self._failure: CommitLogError | None = None
        """What has ended the thread that indexes."""
        self._full = ""
        """The disk is full, as was told: the error's name. Empty once there was room again."""
        self._noted: dict[int, dict[int, int]] = {}
        """Lane → segments in which only this copy has damage. They are asked for."""
        self._round_ns = clock.monotonic_ns()
        """When the copy's segments began to be read again."""
        self._has_all = self._has_room = False
        """Whether this connection has brought all that the store had when it began, and whether the
        other thread has indexed and recorded that."""
        self.mark = ReplicaMark(source, name)
        """The thread that takes in changes it. Who saves it holds `_index_lock`."""
        self.facts: StoreFacts | None = None
        self.lanes: dict[int, LaneCopy] = {}
        self._saved_mark: ReplicaMark | None = None
        self._witness = Witnessing(self.directory, tell)

    def stop(self) -> None:
        """Makes `run` return soon. Any thread or signal handler may call it."""
        self._stop_event.set()
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Follows the store until `stop`."""
        try:
            while not self._stop_event.is_set():
                try:
                    self._keep()
                except ReplicaRefused as error:
                    if not self._again or self.facts is None:
                        raise
                    self._again = False
                    self._tell(f"refused: {error}")
                    self._set_aside()
        except OSError as error:  # of a connection it is handled where it happens
            raise refusal(error, self.directory.path, "following the store") from error
        finally:
            with self._wake_lock:
                wake, self._wake = self._wake, -1  # a signal may come now
                os.close(wake)

    def _await_room(self, error: DiskError) -> None:
        """Waits a moment, and says once why, however often the disk is still full.

        The mark says why, too, if there is room for that.
        """
        if self._full != type(error).__name__:
            self._full = type(error).__name__
            self._tell(f"{error}; the copy goes on when there is room")
        self.mark.waits_for = "room on its disk" if isinstance(error, DiskFull) else "room in its quota"
        with contextlib.suppress(OSError):
            self._save_mark()
        self._stop_event.wait(_ROOM_SECONDS)

    # ---- the directory --------------------------------------------------------------------------

    def _keep(self) -> None:
        """Follows with the directory that is there, until `stop` or until it is refused."""
        self._failure = None
        with self._locked():
            try:
                with self._recovered():
                    self._follow_and_index()
            except (DiskFull, QuotaExceeded) as error:
                self._await_room(error)

    def _follow_and_index(self) -> None:
        indexing = threading.Thread(target=self._index, name="commitlog-index", daemon=True)
        self._done = threading.Event()
        self._has_all = self._has_room = False  # the thread reads it before there is a connection
        indexing.start()
        try:
            self._follow()
        finally:
            self._done.set()
            indexing.join()
        self._raise_failure()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock of the directory."""
        directory = self.directory
        directory.check_path()
        refuse_other_things(directory, self.source)
        self.channel.create_directory(directory.path)
        lock = take_lock(directory)
        try:
            yield
        finally:
            self.channel.close(lock)

    @contextlib.contextmanager
    def _recovered(self) -> Iterator[None]:
        """Has the lanes of the directory recovered."""
        directory = self.directory
        try:
            mark = load_mark(directory)
            if mark is not None and directory.file.exists():  # else it was killed before it had anything
                self.facts = directory.load()
                self.mark = replace(mark, source=self.source, name=self.name, connected=False, promoting=-1)
                self._witness.hear(self.facts, self.mark)
                if self._mend(self.facts):
                    self._recover(self.facts)
            yield
        finally:
            for lane in self.lanes.values():
                lane.close()
            self.lanes.clear()

    def _mend(self, facts: StoreFacts) -> bool:
        """Asks the store for what the copy has lost, until it is whole. False where `stop` came.

        Recovery comes behind that: it would note what is lost as damage.
        """
        while lost := [chain for chain in self._look(facts) if chain.lost]:
            for chain in lost:
                where = self.directory.lane_directory(chain.lane).segment_path(chain.lost[0])
                self._tell(
                    f"lane {chain.lane}: the copy has lost {chain.lost_bytes:,} bytes in {len(chain.lost):,} segments, the "
                    f"first is {where}: {self.source} is asked for them"
                )
                shorten(self.directory, facts, chain)
            if not any(chain.wanted for chain in lost):
                break
            mending = Mending(self.directory, facts, lost)
            self.mark.waits_for = "what it has lost"
            with self._named_faults("noting that the copy is not whole"):
                self._save_mark()
            try:
                self._while_connected(partial(self._ask_for, mending), mending)
            finally:
                mending.close()
            if self._stop_event.is_set():
                return False
            self._noted = {}
            if not mending.mended:
                raise ReplicaRefused(
                    f"{self.directory.path} has lost segments that {self.source} does not have any more: set the copy "
                    f"aside and begin anew with `commitlog replica … --again`"
                )
        self._noted = {}
        return True

    def _look(self, facts: StoreFacts) -> list[LaneChain]:
        return look_at_lanes(self.directory, facts, self.mark.acknowledged, self._noted, verify_all=self._verify_all)

    def _ask_for(self, mending: Mending, peer: ssl.SSLSocket) -> None:
        """Gets the segments that are wanted. What the store says of itself is adopted later."""
        assert self.facts is not None
        hello = Hello(self.name, self.facts.id, self.facts.epoch, wants=mending.wanted)
        welcome = exchange(peer, self.source, self._credentials, hello)
        self._check_same(welcome, self.facts)
        self._take_in(peer, welcome, mending)

    def _recover(self, facts: StoreFacts) -> None:
        for number in self.directory.lane_numbers():
            lane = LaneCopy(self.directory, facts, number)
            lane.recover(self._tell)
            self.lanes[number] = lane

    def _set_aside(self) -> None:
        """Has a new copy begin in the place of the directory."""
        aside = set_aside(self.directory)
        self.facts, self.mark, self._saved_mark = None, ReplicaMark(self.source, self.name), None
        self._tell(f"{self.directory.path} is now {aside}; a new copy begins")

    # ---- connections ----------------------------------------------------------------------------

    def _follow(self) -> None:
        self._while_connected(self._follow_one, None)

    def _follow_one(self, peer: ssl.SSLSocket) -> None:
        """Follows over one connection."""
        welcome = self._greet(peer)
        self._failures = 0
        self.mark.waits_for = ""
        if not self._full:
            self._tell(f"following {self.source}, epoch {welcome.epoch}")
        self._receive(peer, welcome)

    def _while_connected(self, use: Callable[[ssl.SSLSocket], None], mending: Mending | None) -> None:
        """Connects again and again, until all is mended. Raises what the store refuses with."""
        self._failures = 0
        while not (self._stop_event.is_set() or self._is_over(mending)):
            self._raise_failure()
            try:
                with connect(self.source, self._credentials) as peer:
                    use(peer)
            except (OSError, EOFError) as error:  # or TLS has found bytes that were changed on their way
                why = error
            else:
                continue
            finally:
                self._lost()
            pause = _PAUSES[min(self._failures, len(_PAUSES) - 1)]
            self._tell(f"no connection to {self.source}: {why}; again in {pause:g} s")
            self.mark.waits_for = f"a connection to {self.source}"
            self._failures += 1
            self._stop_event.wait(pause)

    def _is_over(self, mending: Mending | None) -> bool:
        """Whether all is mended; or, while it follows, whether there is something to mend."""
        return mending.is_over if mending else bool(self._noted)

    def _lost(self) -> None:
        for lane in self.lanes.values():
            lane.forget_pending()
        self.mark.connected = False
        self.mark.note_behind(self._clock.wall_ms())

    def _greet(self, peer: ssl.SSLSocket) -> Welcome:
        """Says what is here, and takes what the store says of itself."""
        facts = self.facts
        with self._named_faults("syncing the store's log"):
            for lane in self.lanes.values():  # what came before the last connection was lost
                lane.sync()
            lanes = tuple(lane.tail() for lane in self.lanes.values() if not lane.is_empty)
        hello = Hello(self.name, facts.id, facts.epoch, lanes=lanes) if facts else Hello(self.name)
        welcome = exchange(peer, self.source, self._credentials, hello)
        self._adopt(welcome)
        return welcome

    def _adopt(self, welcome: Welcome) -> None:
        """Makes `store.json` say what the store says. The directory is marked before that."""
        known = self.facts or StoreFacts(welcome.store, welcome.segment_bytes)
        self._check_same(welcome, known)
        if self.facts is not None:  # else the copy is a new one, and what an earlier one had is no matter
            self.mark.part_at({lane: shared_end(welcome.epochs, known.epoch, lane) for lane in self.mark.acknowledged})
            self.mark.note_acknowledged(welcome.acknowledged)
        facts = replace(
            known,
            generation=welcome.generation,
            config=welcome.config,
            pool=None,
            epoch=welcome.epoch,
            epochs=epochs_to_json(welcome.epochs),
        )
        if facts != self.facts:
            with self._named_faults("noting what the store says of itself"):
                with self._index_lock:  # the other thread saves the mark, too
                    save_mark(self.directory, self.mark)
                self.directory.save(facts)
                self.channel.create_directory(self.directory.lanes_directory, below=self.directory.path)
        self.facts = facts

    def _check_same(self, welcome: Welcome, known: StoreFacts) -> None:
        """Raises ReplicaRefused for another store, StoreSuperseded for an older epoch."""
        if (known.id, known.segment_bytes) != (welcome.store, welcome.segment_bytes):
            raise ReplicaRefused(
                f"{self.directory.path} is a copy of store {known.id}, and {self.source} has store {welcome.store}: give "
                f"each store a directory of its own for its copy"
            )
        if welcome.epoch < known.epoch:
            raise StoreSuperseded(
                f"{self.source} has epoch {welcome.epoch}, and this copy has {known.epoch}: that store was superseded; "
                f"follow the one that was promoted"
            )

    def _receive(self, peer: ssl.SSLSocket, welcome: Welcome) -> None:
        """Takes in what comes, until the connection ends or `stop`."""
        assert self.facts is not None
        with ThreadPoolExecutor(1, "commitlog-sync") as beside:
            incoming = Incoming(
                self.directory, self.facts, self.lanes, self._index_lock, self.mark, beside, self._noted
            )
            try:
                self._take_in(peer, welcome, incoming)
            finally:
                incoming.end_sync()  # its error matters more than the connection's

    def _take_in(self, peer: ssl.SSLSocket, welcome: Welcome, incoming: Incoming | Mending) -> None:
        incoming.expect({lane: limit for lane, (_, limit) in welcome.lanes.items()})
        frames = FrameReader(peer.recv_into)
        self._has_all = self._has_room = False
        self.mark.connected = True
        peer.settimeout(welcome.housekeeping_ms / 1000)
        heartbeat_ms = min(_HEARTBEAT_MS_MOST, max(welcome.housekeeping_ms // 4, 10))
        poller = select.poll()
        poller.register(peer, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        heard = said = self._clock.monotonic_ns()
        while not (self._stop_event.is_set() or incoming.is_over):
            self._raise_failure()
            is_more = peer.pending() > 0 or any(fd == peer.fileno() for fd, _ in poller.poll(0))
            if is_more:
                incoming.take(frames.read())
                heard = self._clock.monotonic_ns()
                self.mark.note_heard(self._clock.wall_ms())
                if incoming.unsynced < _SYNC_BYTES:
                    continue
            acknowledgements = incoming.sync(beside=is_more)
            self._has_all = incoming.is_complete
            if self._full and self._has_room:
                self._full = ""
                self._tell(f"{self.directory.path} has room again; following {self.source}")
            now = self._clock.monotonic_ns()
            if not acknowledgements and now - said >= heartbeat_ms * 1_000_000:
                acknowledgements = ACKNOWLEDGEMENT.pack(NO_LANE, 0)
            if acknowledgements:
                peer.sendall(acknowledgements)
                said = now
            incoming.note_behind(self._clock.wall_ms())
            if now - heard > welcome.housekeeping_ms * 1_000_000:
                raise TimeoutError(f"it has said nothing for {welcome.housekeeping_ms / 1000:g} s")
            if not is_more:
                poller.poll(heartbeat_ms)

    # ---- the other thread -----------------------------------------------------------------------

    def _index(self) -> None:
        """Indexes what is durable, and records positions and the mark now and then."""
        try:
            with self._named_faults("indexing the store's log"):
                self._index_until_done()
        except CommitLogError as error:
            self._failure = error
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)

    def _index_until_done(self) -> None:
        recorded_ns = 0
        while True:
            is_over, has_all = self._done.is_set(), self._has_all
            with self._index_lock:
                moved = [lane.index() for lane in list(self.lanes.values())]
            now = self._clock.monotonic_ns()
            if is_over or now - recorded_ns >= _RECORD_SECONDS * 1e9:
                recorded_ns = now
                with self._index_lock:
                    for lane in list(self.lanes.values()):
                        lane.record()
                    self._save_mark()
                    self._look_at_names()
                self._has_room = has_all
            if is_over and not any(moved):
                return
            if not any(moved):
                self._check_some()
                self._done.wait(_INDEX_SECONDS)

    def _check_some(self) -> None:
        """Reads a piece of a whole segment again. One that has changed is asked for."""
        lanes = list(self.lanes.values())
        if (now := self._clock.monotonic_ns()) - self._round_ns >= _ROUND_SECONDS * 1_000_000_000:
            self._round_ns = now
            for lane in lanes:
                lane.indexing.sums.begin_round()
        for lane in lanes:
            if not lane.indexing.sums.check_some(lane.first, lane.indexing.indexed):
                continue
            self._note_damage(lane, lane.indexing.sums.damaged)
            return

    def _look_at_names(self) -> None:
        """Notes which whole segments somebody has removed. The next sync notices the open one."""
        for lane in self.lanes.values():
            self._note_damage(lane, dict.fromkeys(lane.removed(), "it is missing"))

    def _note_damage(self, lane: LaneCopy, damaged: Mapping[int, str]) -> None:
        """Has these segments asked for. Until they are back, the copy does not count."""
        for start, why in damaged.items():
            if start not in self._noted.get(lane.number, {}):
                self._tell(f"{lane.lane.segment_path(start)}: the copy is damaged there: {why}")
                self._noted.setdefault(lane.number, {})[start] = start

    def _named_faults(self, doing: str) -> AbstractContextManager[None]:
        """Names errors of the disk, so that an OSError is always of the connection."""
        return faults_of_copy(self.directory, doing)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _save_mark(self) -> None:
        if self.facts is not None and self.mark != self._saved_mark:
            save_mark(self.directory, mark := replace(self.mark))
            self._saved_mark = mark
            self._witness.note(self.facts, mark)

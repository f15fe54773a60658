"""Opens a store: from a path and a configuration to a running store, or to a named error.

An error leaves everything of another owner as it was. Files that are read before the locks are held
can only be a reason to refuse the start. They are read again when the locks are held, and nothing
of the store is written before.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from commitlog.config import AUTO_SEGMENT_BYTES_MAX, MIN_SEGMENT_BYTES, Config
from commitlog.disk.epochs import epochs_from_json, epochs_to_json, next_epoch
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.replica_mark import check_runnable, mark_superseded, superseded
from commitlog.disk.store_directory import StoreDirectory, StoreFacts, new_store_id
from commitlog.errors import CommitLogError, StoreNotFound, StoreRefused
from commitlog.opening.pool_sizing import check_lane_fits, choose_segment_bytes
from commitlog.opening.store_pool import open_pool
from commitlog.opening.used_offsets import AheadReaders, begin_epoch, damaged_lanes, with_epoch
from commitlog.reading.view import attach_control
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Header, Lane
from commitlog.stages.supervising.reporting import warn
from commitlog.stages.supervising.running_store import RunningStore, StopRequest
from commitlog.stages.supervising.stage_processes import stage_module
from commitlog.stages.supervising.store_locks import StoreLocks
from commitlog.system.clock import SYSTEM_CLOCK, Clock

_LEFT_OF_A_START = {"lock", "locks", "logs", "lanes"}
_PEER_SECONDS = 2.0
"""How long a start waits for each peer."""

log = logging.getLogger(__name__)


class StoreOpening:
    """See the module. `locks` are held from `run` on, until they are closed or the process ends.

    Attributes: with `only_drains` a store that was superseded starts, too. No producer comes to it.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        channel: FileChannel = DISK,
        clock: Clock = SYSTEM_CLOCK,
        *,
        report: Callable[[str], None] = warn,
        module_of: Callable[[str], str] = stage_module,
        request: StopRequest | None = None,
    ) -> None:
        self.directory = StoreDirectory(path, channel)
        self.locks = StoreLocks(self.directory, channel, clock, config)
        self._config, self._channel, self._clock = config, channel, clock
        self._report, self._module_of, self._request = report, module_of, request
        self.only_drains = False

    def run(self, on_locked: Callable[[], None] = lambda: None) -> RunningStore:
        """Takes the locks, makes the store if it is missing, and opens its pool. No stage runs yet.

        `on_locked` is called when the store is ours: before that, not even its log may be written.
        Raises StoreRunning, StoreRefused, StoreDamaged, StoreTooNew, NotEnoughSharedMemory,
        PoolNotAdopted, RecoveryError, UnsafePath, StoreSuperseded, DiskError, OSError.
        """
        facts = self._load_or_plan()
        self.locks.take()
        on_locked()
        facts = replace(self._load_or_make(facts), config=self._config.to_json())
        if self._config.replication.peers:
            self._ask_peers(facts)
        if last := attach_control(self.directory, facts):
            last.close()
            self.locks.take_in(last.region.path.parent)
        last_pool = facts.pool
        control, opened = open_pool(self.directory, facts, self._channel, self._report)
        damaged = damaged_lanes(self.directory)
        if facts.is_backup:
            facts = replace(_restored(opened, control), damage=damaged)
            self._report(
                f"{self.directory.path} was a backup, and is a store of its own from now on: no backup goes into it"
            )
        else:
            facts = with_epoch(opened, damaged, control)
        store = RunningStore(
            self.directory, facts, control, self._config, self._channel, self._clock,
            made_pool=facts.pool != last_pool, report=self._report, module_of=self._module_of, request=self._request,
        )  # fmt: skip
        try:
            self.locks.take_in(control.region.path.parent)
            self.directory.save(facts)
            self._lower_readers(store, damaged)
            control.words[Header.SUPERVISOR_PID] = os.getpid()
            store.beat()
            self._mark_lanes_dirty()
            self.locks.let_stages_go()
        except (CommitLogError, OSError):
            store.give_up()
            raise
        return store

    def _lower_readers(self, store: RunningStore, damaged: Mapping[int, int]) -> None:
        """Has no named reader pass over messages that get offsets which it has read before.

        Where all files are an older copy, nothing else tells Spark's checkpoints of it.
        """
        ahead = AheadReaders(self.directory, damaged)
        if ahead.are_copied:
            store.facts = begin_epoch(store.facts, store.control)
            self.directory.save(store.facts)
        for finding in ahead.lower():
            self._report(finding)

    # ---- the store's directory ------------------------------------------------------------------

    def _load_or_plan(self) -> StoreFacts:
        """The facts of the store, or those of the store to be made.

        It creates nothing: first it checks for everything that forbids a start.
        """
        try:
            facts = self.directory.load()
            self.directory.check_owner()
            if not self.only_drains:
                check_runnable(self.directory)
            check_lane_fits(facts.segment_bytes, self._config.store.buffers_per_lane)
            return facts
        except StoreNotFound:
            parent = next(p for p in (self.directory.path, *self.directory.path.parents) if p.exists())
            if not os.access(parent, os.W_OK | os.X_OK):
                raise StoreRefused(f"{parent}: no permission to make a store here; choose another path") from None
            if self.directory.path.exists():
                self.directory.check_owner()
                self._refuse_foreign()
            wanted = self._config.store
            largest = wanted.segment_bytes or AUTO_SEGMENT_BYTES_MAX
            smallest = wanted.segment_bytes or MIN_SEGMENT_BYTES
            size = choose_segment_bytes(wanted.buffers_per_lane, largest, smallest)
            return StoreFacts(id=new_store_id(), segment_bytes=size)

    def _refuse_foreign(self) -> None:
        """Raises StoreRefused for a directory with things that no start of a store has left."""
        draft = f".{self.directory.file.name}."
        names = self._channel.list(self.directory.path)
        foreign = [name for name in names if name not in _LEFT_OF_A_START and not name.startswith(draft)]
        if foreign:
            raise StoreRefused(
                f"{self.directory.path} is a directory with other things in it ({', '.join(foreign[:3])}); "
                f"give a new or an empty one"
            )

    def _load_or_make(self, planned: StoreFacts) -> StoreFacts:
        """Loads the facts once more, now that nobody else can change them.

        Where there is no store, it is made as planned.
        """
        try:
            facts = self.directory.load()
            if not self.only_drains:
                check_runnable(self.directory)  # `rejoin` may have had the lock meanwhile
                self._drop_stale_mark()
        except StoreNotFound:
            # a parent that may not be opened is somebody else's: they made our directory
            with contextlib.suppress(PermissionError):
                self._channel.sync_directory(self.directory.path.parent)
            self.directory.save(planned)
            facts = planned
        self.directory.lane_numbers()  # raises where a file is in the directory's place
        self._channel.create_directory(self.directory.lanes_directory, below=self.directory.path)
        return facts

    def _drop_stale_mark(self) -> None:
        """Removes the mark of a replica that a promotion has left, which was killed at its end."""
        self._channel.remove_file(self.directory.replica_file)

    def _ask_peers(self, facts: StoreFacts) -> None:
        """Asks the other machines' stores whether one of them was promoted.

        Stores that do not answer are passed over, because this store must be able to start without
        them. Raises StoreSuperseded, and StoreRefused for a backup of a store that runs there.
        """
        from commitlog.replicas.greeting import ask_epoch  # other starts do without it
        from commitlog.replicas.tls import Credentials

        config = self._config.replication
        credentials = Credentials(Path(config.certificate), Path(config.key), Path(config.authority))
        for peer in config.peers.split():
            try:
                welcome = ask_epoch(peer, credentials, facts, _PEER_SECONDS)
            except (CommitLogError, OSError, EOFError) as error:
                log.warning("peer %s does not say its epoch: %s", peer, error)
                continue
            if welcome.store != facts.id:
                continue
            if welcome.epoch > facts.epoch:
                mark_superseded(self.directory, welcome.epoch, peer)
                raise superseded(self.directory)
            if facts.is_backup:
                raise StoreRefused(
                    f"{self.directory.path} is a backup, and {peer} runs this store: two would part from one another. End "
                    "that one if this one is to take its place, or start this one without peers"
                )

    def _mark_lanes_dirty(self) -> None:
        """Writes RocketMQ's `abort` file in every lane.

        A store root has this file from its start to its proper end.
        """
        for lane in self.directory.lane_numbers():
            self._channel.replace_file(self.directory.lane_directory(lane).abort_file, str(os.getpid()).encode())


def _restored(facts: StoreFacts, control: ControlRegion) -> StoreFacts:
    """The facts of a backup that becomes a store: a new epoch begins where the backup ends.

    From the epoch, a reader that has read more of the old store learns that the offsets behind that
    end are used again.
    """
    history = epochs_from_json(facts.epochs)
    begun = next_epoch(history, control.positions(Lane.WROTE))
    return replace(facts, epoch=begun.epoch, epochs=epochs_to_json((*history, begun)))

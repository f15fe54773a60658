"""A backup of a whole store: its parts, in the order that keeps the backup consistent.

A part that refers to another part is read before that part, and written after it:

1. Named readers and deletions of schemas are read, then of each lane what was trimmed, and its
   positions. So no reader and no mark is further than the logs.
2. Logs are copied up to these positions. Lanes have nothing to do with each other.
3. Schemas are copied when the log is there that needs them, and before it counts.
4. What was trimmed is written when the log counts, then deletions of schemas, readers, and
   `store.json`.

Until the first backup of a store is complete, its directory has `incomplete-backup.json` in place
of `store.json`, so that nobody opens or reads it. `store.json` names no pool, so that the store's
shared memory is not taken for the backup's.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from commitlog.backups.backup_report import BackupReport
from commitlog.backups.lane_backup import LaneBackup
from commitlog.backups.lane_source import LaneSource
from commitlog.backups.small_files import SmallFiles
from commitlog.disk.backup_note import BackupNote, write_backup_note
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.locks import present_holder_of, try_file, write_holder
from commitlog.disk.store_directory import INCOMPLETE_BACKUP_FILE, StoreDirectory, StoreFacts
from commitlog.errors import (
    FAULT_BY_ERRNO,
    BackupRefused,
    CommitLogError,
    DiskError,
    FileSizeLimited,
    NotEnoughDescriptors,
    NotEnoughMemory,
    StoreRefused,
    StoreRunning,
)
from commitlog.inspecting.state_files import misplaced_schemas
from commitlog.inspecting.verify import verify_store
from commitlog.reading.view import StoreView
from commitlog.system.clock import SYSTEM_CLOCK

log = logging.getLogger(__name__)

_LIMITS = (FileSizeLimited, NotEnoughDescriptors, NotEnoughMemory)
"""What no room on a disk helps against."""

Progress = Callable[[int], None]
"""Is called now and then with the number of bytes that were copied so far."""


def backup(
    path: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    verify_all: bool = False,
    progress: Progress = lambda copied: None,
) -> BackupReport:
    """Copies what is new in a store to a directory that can be opened in its place.

    The store may run, be stopped or killed. What was flushed is copied, and each record of it is
    checked. The first backup makes the directory and copies everything. What retention deletes in
    the store goes from the backup too. A backup that was interrupted counts as it was before, and
    the next one completes it. `verify_all` checks all of the backup at the end, with its indexes.

    The report names what is damaged in the store; all else is in the backup nevertheless.

    Raises:
    - BackupRefused: the destination is something else, belongs to another store, or is newer
    - StoreRunning: another backup to it is under way, or somebody has started it as a store
    - StoreNotFound, StoreRefused, StoreDamaged, StoreTooNew
    - DiskError: such as DiskFull; run it again when there is room
    """
    try:
        return StoreBackup(path, destination, DISK, progress).run(verify_all=verify_all)
    except OSError as error:
        raise _named(error, destination) from error


def _named(error: OSError, destination: str | os.PathLike[str]) -> DiskError | StoreRefused:
    place = f"{error.filename or destination}: {error.strerror or error}"
    if error.errno in FAULT_BY_ERRNO and not isinstance(error, FileNotFoundError):
        is_first = not StoreDirectory(destination).file.exists()
        what = "the first backup is not complete yet" if is_first else "the last backup counts"
        kind = FAULT_BY_ERRNO[error.errno]
        way_out = kind.hint if kind in _LIMITS else "make room, or mend the disk"
        return kind(f"{place}; {what}; {way_out}, then repeat it, it goes on")
    return StoreRefused(f"{place}; check that it is there, its owner and its permissions, then repeat the backup")


class StoreBackup:
    """One run of a backup. An OSError of the system comes out as it is: `backup` names it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        destination: str | os.PathLike[str],
        channel: FileChannel = DISK,
        progress: Progress = lambda copied: None,
    ) -> None:
        self.source, self.target, self.channel = (
            StoreDirectory(path, channel),
            StoreDirectory(destination, channel),
            channel,
        )
        self._source_files, self._files = SmallFiles(self.source), SmallFiles(self.target)
        self._progress = progress
        self._copied_bytes = 0
        self._findings: list[str] = []
        """What is damaged around the lanes."""

    def run(self, *, verify_all: bool = False) -> BackupReport:
        """Makes the backup. Raises what `backup` raises, and OSError."""
        view = StoreView(self.source.path, self.channel)
        try:
            self._check_places()
            self.channel.create_directory(self.target.path)
            with self._locked():
                self._check_target(view.facts)
                lanes, removed = self._copy(view)
        finally:
            view.close()
        findings = [*self._findings, *(finding for lane in lanes for finding in lane.findings)]
        if verify_all:
            verified = verify_store(self.target.path, self.channel)
            findings += verified.findings
            findings += [
                f"{found.file} at offset {found.offset}: {found.reason}"
                for lane in verified.lanes
                for found in lane.findings
            ]
        if not findings:
            self._note()
        return BackupReport(
            path=str(self.source.path),
            destination=str(self.target.path),
            lanes=len(lanes),
            copied_bytes=self._copied_bytes,
            copied_messages=sum(lane.messages for lane in lanes),
            removed_segments=removed,
            findings=tuple(findings),
        )

    def _note(self) -> None:
        """Notes the backup in the store. Another user, root too, leaves no note there."""
        try:
            self.source.check_owner()
            write_backup_note(self.source, BackupNote(str(self.target.path), SYSTEM_CLOCK.wall_ms()))
        except (OSError, CommitLogError) as error:
            log.warning("%s: metrics do not tell how old its backup is: %s", self.source.path, error)

    # ---- the destination ------------------------------------------------------------------------

    def _check_places(self) -> None:
        """Raises BackupRefused, StoreRefused for a path that can't be a backup. Changes nothing."""
        source, target = self.source.path.resolve(), self.target.path.resolve()
        if target.is_relative_to(source) or source.is_relative_to(target):
            raise BackupRefused(
                f"{self.target.path} and the store {self.source.path} are one, or one is inside the other; "
                f"give a directory elsewhere, best on another disk"
            )
        self.target.check_path()
        if not self.target.path.exists():
            return
        self.target.check_owner()
        lock, draft = self.target.lock_file.name, f".{INCOMPLETE_BACKUP_FILE}."  # of a backup that was killed at once
        names = [name for name in self.channel.list(self.target.path) if name != lock and not name.startswith(draft)]
        if names and not self.target.file.exists() and not self.target.incomplete_backup_file.exists():
            raise BackupRefused(
                f"{self.target.path} is no backup, and there are other things in it ({', '.join(names[:3])}); "
                f"give a new or an empty directory"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock that a supervisor of the backup would hold."""
        lock = try_file(self.target.lock_file, self.channel)
        if lock is None:
            holder = present_holder_of(self.target.lock_file, self.channel)
            raise StoreRunning(
                f"{self.target.path} is in use by process {holder}: another backup, or somebody runs it as a store; "
                f"wait for the end of that, or give another directory"
            )
        try:
            write_holder(lock, self.channel)
            yield
        finally:
            self.channel.close(lock)

    def _check_target(self, facts: StoreFacts) -> None:
        """Raises BackupRefused where the destination is not an earlier backup of this store.

        A new one is marked as incomplete.
        """
        path, draft = self.target.path, self.target.incomplete_backup_file
        if self.target.file.exists():
            known = self.target.load()
            if known.id == facts.id and not known.is_backup:
                raise BackupRefused(
                    f"{path} is this store, or was started since it was its backup: it may have messages of its own. "
                    f"Check the order of the arguments, or give a new directory"
                )
        elif draft.exists():
            known = StoreFacts.from_bytes(self.channel.read_file(draft), draft)
        else:
            self.channel.replace_file(draft, self._facts_of_backup(facts).to_bytes())
            return
        if known.id != facts.id:
            raise BackupRefused(f"{path} belongs to another store; give each store a directory of its own")
        if known.generation > facts.generation:
            raise BackupRefused(
                f"{path} is newer than {self.source.path}, which was restored from an older copy; keep this backup, and "
                f"give the next one a new directory"
            )

    @staticmethod
    def _facts_of_backup(facts: StoreFacts) -> StoreFacts:
        return replace(facts, pool=None, backup_generation=facts.generation)

    # ---- copying --------------------------------------------------------------------------------

    def _copy(self, view: StoreView) -> tuple[list[LaneBackup], int]:
        readers, deletions = self._source_files.readers(), self._source_files.deletions()
        facts, identity = view.facts, view.identity
        lanes = [
            LaneBackup(LaneSource(view, number), self.target, facts, self._count_copied) for number in view.lanes()
        ]
        self._refuse_lost_lanes(lanes)
        for lane in lanes:
            lane.refuse_other_history()
        self._refuse_other_schemas()
        for lane in lanes:
            lane.copy()
            self._copy_schemas()
            self._refuse_another(view, identity)
            lane.publish()
        self._name_damaged_schemas()
        self._refuse_another(view, identity)
        self._replace_files(self._files.deletions(), deletions)
        self._replace_files(self._files.readers(), readers)
        self.target.save(self._facts_of_backup(facts))
        self.channel.remove_file(self.target.incomplete_backup_file)
        return lanes, sum(lane.removed_segments for lane in lanes)

    def _refuse_another(self, view: StoreView, identity: tuple[object, ...]) -> None:
        """Raises StoreNotFound, BackupRefused where the store was moved away or replaced meanwhile.

        What was copied last may be another's, or have no schemas: it does not count.
        """
        view.refresh()
        if view.identity != identity:
            raise BackupRefused(
                f"{self.source.path} was replaced while it was copied: what counts in {self.target.path} is the last backup"
            )

    def _count_copied(self, count: int) -> None:
        self._copied_bytes += count
        self._progress(self._copied_bytes)

    def _refuse_lost_lanes(self, lanes: list[LaneBackup]) -> None:
        lost = set(self.target.lane_numbers()) - {lane.source.number for lane in lanes}
        if lost:
            raise BackupRefused(
                f"{self.target.path} has lanes that {self.source.path} has not ({', '.join(map(str, sorted(lost)))}): the "
                f"store lost them, or was restored from an older copy; keep this backup, and give the next one a new "
                f"directory"
            )

    def _refuse_other_schemas(self) -> None:
        """Raises BackupRefused where a version of a schema is another one here.

        Rows would be read wrong. A schema may have been declared without a row, so the logs may be
        the same.
        """
        for name in self._source_files.schemas():
            if self._files.exists(name) and self._files.read(name) != self._source_files.read(name):
                raise BackupRefused(
                    f"{self.target.path / name} differs from the store's: the store was restored from an older copy, and "
                    f"the topic has another schema since; keep this backup, and give the next one a new directory. Or one "
                    f"of both files is damaged: without the backup's, the store's is copied"
                )

    def _copy_schemas(self) -> None:
        """Copies the versions of schemas that are new. A version never changes."""
        for name in self._source_files.schemas():
            if not self._files.exists(name):
                self._files.write(name, self._source_files.read(name))

    def _name_damaged_schemas(self) -> None:
        """Names those that are damaged. They are copied, or their topics would have only bytes."""
        self._findings += misplaced_schemas(self.source)
        for name in self._source_files.schemas():
            if damage := self._source_files.damage(name, self._source_files.read(name)):
                self._findings.append(damage)

    def _replace_files(self, known: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> None:
        """Writes the store's small files. A damaged one never takes the place of the backup's.

        Where the backup has none, it is copied: what it has said is not forgotten without an error.
        """
        kept = dict(wanted)
        for name, data in wanted.items():
            if damage := self._source_files.damage(name, data):
                self._findings.append(f"{damage}. The backup keeps the file that it has" if name in known else damage)
                kept[name] = known.get(name, data)
        self._files.become(known, kept)

"""Where everything of a store is, and `store.json`, which says which pool and configuration it has.

STORE/
  store.json              format version, random id, generation, segment size, pool, configuration
  lock, locks/<stage>     held by the supervisor and the stages
  locks/topics            held while a schema is added, or a topic is trimmed or deleted
  locks/trim              held while `commitlog trim` waits for the allocator
  trim.json               what it asks for
  lanes/<number>/         a RocketMQ store root each, and our `positions`, `tmp/`, `quarantine/`
  lanes/<n>/trimmed.json  which messages of the lane were trimmed
  lanes/<n>/ends.json     where each topic of the lane ended at the last stop
  lanes/<n>/segments.json the checksums of a copy's whole segments
  logs/<stage>.log        what the stages say
  readers/<name>.json     named readers: where they are
  replicas/<name>.json    replicas: how far each has come
  replication.json        what keeps replicas from coming, or a small file from them
  forwarders/<name>.json  forwarders: what they have done
  servers/<id>.json       servers that run, and what their clients have used
  last-backup.json        when the store was backed up, and where to
  incomplete-backup.json  in place of `store.json` until a first backup is complete
  replica.json            says that the directory is a replica, of whom, and how far behind
  superseded.json         says that a copy of the store was promoted, so that this one must not run
  topics/<topic>/<n>.json version n of a topic's schema
  topics/<topic>/deleted  the last version that was deleted with the topic
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from commitlog.config import SECTIONS
from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import (
    CommitLogError,
    IllegalArgument,
    StoreDamaged,
    StoreMoved,
    StoreNotFound,
    StoreRefused,
    StoreTooNew,
    disk_error,
    is_refusal,
)
from commitlog.shm.layout import LANE_ROWS
from commitlog.text.lines import for_shell

FORMAT_VERSION = 1
STORE_FILE = "store.json"
INCOMPLETE_BACKUP_FILE = "incomplete-backup.json"
BACKUP_STARTS = "a start makes it a store of its own, and no later backup goes into it"
DELETED_FILE = "deleted"
_DEFAULTS = {name: asdict(kind()) for name, kind in SECTIONS.items()}


@dataclass(frozen=True)
class PoolPlace:
    """Which shared memory a run of the store used.

    All fields must match before a pool is adopted.
    """

    directory: str
    device: int
    boot_id: str
    uid: int
    other: dict[str, Any] = field(default_factory=dict)
    """Fields of a newer package, kept as they are."""

    @classmethod
    def from_json(cls, values: Any) -> PoolPlace:
        """The fields of a JSON value. Raises ValueError."""
        names = ("directory", "device", "boot_id", "uid")
        if not isinstance(values, dict) or not values.keys() >= {*names}:
            raise ValueError("pool")
        pool = cls(**{name: values.pop(name) for name in names}, other=values)
        if not (
            isinstance(pool.directory, str) and Path(pool.directory).is_absolute() and isinstance(pool.boot_id, str)
        ):
            raise ValueError("pool.directory or pool.boot_id")
        if not (_is_number(pool.device, 0) and _is_number(pool.uid, 0)):
            raise ValueError("pool.device or pool.uid")
        return pool

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values.pop("other"), **values}


@dataclass(frozen=True)
class StoreFacts:
    """The content of `store.json`.

    `config` is the configuration of the last start, with its defaults filled in. `other` has the
    fields of a newer package that writes the same format: they are kept as they are.
    """

    id: str
    segment_bytes: int
    generation: int = 0
    backup_generation: int | None = None
    """The generation that the store had when this directory became its backup, or None."""
    epoch: int = 0
    """The number of the last epoch of `epochs`; 0 for a store without any."""
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """The history of epochs (`disk/epochs.py`), the oldest first: `epoch` and `ends` of each."""
    lanes: dict[int, int] = field(default_factory=dict)
    """Lane → the log offset up to which it was flushed at the last stop or recovery.

    So a lane whose files are gone, with all that says how far they went, is missed.
    """
    damage: dict[int, int] = field(default_factory=dict)
    """Lane → a checksum over the notes of damage that the last start found in it.

    If it differs at a start, queue offsets may be used again: see opening/used_offsets.py.
    """
    pool: PoolPlace | None = None
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def is_backup(self) -> bool:
        """Whether this is a backup that was never started: a start raises the generation."""
        return self.pool is None and self.generation == self.backup_generation

    def to_bytes(self) -> bytes:
        values = asdict(self)
        pool = self.pool.to_json() if self.pool else None
        values = {"format": FORMAT_VERSION, **values.pop("other"), **values, "pool": pool}
        if self.backup_generation is None:  # a store that was never a backup
            del values["backup_generation"]
        for name in ("lanes", "damage"):
            if not values[name]:
                del values[name]
        if not self.epoch:  # it was never promoted, nor restored
            del values["epoch"], values["epochs"]
        return to_checked_json(values, indented=True)

    @classmethod
    def from_bytes(cls, data: bytes, file: Path) -> StoreFacts:
        """The fields of a file's bytes. Raises StoreTooNew, StoreDamaged."""
        try:
            names = ("id", "segment_bytes", "generation", "backup_generation", "epoch", "epochs", "config")
            values = from_checked_json(data, ("format", "pool", "lanes", "damage", *names))
            version = values.pop("format")
            if not _is_number(version, 1):
                raise ValueError("format")
            if version > FORMAT_VERSION:
                raise StoreTooNew(f"{file}: format {version}, this package knows {FORMAT_VERSION}: upgrade commitlog")
            pool = values.pop("pool", None)
            own = {name: values.pop(name) for name in names if name in values}
            for name in ("lanes", "damage"):
                own[name] = {int(lane): number for lane, number in values.pop(name, {}).items()}
            facts = cls(pool=None if pool is None else PoolPlace.from_json(pool), **own, other=values)
            facts._check()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreDamaged(
                f"{file}: not a store.json of ours ({error}); the messages under lanes/ are readable without it: "
                f"commitlog dump {for_shell(file.parent)}/lanes/0"
            ) from error
        return facts

    def _check(self) -> None:
        size = self.segment_bytes
        if not (isinstance(self.id, str) and re.fullmatch("[0-9a-f]{32}", self.id)):
            raise ValueError("id")
        if not (_is_number(size, 1 << 12) and size <= 1 << 30 and size & (size - 1) == 0):
            raise ValueError("segment_bytes")
        if not (_is_number(self.generation, 0) and self.generation < 1 << 63):
            raise ValueError("generation")
        if not (self.backup_generation is None or _is_number(self.backup_generation, 0)):
            raise ValueError("backup_generation")
        if not (_is_number(self.epoch, 0) and isinstance(self.epochs, list)):
            raise ValueError("epoch")
        if not all(_is_number(one["epoch"], 1) and isinstance(one["ends"], dict) for one in self.epochs):
            raise ValueError("epochs")
        if not all(0 <= lane < LANE_ROWS and _is_number(end, 1) for lane, end in self.lanes.items()):
            raise ValueError("lanes")
        if not all(0 <= lane < LANE_ROWS and _is_number(stamp, 0) for lane, stamp in self.damage.items()):
            raise ValueError("damage")
        if not isinstance(self.config, dict):
            raise ValueError("config")
        for name, defaults in _DEFAULTS.items():
            section = self.config.get(name, {})
            if not isinstance(section, dict):
                raise ValueError(f"config.{name}")
            for key, default in defaults.items():
                if type(section.get(key, default)) is not type(default):
                    raise ValueError(f"config.{name}.{key}")


def _is_number(value: object, least: int) -> bool:
    """Whether a value is a whole number from `least` on.

    True and 1.0 are not, although Python takes them for 1.
    """
    return type(value) is int and value >= least


def boot_id() -> str:
    """The random id of this boot. A pool of another boot can't be there any more."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def new_store_id() -> str:
    return os.urandom(16).hex()


_URL = re.compile(rb"commitlog(\+tls)?:/", re.IGNORECASE)
"""How the URL of a served store begins. pathlib makes one slash of two."""


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path that a user gave.

    Raises IllegalArgument for a value that is not a path, also for the URL of a served store, and
    StoreRefused for one that can't be a file name.
    """
    try:
        name = os.fsencode(path)
    except TypeError:
        raise IllegalArgument(f"a path is a str or a pathlib.Path, not {type(path).__name__}") from None
    except UnicodeEncodeError:
        raise StoreRefused(
            f"{str(path)!a}: half a surrogate pair is not a character of a path; check where it comes from"
        ) from None
    if b"\0" in name:
        raise StoreRefused(f"{str(path)!a}: a path has no NUL in it; check where it comes from")
    if _URL.match(name):
        url = re.sub(":/+", "://", os.fsdecode(name), count=1)
        raise IllegalArgument(
            f"{url}: this takes a directory of this machine. The URL of a served store is for Spark, "
            f"commitlog.read, Reader, RemoteProducer, and the commands cat, topics, stat and produce"
        )
    return Path(os.fsdecode(name)).absolute()


class StoreDirectory:
    """Paths and small files of one store. It holds nothing open.

    Raises IllegalArgument, StoreRefused.
    """

    def __init__(self, path: str | os.PathLike[str], channel: FileChannel = DISK) -> None:
        self.path = checked_path(path)
        self.channel = channel
        self.file = self.path / STORE_FILE
        self.incomplete_backup_file = self.path / INCOMPLETE_BACKUP_FILE
        self.backup_note_file = self.path / "last-backup.json"
        self.replica_file = self.path / "replica.json"
        self.superseded_file = self.path / "superseded.json"
        self.lock_file = self.path / "lock"
        self.lanes_directory = self.path / "lanes"
        self.logs_directory = self.path / "logs"
        self.readers_directory = self.path / "readers"
        self.forwarders_directory = self.path / "forwarders"
        self.servers_directory = self.path / "servers"
        self.replicas_directory = self.path / "replicas"
        self.replication_file = self.path / "replication.json"
        self.topics_directory = self.path / "topics"
        self.topics_lock_file = self.path / "locks" / "topics"
        self.trim_file = self.path / "trim.json"
        self.trim_lock_file = self.path / "locks" / "trim"

    def stage_lock_file(self, stage: str) -> Path:
        return self.path / "locks" / stage

    def lane_directory(self, number: int) -> LaneDirectory:
        return LaneDirectory(self.lanes_directory / str(number), number)

    def lane_numbers(self) -> list[int]:
        """The lanes on disk, ascending.

        Foreign names are passed over, and so are numbers that no lane can have. Raises StoreDamaged
        if something else is in the place of the directory `lanes`.
        """
        try:
            names = self.channel.list(self.lanes_directory)
        except NotADirectoryError:
            raise StoreDamaged(f"{self.lanes_directory} is no directory; put the one that was there back") from None
        numbers = (int(name) for name in names if name.isdecimal() and str(int(name)) == name)
        return sorted(number for number in numbers if number < LANE_ROWS)

    def load(self) -> StoreFacts:
        """Reads `store.json`.

        Raises StoreNotFound, StoreRefused, StoreDamaged, StoreTooNew, DiskError.
        """
        self.check_path()
        try:
            data = self.channel.read_file(self.file)
        except FileNotFoundError:
            if self.incomplete_backup_file.exists():
                raise StoreRefused(
                    f"{self.path}: a first backup that is not complete; run the same `commitlog backup` again, or remove it"
                ) from None
            raise StoreNotFound(f"{self.path}: {self._why_not_found()}") from None
        except OSError as error:
            if is_refusal(error):
                raise disk_error(error.errno or errno.EIO, f"{self.file}: reading it") from error
            raise StoreRefused(f"{self.file}: {error.strerror}; check owner and permissions") from error
        return StoreFacts.from_bytes(data, self.file)

    def _why_not_found(self) -> str:
        if (self.path / "commitlog").is_dir():
            return "a RocketMQ store root and no store of ours; `commitlog cat`, `dump` and `verify` read it"
        return (
            f"there is no store here; check the path, or make a new one with `commitlog run {for_shell(self.path)}` or "
            f"commitlog.Store.open(path)"
        )

    def file_stamp(self) -> tuple[int, int] | None:
        """A value that differs once `store.json` was replaced; None if it can't be looked at."""
        try:
            facts = os.stat(self.file)
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns

    def save(self, facts: StoreFacts) -> None:
        """Replaces `store.json`, durably."""
        self.channel.replace_file(self.file, facts.to_bytes())

    def check_path(self) -> None:
        """Raises StoreRefused for a path that can't be a store.

        That is a file, a symbolic link at the last step, or a path that this user may not look at.
        """
        try:
            facts = os.lstat(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreRefused(f"{self.path}: {error.strerror}; choose another path or fix its permissions") from error
        if stat.S_ISLNK(facts.st_mode):
            raise StoreRefused(f"{self.path} is a symbolic link; give the directory it points to")
        if not stat.S_ISDIR(facts.st_mode):
            raise StoreRefused(f"{self.path} is a file; a store is a directory: choose another path")

    def check_owner(self) -> None:
        """Raises StoreRefused for another user's store, and for one that others may write to.

        Root is refused too, because links in the store could lead root astray. A group may write
        where the group is the user's own and nobody else is a member: many systems give new
        directories to a group of this kind.
        """
        try:
            facts = os.lstat(self.path)
        except FileNotFoundError:
            raise StoreNotFound(f"{self.path}: {self._why_not_found()}") from None
        if facts.st_uid != os.geteuid():
            raise StoreRefused(
                f"{self.path} belongs to user {facts.st_uid}, not to user {os.geteuid()}: run as its owner, or chown it"
            )
        if facts.st_mode & stat.S_IWOTH or (facts.st_mode & stat.S_IWGRP and not _is_private_group(facts.st_gid)):
            raise StoreRefused(
                f"{self.path} may be written to by others (mode {stat.S_IMODE(facts.st_mode):o}), who could put their files "
                f"in it: chmod go-w it"
            )


def _is_private_group(number: int) -> bool:
    """Whether a group is this user's own: it has the same name and no other member."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return user.pw_gid == number and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@dataclass(frozen=True)
class LaneDirectory:
    """Paths of one lane: a RocketMQ store root with our own files beside RocketMQ's."""

    path: Path
    number: int

    @property
    def commitlog(self) -> Path:
        return self.path / "commitlog"

    @property
    def consumequeue(self) -> Path:
        return self.path / "consumequeue"

    def queue_path(self, topic: str) -> Path:
        """The consume queue of a topic: `consumequeue/<topic>/<lane>`."""
        return self.consumequeue / topic / str(self.number)

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def positions_file(self) -> Path:
        return self.path / "positions"

    @property
    def trimmed_file(self) -> Path:
        return self.path / "trimmed.json"

    @property
    def ends_file(self) -> Path:
        return self.path / "ends.json"

    @property
    def sums_file(self) -> Path:
        return self.path / "segments.json"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "checkpoint"

    @property
    def abort_file(self) -> Path:
        return self.path / "abort"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    def misplaced(self) -> list[Path]:
        """Things in the place of directories beside the log. No start takes such a lane."""
        places = (self.consumequeue, self.tmp, self.quarantine)
        return [path for path in places if os.path.lexists(path) and not path.is_dir()]

    def segment_path(self, start: int) -> Path:
        """The segment file that begins at a log offset."""
        return self.commitlog / segment_name(start)


def segment_name(start: int) -> str:
    """20 digits: the offset of a file's first byte, as RocketMQ names its mapped files."""
    return f"{start:020d}"


def is_segment_name(name: str) -> bool:
    """Whether a name is 20 digits of ASCII.

    `int` takes digits of every script, but a name with other digits is a foreign file's.
    """
    return len(name) == 20 and name.isascii() and name.isdecimal()


def store_killed(path: Path | str) -> str:
    """Says that a store's supervisor was killed, and how to go on."""
    return f"it was killed, or its machine went down: `commitlog run {for_shell(path)}` continues it"


def is_backup(directory: StoreDirectory) -> bool:
    """Whether there is a backup that was never started. False where `store.json` can't be read."""
    try:
        return directory.load().is_backup
    except CommitLogError:
        return False


def refuse_backup(directory: StoreDirectory) -> None:
    """Raises StoreRefused for a backup that was never started, for who would start it on the way.

    Nothing is said of a path that has no store, or a damaged one: a start does.
    """
    if is_backup(directory):
        raise StoreRefused(
            f"{directory.path} is a backup: {BACKUP_STARTS}. Copy it with `commitlog backup {for_shell(directory.path)} "
            f"DEST` and use the copy, or start it with `commitlog run {for_shell(directory.path)} --yes`"
        )


def store_moved(path: Path, pool: Path) -> StoreMoved:
    """Makes the error of a running store whose path leads to another directory, or to none."""
    return StoreMoved(
        f"{path} was renamed, removed or replaced while its store ran, so the store stops: what was accepted is in the pool "
        f"{pool}; move the directory back, or start the store at its new place"
    )

"""Every error of the project, by name, each with a hint what to do.

All of them are subclasses of `CommitLogError`, so one `except` catches the project's own and
nothing else. The text of an error is one line: what is wrong, then the way out. `error.status` is
RocketMQ's name for what became of the message. A stage that the disk refuses publishes its errno in
shared memory (a *fault*), and a producer that waits raises the class that stands for it.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from commitlog.status import AppendMessageStatus, PutMessageStatus

if TYPE_CHECKING:
    from commitlog.receipt import Receipt


class CommitLogError(Exception):
    """Base of every error here.

    Attributes: `status`, the PutMessageStatus of a message that `send` or `wait` raised it for;
    `append_status`, what the append itself came to (AppendMessageStatus); `receipt`, that of a
    message which `send` or `send_batch` had accepted before it raised this: wait on with it, to
    send the message again would double it. None where nothing was accepted.
    """

    status = PutMessageStatus.UNKNOWN_ERROR
    append_status = AppendMessageStatus.UNKNOWN_ERROR
    receipt: Receipt | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, where no producer is that a receipt could ask: it stays here."""
        return type(self), self.args, {**vars(self), "receipt": None}


# ---- the store ---------------------------------------------------------------------------------


class StoreNotFound(CommitLogError):
    """There is no store at the path."""


class StoreDamaged(CommitLogError):
    """`store.json`, or the layout of the directory, is not what a store of ours looks like."""


class StoreTooNew(CommitLogError):
    """The store was written by a newer version of this package."""


class StoreRefused(CommitLogError):
    """The path can't be used as a store: a file, a symbolic link, another user's, no permission."""


class StoreRunning(CommitLogError):
    """The stages of this store are running already, under another owner."""


class StoreNotRunning(CommitLogError):
    """The stages of this store are not running, so nothing can be sent."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class StoreStopped(CommitLogError):
    """The store was closed under an attached producer. What it had sent before is drained first."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class StoreMoved(StoreStopped):
    """The store's directory was renamed, removed or replaced while the store ran. What was accepted
    is in its pool.
    """


class StageFailed(CommitLogError):
    """A stage process did not start, or was given up after too many restarts."""


class RecoveryError(CommitLogError):
    """A lane can't be opened without losing data; it was left as it is."""


class PoolNotAdopted(CommitLogError):
    """A pool that may hold unflushed data does not belong to this store's last run. It was left
    alone.
    """


class NotEnoughSharedMemory(CommitLogError):
    """The shared-memory file system can't hold what is asked of it."""


class UnsafePath(CommitLogError):
    """A directory, pool or socket that is a symbolic link or belongs to somebody else."""


class IllegalArgument(CommitLogError, TypeError, ValueError):
    """A call was given an argument of a wrong type or value. Nothing was done.

    Python's own errors for that are among its bases, so that whoever catches them catches this.
    """


class ConfigError(CommitLogError):
    """A configuration file or value is wrong: names key, value, file and what is allowed."""


# ---- producers ---------------------------------------------------------------------------------


class ProducerError(CommitLogError):
    """Base of what `Producer` raises."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class NoFreeLane(ProducerError):
    """All lanes are leased, and the store may have no more of them."""


class NoBufferAvailable(ProducerError):
    """Back-pressure: no write buffer came free within the limit. The message was not accepted."""

    status = PutMessageStatus.OS_PAGE_CACHE_BUSY


class ProducerClosed(ProducerError):
    """The producer was closed before."""


class ForkedProducer(ProducerError):
    """The producer was made before a fork; only the parent may use it."""


class ConcurrentUse(ProducerError):
    """A call of a producer inside a call of the same one, by a signal handler or a finalizer.
    Nothing was done.
    """


class WaitTimeout(ProducerError):
    """A `wait`, a `flush`, or a `send` in a store with SYNC_FLUSH did not come through in time.

    Nothing is lost: the messages are in the log and may still become flushed, so to send them again
    would double them.
    """

    status = PutMessageStatus.FLUSH_DISK_TIMEOUT
    append_status = AppendMessageStatus.PUT_OK


class NotCopied(ProducerError, TypeError):
    """What holds a lane or a store can't be copied or pickled: a copy that goes would let go of
    what the original has.
    """


def refuse_copy(original: object, _protocol: SupportsIndex) -> NoReturn:
    """`__reduce_ex__` of such a class: `copy` and `pickle` come here. Raises NotCopied."""
    name = type(original).__name__
    raise NotCopied(f"a {name} can't be copied or pickled: give others its path, with which they make their own")


# ---- messages ----------------------------------------------------------------------------------


class RecordError(CommitLogError):
    """Base of what is wrong with a single message."""

    status = PutMessageStatus.MESSAGE_ILLEGAL


class IllegalTopic(RecordError):
    """A topic outside RocketMQ's rule: `[%|A-Za-z0-9_.-]+`, 1 to 255 bytes, not `.` or `..`."""


class IllegalProperty(RecordError):
    """A key, tag or property that can't be stored."""


class IllegalMessage(RecordError, IllegalArgument):
    """A body that is no bytes, or a number that a record has no place for."""


class MessageTooLarge(RecordError):
    """MESSAGE_SIZE_EXCEEDED: the record is larger than the store's largest message."""

    append_status = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED


class PropertiesTooLarge(RecordError):
    """PROPERTIES_SIZE_EXCEEDED: the properties take more than 32,767 bytes."""

    status = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    append_status = AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED


class MissingCodec(RecordError):
    """A compressed body needs a library that is not installed."""


class CorruptRecord(RecordError):
    """Bytes that are no record of their place.

    Attributes: `file` (path or None), `offset` (bytes, physical), `reason`.
    """

    def __init__(self, reason: str, offset: int = -1, file: str | None = None) -> None:
        self.reason, self.offset, self.file = reason, offset, file
        place = f" at offset {offset}" if offset >= 0 else ""
        super().__init__(f"{file or 'record'}{place}: {reason}")


class DamagedFile(CommitLogError):
    """A segment, consume queue or checkpoint file has a size or a name it can't have."""


# ---- the disk ----------------------------------------------------------------------------------


class DiskError(CommitLogError):
    """The operating system refused to read, write or sync. Its status is that of a RocketMQ whose
    disk is full or broken.
    """

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class DiskFull(DiskError):
    """ENOSPC. Heals by itself as soon as there is space; what was accepted stays in the pool."""


class QuotaExceeded(DiskError):
    """EDQUOT. Heals by itself as soon as the quota allows."""


class DiskInputOutput(DiskError):
    """EIO: the device failed to write or to sync. The data is still in the pool and is written
    again.
    """


class AllocateTimeout(DiskError):
    """CREATE_MAPPED_FILE_FAILED: the allocator did not make the next segment in time."""

    status = PutMessageStatus.CREATE_MAPPED_FILE_FAILED


class LaneDamaged(DiskError):
    """What a failed sync lost can't be written again, because the file no longer holds it. The lane
    stops; others go on.

    The next start of the store keeps what is whole of it, and names what is lost.
    """


class PoolUnlinked(DiskError):
    """Files of the pool, or segments, were removed under the running store (RemoveIPC, a cleaner):
    stop it, put them back.
    """


class NotEnoughDescriptors(DiskError):
    """The process, or the machine, has no file descriptor left."""


# ---- readers -----------------------------------------------------------------------------------


class ReaderError(CommitLogError):
    """Base of what readers raise."""


class UnknownTopic(ReaderError):
    """The topic is not in the store."""


class BadStart(ReaderError):
    """A start that is none of earliest, latest, last N, a time or an offset."""


class OffsetOutOfRange(ReaderError):
    """The offset is before the first message kept, or beyond the last."""


class OptionError(ReaderError):
    """An option of the Spark source or sink, or of a Reader, is unknown, has a bad value, or can't
    be had at this path.
    """


class ReaderInUse(ReaderError):
    """Another process, or another reader in this one, has the registered name."""


class DataLoss(ReaderError):
    """Messages that were asked for are gone (retention, another store at the same path)."""


class JavaNotFound(CommitLogError):
    """PySpark needs Java 17 or newer and none was found."""


class ReadingWarning(UserWarning):
    """A reader found a store in a state that `commitlog run STORE` mends; the text says what is
    read meanwhile.
    """


class IngestError(CommitLogError):
    """The main job can't start or go on: names what and the way out."""


FAULT_BY_ERRNO: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: QuotaExceeded,
    errno.EIO: DiskInputOutput,
    errno.ETIMEDOUT: AllocateTimeout,
    errno.ENOENT: PoolUnlinked,
    errno.EILSEQ: LaneDamaged,
    errno.EMFILE: NotEnoughDescriptors,
    errno.ENFILE: NotEnoughDescriptors,
}


def store_moved(path: Path, pool: Path) -> StoreMoved:
    """The named error of a running store whose path leads to another directory, or to none."""
    return StoreMoved(
        f"{path} was renamed, removed or replaced while its store ran, so the store stops: what was accepted is in the pool "
        f"{pool}; move the directory back, or start the store at its new place"
    )


def refusal(error: OSError, path: Path) -> CommitLogError:
    """The named error of a start that the system has refused."""
    place = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return disk_error(error.errno, f"{place}: starting the store")
    return StoreRefused(f"{place}: {error.strerror or error}; check the file system, its owner and permissions")


def disk_error(code: int, doing: str) -> DiskError:
    """The named error for an errno that a stage met while `doing` something (also read back from a
    fault word).
    """
    kind = FAULT_BY_ERRNO.get(code, DiskError)
    name = errno.errorcode.get(code, str(code))
    hint = (kind.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return kind(f"{doing}: {name} ({hint})")

"""Every error of the project, by name, each with a hint what to do.

All of them are subclasses of `CommitLogError`, so one `except` catches the project's own errors
and nothing else. The text of an error is one line: what is wrong, then the way out. `error.status`
is RocketMQ's name for what became of the message.

A stage that the disk refuses publishes its errno in shared memory (a *fault*). A producer that
waits raises the class that stands for it: see `FAULT_BY_ERRNO`.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

from commitlog.status import AppendMessageStatus, PutMessageStatus

if TYPE_CHECKING:
    from commitlog.receipt import Receipt


class CommitLogError(Exception):
    """Base of every error here.

    `status` is what became of the message that `send` or `wait` raised it for, and `append_status`
    what became of the append itself. `receipt` is None where nothing was accepted. Otherwise `send`
    or `send_batch` had accepted the message before it raised this: wait on with the receipt,
    because sending the message again would double it. `rows_sent` says how many rows `send_rows`
    had sent before it raised this.
    """

    status = PutMessageStatus.UNKNOWN_ERROR
    append_status = AppendMessageStatus.UNKNOWN_ERROR
    receipt: Receipt | None = None
    rows_sent: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the error without its receipt, which waits in this process only."""
        return type(self), self.args, {**vars(self), "receipt": None}


# ---- the store ---------------------------------------------------------------------------------


class StoreNotFound(CommitLogError):
    """There is no store at the path."""


class StoreDamaged(CommitLogError):
    """`store.json`, or the layout of the directory, is not what a store of ours looks like."""


class StoreTooNew(CommitLogError):
    """The store was written by a newer version of this package."""


class StoreRefused(CommitLogError):
    """The path can't be used as a store: it is a file, a link, somebody else's or not permitted."""


class BackupRefused(CommitLogError):
    """A backup can't go to its destination, which was left as it is.

    The destination is something else, belongs to another store, or is newer than the store.
    """


class ReplicaRefused(CommitLogError):
    """A copy can't follow this store, be promoted, or be forgotten. All was left as it was.

    It is of another store, has gone on by itself, is of an older epoch, or is too far behind. To be
    forgotten, it must be known, and not connected.
    """


class StoreSuperseded(CommitLogError):
    """A copy of this store was promoted, so this store must not go on.

    What only this store has is still in it: `commitlog rejoin` puts that aside.
    """


class ReplicationRefused(CommitLogError):
    """The address, the certificate or the protocol of a replication is not usable."""


class StoreRunning(CommitLogError):
    """The stages of this store are running already, under another owner."""


class StoreNotRunning(CommitLogError):
    """The stages of this store are not running, so nothing can be sent."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class StoreStopped(CommitLogError):
    """The store was closed while a producer was attached. What was sent before is drained first."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class MessagesLost(StoreStopped):
    """A start of the store found that accepted messages of a lane are lost.

    Somebody removed the shared memory of a killed store, or a sync has failed. A receipt raises
    this. Its message may be one of them: look whether it is in the log before you send it again.
    """


class StoreMoved(StoreStopped):
    """The store's directory was renamed, removed or replaced while the store ran.

    What was accepted is in its pool.
    """


class StageFailed(CommitLogError):
    """A stage process did not start, or was given up after too many restarts."""


class RecoveryError(CommitLogError):
    """A lane can't be opened without losing data; it was left as it is."""


class PoolNotAdopted(CommitLogError):
    """A pool that may hold unflushed data does not belong to this store's last run.

    The pool was left as it is.
    """


class NotEnoughSharedMemory(CommitLogError):
    """The file system of shared memory has no room for what is asked of it."""


class NotEnoughThreads(CommitLogError, RuntimeError):
    """The system gives this process no more threads, or the interpreter ends.

    Callbacks, `await` and remote producers need one. It is a RuntimeError as well, as Python's own
    is. A message whose receipt was asked for a callback is in the log.
    """


class UnsafePath(CommitLogError):
    """A directory, pool or socket that is a symbolic link or belongs to somebody else."""


class NativeCoreMissing(CommitLogError, ImportError):
    """COMMITLOG_NATIVE=on, and the native core is not built or is of another version."""


class MissingPackage(CommitLogError, ImportError):
    """A package that is needed for this is not installed."""


class IllegalArgument(CommitLogError, TypeError, ValueError):
    """A call was given an argument of a wrong type or value. Nothing was done.

    It is a TypeError and a ValueError as well, so code that catches Python's own errors catches it.
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
    """A signal handler or a finalizer called a producer inside a call of the same producer.

    The inner call has done nothing.
    """


class WaitTimeout(ProducerError):
    """The level that was waited for was not reached in time.

    `wait`, `flush`, and `send` in a store with SYNC_FLUSH raise it. Nothing is lost: the messages
    are in the log and may still become flushed. Sending them again would double them.
    """

    status = PutMessageStatus.FLUSH_DISK_TIMEOUT
    append_status = AppendMessageStatus.PUT_OK


class ReplicationTimeout(WaitTimeout):
    """A message is flushed here, and too few replicas have it in time. They may still get it.

    RocketMQ's FLUSH_SLAVE_TIMEOUT. Sending the message again would double it.
    """

    status = PutMessageStatus.FLUSH_SLAVE_TIMEOUT


class ReplicaNotAvailable(ProducerError):
    """A message is flushed here, and fewer replicas are in sync than `min_in_sync`.

    RocketMQ's SLAVE_NOT_AVAILABLE. A replica that comes back gets the message, so sending it again
    would double it.
    """

    status = PutMessageStatus.SLAVE_NOT_AVAILABLE
    append_status = AppendMessageStatus.PUT_OK


class NotCopied(ProducerError, TypeError):
    """An object that belongs to its process was copied or pickled.

    A copy of a producer, a store or a reader would release what the original holds. A receipt asks
    the producer's own process how far its message has come.
    """


def refuse_copy(original: object, _protocol: SupportsIndex) -> NoReturn:
    """Serves as `__reduce_ex__` of such a class, for `copy` and `pickle`: raises NotCopied."""
    name = type(original).__name__
    raise NotCopied(f"a {name} can't be copied or pickled: give others its path, with which they make their own")


# ---- messages ----------------------------------------------------------------------------------


class RecordError(CommitLogError):
    """Base of what is wrong with a single message."""

    status = PutMessageStatus.MESSAGE_ILLEGAL


class IllegalTopic(RecordError):
    """A topic outside RocketMQ's rule: `[%|A-Za-z0-9_.-]+`, 1 to 255 bytes, not `.` or `..`."""


class IllegalProperty(RecordError):
    """A key, tags or a header that can't be stored as a property of the record."""


class IllegalMessage(RecordError, IllegalArgument):
    """A value that is not bytes, or a number that has no place in a record."""


class IllegalRow(RecordError, IllegalArgument):
    """A row does not fit the schema of its topic. `row` is its number among those given, or −1."""

    def __init__(self, text: str, row: int = -1) -> None:
        super().__init__(text)
        self.row = row


class MessageTooLarge(RecordError):
    """MESSAGE_SIZE_EXCEEDED: the record is larger than the store's largest message."""

    append_status = AppendMessageStatus.MESSAGE_SIZE_EXCEEDED


class PropertiesTooLarge(RecordError):
    """PROPERTIES_SIZE_EXCEEDED: the properties take more than 32,767 bytes."""

    status = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    append_status = AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED


class MissingCodec(RecordError):
    """A compressed value needs a library that is not installed."""


class CorruptRecord(RecordError):
    """The bytes at a place of a file are not the record that belongs there.

    `file` is a path or None, `offset` counts the bytes of the log, and `reason` says what is wrong.
    """

    def __init__(self, reason: str, offset: int = -1, file: str | None = None) -> None:
        self.reason, self.offset, self.file = reason, offset, file
        place = f" at offset {offset}" if offset >= 0 else ""
        super().__init__(f"{file or 'record'}{place}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles what the text is made of: made of the text again, it would be another."""
        kind, _, state = super().__reduce__()
        return kind, (self.reason, self.offset, self.file), state


class DamagedFile(CommitLogError):
    """A segment, consume queue or checkpoint file has a size or a name it can't have."""


# ---- typed topics ------------------------------------------------------------------------------


class SchemaError(CommitLogError, ValueError):
    """A schema that no topic can have: what declares it is wrong, or Spark has no such type."""


class SchemaConflict(SchemaError):
    """The topic has another schema, and messages of that could not be read as the new one."""


class NoSchema(CommitLogError):
    """The topic has no schema, so it has values (bytes) and no rows."""


class ValuesRefused(RecordError):
    """The topic has a schema, so it has rows and takes no values (bytes)."""


# ---- the disk ----------------------------------------------------------------------------------


class DiskError(CommitLogError):
    """The operating system refused to read, write or sync.

    `status` is that of a RocketMQ whose disk is full or broken.
    """

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE
    hint: ClassVar[str] = "check the disk, its file system and the kernel's log"
    """The way out, for the text of the error."""


class DiskFull(DiskError):
    """ENOSPC: the disk is full. What was accepted stays in the pool."""

    hint = "writing goes on by itself as soon as there is space; what was accepted stays in the pool"


class QuotaExceeded(DiskError):
    """EDQUOT: the user's quota is used up. What was accepted stays in the pool."""

    hint = "writing goes on by itself as soon as the quota allows it; what was accepted stays in the pool"


class DiskInputOutput(DiskError):
    """EIO: the device failed to read, to write or to sync."""

    hint = "the device failed, see the kernel's log; a write from the pool is repeated until it succeeds"


class AllocateTimeout(DiskError):
    """CREATE_MAPPED_FILE_FAILED: the allocator did not make the next segment in time."""

    status = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
    hint = "the allocator did not make the next segment in time; see logs/allocator.log of the store"


class LaneDamaged(DiskError):
    """A failed sync lost data of a lane that can't be written again, because only the file had it.

    The lane stops, and the others go on. The next start of the store keeps what is whole of the
    lane, and names what is lost.
    """

    hint = "a failed sync lost data that only the file had; the next start of the store keeps what is whole"


class PoolUnlinked(DiskError):
    """ENOENT: somebody removed files of the store: of its pool, or segments."""

    hint = "files of the store were removed (by hand, a cleaner): stop it if it runs, put them back, start it again"


class NotEnoughDescriptors(DiskError):
    """The process, or the machine, has no file descriptor left."""

    hint = "no file descriptor is left; raise the limit (ulimit -n) or close files"


class NotEnoughMemory(DiskError):
    """ENOMEM: the system gives no memory: to a process of ours, or for its own tables."""

    hint = "the system gives no memory; free some, or raise the limit (ulimit -v, the container's memory)"


class FileSizeLimited(DiskError):
    """EFBIG: a process may not write files so large; those in shared memory count, too."""

    hint = "this process may write no file so large; raise the limit (ulimit -f)"


# ---- readers -----------------------------------------------------------------------------------


class ReaderError(CommitLogError):
    """Base of what readers raise."""


class UnknownTopic(ReaderError):
    """The topic is not in the store."""


class BadStart(ReaderError):
    """A start that is none of earliest, latest, last N, a time or an offset."""


class OffsetOutOfRange(ReaderError):
    """The offset is before the first message kept, or beyond the last."""


class TopicInUse(ReaderError):
    """What would be trimmed or deleted is still needed by a named reader, or by a producer."""


class OptionError(ReaderError):
    """An option of Spark's source or sink, or of a Reader, is unknown, wrong or impossible here."""


class MalformedValue(ReaderError):
    """A value is not the JSON that a query with mode=FAILFAST expects."""


class ReaderInUse(ReaderError):
    """Another process, or another reader of this process, holds the reader's name."""


class DataLoss(ReaderError):
    """Messages that were asked for are gone (retention, another store at the same path)."""


# ---- served stores ------------------------------------------------------------------------------


class ServerError(CommitLogError):
    """Base of what a client of a served store raises, and of answers that are none of ours."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class ServerUnavailable(ServerError):
    """No server answers at the address, or it went away in the middle of a stream."""


class ServerBusy(ServerError):
    """The server has as many streams or calls as it takes, of all clients or of this one."""


class AccessDenied(ServerError):
    """The server does not know the client's token, or the token is not for this."""


class CertificateRefused(ServerError):
    """Server and client can't agree on TLS: a certificate is foreign, expired, wrong or missing."""


class ServingRefused(CommitLogError):
    """A store can't be served as it was asked for: unsafe, or files that can't be used."""


class ForwardError(CommitLogError):
    """A forwarder can't do what it was asked for; base of what `commitlog forward` raises."""


class TargetUnavailable(ForwardError):
    """No broker of the Kafka cluster answers."""


class TargetRefused(ForwardError):
    """The Kafka cluster does not know the forwarder's credentials, or gives it too few rights."""


class TargetChanged(ForwardError):
    """A forwarder that has a position finds another cluster, or a topic that was removed there."""


class TopicRefused(ForwardError):
    """A topic can't be forwarded: Kafka refuses its name, its partitions, or the user.

    A forwarder names it and goes on with the others. It is raised where there are none, and at the
    end of a run that ends by itself.
    """


class MessageRefused(ForwardError):
    """The Kafka cluster does not take a message, which is too large for it or not allowed."""


class ForwarderFenced(ForwardError):
    """Another forwarder of the same name and store has taken over."""


class JavaNotFound(CommitLogError):
    """PySpark needs Java 17 or newer and none was found."""


class ReadingWarning(UserWarning):
    """A reader found a store in a state that `commitlog run STORE` mends.

    The text says what is read meanwhile.
    """


class IngestError(CommitLogError):
    """The main job can't start or go on."""


class InputError(CommitLogError):
    """An input file is no text or can't be read, or a line of it can't be sent."""


FAULT_BY_ERRNO: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: QuotaExceeded,
    errno.EIO: DiskInputOutput,
    errno.ETIMEDOUT: AllocateTimeout,
    errno.ENOENT: PoolUnlinked,
    errno.EILSEQ: LaneDamaged,
    errno.EMFILE: NotEnoughDescriptors,
    errno.ENFILE: NotEnoughDescriptors,
    errno.EFBIG: FileSizeLimited,
    errno.ENOMEM: NotEnoughMemory,
}


_REFUSALS = {*FAULT_BY_ERRNO, errno.EROFS, errno.EAGAIN} - {errno.ENOENT, errno.EILSEQ}


def is_refusal(error: BaseException) -> bool:
    """Whether the system refuses something that it may give later: space, descriptors, memory."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in _REFUSALS


def how_to_install(extra: str, *packages: str) -> str:
    """The way out where packages are missing, in a checkout and in an installed release alike."""
    return f"`pip install {' '.join(packages)}` (of the extra pyspark-commitlog[{extra}])"


def store_killed(path: Path | str) -> str:
    """What has become of a store whose supervisor was killed, and the way out."""
    return f"it was killed, or its machine went down: `commitlog run {path}` continues it"


def store_moved(path: Path, pool: Path) -> StoreMoved:
    """The error of a running store whose path leads to another directory, or to none."""
    return StoreMoved(
        f"{path} was renamed, removed or replaced while its store ran, so the store stops: what was accepted is in the pool "
        f"{pool}; move the directory back, or start the store at its new place"
    )


def refusal(error: OSError, path: Path, doing: str = "starting the store") -> CommitLogError:
    """The error of a start, or of something else with a store, that the system has refused."""
    place = error.filename or path
    if error.errno and error.errno in FAULT_BY_ERRNO and error.errno != errno.ENOENT:
        return disk_error(error.errno, f"{place}: {doing}")
    return StoreRefused(f"{place}: {error.strerror or error}; check the file system, its owner and permissions")


def disk_error(code: int, doing: str) -> DiskError:
    """The error for an errno that a stage met while `doing` something, or that a fault word has."""
    kind = FAULT_BY_ERRNO.get(code, DiskError)
    name = errno.errorcode.get(code, str(code))
    return kind(f"{doing}: {name} ({kind.hint})")


NOT_A_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENODEV, errno.ENOTDIR, errno.ENXIO)
"""What the system says where a directory, a link or a pipe is in the place of a file, or a file in
that of a directory.
"""


def read_error(error: OSError, path: object) -> CommitLogError:
    """The error where the system refused to read something below `path`."""
    place = f"{error.filename or path}: {error.strerror}"
    if error.errno in NOT_A_FILE:
        return DamagedFile(f"{place}; move away what is there, and put back what was there before")
    return disk_error(error.errno or errno.EIO, f"{place}, while it was read")


@contextlib.contextmanager
def named_while_reading(path: object) -> Iterator[None]:
    """Raises what `read_error` makes of an OSError within a with-block."""
    try:
        yield
    except OSError as error:
        raise read_error(error, path) from error


def index_error(error: DamagedFile | OSError) -> CommitLogError:
    """The error where topics can't be told, because what tells of them is damaged."""
    if isinstance(error, DamagedFile):
        return error
    place = error.filename or "the index"
    return disk_error(error.errno or errno.EIO, f"{place}: {error.strerror}, while topics were looked for")

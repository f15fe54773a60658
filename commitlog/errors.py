"""Every error of the project, by name, each with a hint what to do.

All of them are subclasses of `CommitLogError`, so one `except` catches the project's own errors and
nothing else. The text of an error is one line: what is wrong, then the way out. `error.status` is
RocketMQ's name for what became of the message.

If the disk refuses a stage, the stage publishes the errno in shared memory: a *fault*. A producer
that waits raises the class of that errno: see `FAULT_BY_ERRNO`. What names an errno is in this
module too: a program that has loaded it needs no other file to say that the system refuses.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

from commitlog.status import AppendMessageStatus, PutMessageStatus

if TYPE_CHECKING:
    from commitlog.receipt import Receipt


class CommitLogError(Exception):
    """Base of every error here.

    `status` says what became of the message for which `send` or `wait` raised the error, and
    `append_status` says what became of the append itself. `receipt` is None if nothing was
    accepted. Otherwise `send` or `send_batch` had accepted the message before the error: wait on
    with the receipt, because sending the message again would double it. `rows_sent` says how many
    rows `send_rows` had sent before the error.
    """

    status = PutMessageStatus.UNKNOWN_ERROR
    append_status = AppendMessageStatus.UNKNOWN_ERROR
    receipt: Receipt | None = None
    rows_sent: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the error without its receipt, which works only in its own process."""
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
    """A backup can't be made at its destination. The destination was left as it is.

    The destination is something else, belongs to another store, or is newer than the store.
    """


class ReplicaRefused(CommitLogError):
    """A copy can't follow this store, be promoted, or be forgotten. All was left as it was.

    The copy is of another store, has gone on by itself, is of an older epoch, or is too far behind.
    A replica can be forgotten only if the store knows it and it is not connected.
    """


class StoreSuperseded(CommitLogError):
    """A copy of this store was promoted, so this store must not go on.

    Messages that only this store has are still in it. `commitlog rejoin` puts them aside.
    """


class ReplicationRefused(CommitLogError):
    """Replication is not possible with this address, certificate or protocol."""


class UnitRefused(CommitLogError):
    """A systemd unit is not written: somebody has edited it, or it could not run from here."""


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
    this error if its message may be one of them. Before you send the message again, look whether it
    is in the log.
    """


class StoreMoved(StoreStopped):
    """The store's directory was renamed, removed or replaced while the store ran.

    The messages that it has accepted are in its pool. A copy asks its store for what it lacks.
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
    """The system gives no more threads or processes, or the interpreter ends.

    Callbacks, `await` and remote producers need a thread. This error is a RuntimeError as well,
    like Python's own error for a thread that does not start. If `add_callback` raises it, the
    message of that receipt is in the log.
    """

    hint = "raise the limit of processes (ulimit -u, TasksMax, pids.max), or free memory"


class UnsafePath(CommitLogError):
    """A directory, pool or socket that is a symbolic link or belongs to somebody else."""


class NativeCoreMissing(CommitLogError, ImportError):
    """The native core is not built or is of another version, and something needs it.

    That is COMMITLOG_NATIVE=on, or a running store on a machine other than x86-64.
    """


class MissingPackage(CommitLogError, ImportError):
    """A Python package that this call needs is not installed."""


class IllegalArgument(CommitLogError, TypeError, ValueError):
    """A call was given an argument of a wrong type or value. Nothing was done.

    Code that catches Python's own TypeError or ValueError catches this error as well.
    """


class ConfigError(CommitLogError):
    """A configuration file or value is wrong: names key, value, file and what is allowed."""


# ---- producers ---------------------------------------------------------------------------------


class ProducerError(CommitLogError):
    """Base of the errors that `Producer` raises."""

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class NoFreeLane(ProducerError):
    """All lanes are leased, and the store has as many lanes as it may have."""


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
    """A message did not become flushed, or replicated, within the time of the wait.

    `wait`, `flush`, and `send` in a store with SYNC_FLUSH raise it. Nothing is lost: the messages
    are in the log and may still reach the level. Sending them again would double them.
    """

    status = PutMessageStatus.FLUSH_DISK_TIMEOUT
    append_status = AppendMessageStatus.PUT_OK


class ReplicationTimeout(WaitTimeout):
    """A message is flushed in this store, but too few replicas got it in time.

    They may still get it. The status is RocketMQ's FLUSH_SLAVE_TIMEOUT. Sending the message again
    would double it.
    """

    status = PutMessageStatus.FLUSH_SLAVE_TIMEOUT


class ReplicaNotAvailable(ProducerError):
    """A message is flushed in this store, but fewer replicas than `min_in_sync` are in sync.

    The status is RocketMQ's SLAVE_NOT_AVAILABLE. A replica that comes back gets the message, so
    sending it again would double it.
    """

    status = PutMessageStatus.SLAVE_NOT_AVAILABLE
    append_status = AppendMessageStatus.PUT_OK


class NotCopied(ProducerError, TypeError):
    """An object that belongs to its process was copied or pickled.

    A copy of a producer, a store or a reader would release the lock that the original holds. A
    receipt works only in its producer's process, because only that process can ask how far the
    message has come.
    """


def refuse_copy(original: object, _protocol: SupportsIndex) -> NoReturn:
    """Raises NotCopied: the `__reduce_ex__` of objects that can't be copied or pickled."""
    name = type(original).__name__
    raise NotCopied(f"a {name} can't be copied or pickled: give others its path, with which they make their own")


# ---- messages ----------------------------------------------------------------------------------


class RecordError(CommitLogError):
    """Base of the errors about a single message."""

    status = PutMessageStatus.MESSAGE_ILLEGAL


class TopicNotWritable(RecordError):
    """Base of the errors about a topic that may not be sent to, or not with this message."""


class IllegalTopic(TopicNotWritable):
    """A topic breaks RocketMQ's rule: `[%|A-Za-z0-9_.-]+`, 1 to 255 bytes, not `.` or `..`."""


class IllegalProperty(RecordError):
    """A key, tags or a header that can't be stored as a property of the record."""


class IllegalMessage(RecordError, IllegalArgument):
    """A value is not bytes, or a number is too large for its field of the record."""


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
        """Pickles the parts of the text.

        An error that was made of the whole text would have another text.
        """
        kind, _, state = super().__reduce__()
        return kind, (self.reason, self.offset, self.file), state


class DamagedFile(CommitLogError):
    """A segment, consume queue or checkpoint file has a size or a name it can't have."""


# ---- typed topics ------------------------------------------------------------------------------


class SchemaError(CommitLogError, ValueError):
    """No topic can have this schema: its declaration is wrong, or Spark has no such type."""


class SchemaConflict(SchemaError):
    """The topic has another schema already, and its messages could not be read with the new one."""


class NoSchema(CommitLogError):
    """The topic has no schema, so it has values (bytes) and no rows."""


class ValuesRefused(TopicNotWritable):
    """The topic has a schema, so it has rows and takes no values (bytes)."""


# ---- the disk ----------------------------------------------------------------------------------


class DiskError(CommitLogError):
    """The operating system refused to read, write or sync.

    `status` is the one that RocketMQ gives if its disk is full or broken.
    """

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE
    hint: ClassVar[str] = "check the disk, its file system and the kernel's log"
    """The way out, for the text of the error."""


class DiskFull(DiskError):
    """ENOSPC: the disk is full. Accepted messages stay in the pool."""

    hint = (
        "writing goes on by itself as soon as there is space (`commitlog trim` deletes the oldest segments); what was "
        "accepted stays in the pool"
    )


class QuotaExceeded(DiskError):
    """EDQUOT: the user's quota is used up. Accepted messages stay in the pool."""

    hint = "writing goes on by itself as soon as the quota allows it; what was accepted stays in the pool"


class DiskInputOutput(DiskError):
    """EIO: the device failed to read, to write or to sync."""

    hint = "the device failed, see the kernel's log; a write from the pool is repeated until it succeeds"


class AllocateTimeout(DiskError):
    """CREATE_MAPPED_FILE_FAILED: the allocator did not make the next segment in time."""

    status = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
    hint = "the allocator did not make the next segment in time; see logs/allocator.log of the store"


class LaneDamaged(DiskError):
    """A sync failed, and a lane lost data that only the file had. The others go on."""

    hint = "a failed sync lost data that only the file had; the next start of the store keeps what is whole"


class LaneWordsDamaged(LaneDamaged):
    """Somebody has written over a lane's words in shared memory. The others go on."""

    hint = "its words in shared memory are damaged; the next start of the store recovers the lane"


class PoolUnlinked(DiskError):
    """ENOENT: somebody removed files of the store's pool, or segment files."""

    hint = "files of the store were removed (by hand, a cleaner): stop it if it runs, put them back, start it again"


class NotEnoughDescriptors(DiskError):
    """The process, or the machine, has no file descriptor left."""

    hint = "no file descriptor is left; raise the limit (ulimit -n) or close files"


class NotEnoughMemory(DiskError):
    """ENOMEM: the system has no memory for a process of the store, or for its own tables."""

    hint = "the system gives no memory; free some, or raise the limit (ulimit -v, the container's memory)"


class FileSizeLimited(DiskError):
    """EFBIG: a file is larger than this process may write. Files in shared memory count, too."""

    hint = "this process may write no file so large; raise the limit (ulimit -f)"


# ---- readers -----------------------------------------------------------------------------------


class ReaderError(CommitLogError):
    """Base of the errors that readers raise."""


class UnknownTopic(ReaderError):
    """The topic is not in the store."""


class BadStart(ReaderError):
    """A start is none of: earliest, latest, last N, a time, an offset."""


class OffsetOutOfRange(ReaderError):
    """The offset is before the first message kept, or beyond the last."""


class TopicInUse(ReaderError):
    """A topic can't be trimmed or deleted: a named reader or a producer still needs it."""


class OptionError(ReaderError):
    """An option of Spark's source or sink, or of a Reader, is unknown, wrong or impossible here."""


class MalformedValue(ReaderError):
    """A query with mode=FAILFAST met a value that is not the JSON that it expects."""


class ReaderInUse(ReaderError):
    """Another process, or another reader of this process, holds the reader's name."""


class DataLoss(ReaderError):
    """Messages that were asked for are gone: retention deleted them, or the store is another."""


# ---- served stores ------------------------------------------------------------------------------


class ServerError(CommitLogError):
    """Base of the errors of a server's client.

    It is also raised itself: for an answer that is wrong, or is none of our server's, and for a
    stream that ends too early.
    """

    status = PutMessageStatus.SERVICE_NOT_AVAILABLE


class ServerUnavailable(ServerError):
    """No server answers at the address, or it went away in the middle of a stream."""


class ServerBusy(ServerError):
    """The server takes no more streams or calls now, from all clients or from this one.

    Or it has no file descriptor, memory or thread left for them.
    """


class AccessDenied(ServerError):
    """The server does not know the client's token, or the token does not allow this call."""


class CertificateRefused(ServerError):
    """Server and client can't agree on TLS: a certificate is foreign, expired, wrong or missing."""


class ServingRefused(CommitLogError):
    """A store can't be served with these settings: they are unsafe, or name unusable files."""


class ForwardError(CommitLogError):
    """A forwarder can't do its work. Base of the errors that `commitlog forward` raises."""


class TargetUnavailable(ForwardError):
    """No broker of the Kafka cluster answers."""


class TargetRefused(ForwardError):
    """The Kafka cluster does not know the forwarder's credentials, or gives it too few rights."""


class TargetChanged(ForwardError):
    """A forwarder that has a position finds another cluster, or a topic that was removed there."""


class TopicRefused(ForwardError):
    """A topic can't be forwarded: Kafka refuses its name, its partitions, or the user.

    A forwarder names the topic and goes on with its other topics. It raises this error if no topic
    is left, and at the end of a run that ends by itself.
    """


class MessageRefused(ForwardError):
    """The Kafka cluster does not take a message: it is too large, or not allowed."""


class ForwarderFenced(ForwardError):
    """Another forwarder of the same name and store has taken over."""


class JavaNotFound(CommitLogError):
    """PySpark needs Java 17 or newer and none was found."""


class PythonNotFound(CommitLogError):
    """Spark's JVM can't start the Python that plans its reads (spark/java/PythonCommand.java)."""


class PlannerFailed(CommitLogError):
    """A Python process that Spark's JVM started for a read ended, or gave no answer in time."""


class FunctionFailed(CommitLogError):
    """The Python function of `commitlog.spark.foreach` raised an error, or its process ended."""


class JarNotUsable(CommitLogError):
    """Spark's JVM can't read stores itself: it has no jar, or another version's."""


class ReadingWarning(UserWarning):
    """A store is in a state that `commitlog run` mends. The text says what is read until then."""


class IngestError(CommitLogError):
    """The main job can't start or go on."""


class InputError(CommitLogError):
    """An input file is not text or can't be read, or one of its lines can't be sent."""


FAULT_BY_ERRNO: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: QuotaExceeded,
    errno.EIO: DiskInputOutput,
    errno.ETIMEDOUT: AllocateTimeout,
    errno.ENOENT: PoolUnlinked,
    errno.EILSEQ: LaneDamaged,
    errno.ENOTRECOVERABLE: LaneWordsDamaged,
    errno.EMFILE: NotEnoughDescriptors,
    errno.ENFILE: NotEnoughDescriptors,
    errno.EFBIG: FileSizeLimited,
    errno.ENOMEM: NotEnoughMemory,
}

_SHORTAGES: dict[type[BaseException], str] = {
    NotEnoughDescriptors: "file descriptor",
    NotEnoughMemory: "memory",
    NotEnoughThreads: "thread",
}
_REFUSALS = {*FAULT_BY_ERRNO, errno.EROFS, errno.EAGAIN} - {errno.ENOENT, errno.EILSEQ, errno.ENOTRECOVERABLE}


def is_refusal(error: BaseException) -> bool:
    """Says whether an error may pass: the system lacks space, memory, or the like, now."""
    return isinstance(error, MemoryError | NotEnoughThreads) or getattr(error, "errno", None) in _REFUSALS


def shortage(error: BaseException) -> str:
    """What a process, or the machine, lacks now, whatever it was to do; empty for other errors."""
    kind = FAULT_BY_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else type(error)
    found = _SHORTAGES.get(kind, "") if kind else ""
    return found if found or error.__cause__ is None else shortage(error.__cause__)


def how_to_install(extra: str, *packages: str) -> str:
    """Says how to install missing packages. The text is right in a checkout and in a release."""
    return f"`pip install {' '.join(packages)}` (of the extra pyspark-commitlog[{extra}])"


def refusal(error: OSError, path: Path, doing: str) -> CommitLogError:
    """Makes the error of a step (`doing`) that the system has refused, as "starting the store"."""
    place = error.filename or path
    if error.errno and error.errno in FAULT_BY_ERRNO and error.errno != errno.ENOENT:
        return disk_error(error.errno, f"{place}: {doing}", to_repeat=True)
    if error.errno == errno.EAGAIN:
        return NotEnoughThreads(
            f"{place}: {doing}: the system gives no more processes or threads; {NotEnoughThreads.hint}"
        )
    return StoreRefused(f"{place}: {error.strerror or error}; check the file system, its owner and permissions")


def disk_error(code: int, doing: str, *, to_repeat: bool = False) -> DiskError:
    """Makes the error for an errno that a stage met, or, `to_repeat`, a call of the user's."""
    kind = FAULT_BY_ERRNO.get(code, DiskError)
    waits_for_room = to_repeat and kind in (DiskFull, QuotaExceeded)
    hint = "make room, then do it again; what was accepted is not lost" if waits_for_room else kind.hint
    return kind(f"{doing}: {errno.errorcode.get(code, code)} ({hint})")


NOT_A_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENODEV, errno.ENOTDIR, errno.ENXIO)
"""Errnos of a directory, a link or a pipe in the place of a file, or of a file in a directory's."""


def read_error(error: OSError, path: object) -> CommitLogError:
    """Makes the error for a file below `path` that the system refused to read.

    Raises the timeout of a signal handler, which is of no file.
    """
    if isinstance(error, TimeoutError) and error.errno is None:
        raise error
    place = f"{error.filename or path}: {error.strerror}"
    if error.errno in NOT_A_FILE:
        return DamagedFile(f"{place}; move away what is there, and put back what was there before")
    return disk_error(error.errno or errno.EIO, f"{place}, while it was read")


@contextlib.contextmanager
def named_while_reading(path: object) -> Iterator[None]:
    """Turns an OSError within a with-block into the error that `read_error` makes of it."""
    try:
        yield
    except OSError as error:
        raise read_error(error, path) from error


@contextlib.contextmanager
def named_faults(doing: str, advice: str) -> Iterator[None]:
    """Names an OSError within a with-block of a start, or of a copy.

    It becomes a DiskError if the disk refuses, and otherwise a RecoveryError. `doing` and `advice`
    are parts of the error's text.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FAULT_BY_ERRNO and not isinstance(error, FileNotFoundError):
            raise disk_error(error.errno, doing, to_repeat=True) from error
        raise RecoveryError(f"{doing}: {error}; {advice}") from error


@contextlib.contextmanager
def named_while_loading(what: str) -> Iterator[None]:
    """Turns a failure to load code within a with-block into the error of what was short for it."""
    try:
        yield
    except (OSError, ImportError, MemoryError, SystemError) as error:
        if isinstance(error, CommitLogError) or (code := _short_for_loading(error)) is None:
            raise
        raise disk_error(code, f"{what} can't be loaded") from error


def _short_for_loading(error: BaseException) -> int | None:
    """The errno of an import that the system has refused. The dynamic linker tells it in words."""
    if is_refusal(error):
        return getattr(error, "errno", errno.ENOMEM)
    codes = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM)
    found = next((code for code in codes if os.strerror(code) in str(error)), None)
    return found or (errno.ENOMEM if isinstance(error, SystemError) or "failed to map" in str(error) else None)

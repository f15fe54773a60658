"""The only door to the disk: all access of the project goes through `FileChannel`.

This means every open, write, sync, rename and lock. RocketMQ's `FileChannel` is Java's. Ours has
the calls that a log needs, and each call does all that its name says: `pwrite` loops over short
writes, `create_directory` makes the new name durable. Tests replace it with a subclass that has
planted faults. All methods raise `OSError` as the system gives it; the callers turn it into named
errors.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs numpy, and who starts a store need not wait for that
    from commitlog.record.record_layout import Buffer

_FIRST_OWN = 3
"""The first descriptor that is not standard input, output or error."""
_SMALL_BYTES = 1 << 16
"""How much of a small file is read at once: a buffer of its greatest size may be refused."""
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


class FileChannel:
    """Stateless: descriptors are plain ints, so one object serves a whole process."""

    # ---- descriptors ----------------------------------------------------------------------------

    def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        """A descriptor, close-on-exec. New files are 0600.

        A symbolic link at the last step is refused (ELOOP). Anything that is neither a file nor a
        directory is refused too (EINVAL), because opening a named pipe waits for somebody at its
        other end. The descriptor is never 0, 1 or 2: a program that has closed these may still
        write to them.
        """
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        made: list[int] = []
        try:
            # one call: no interrupt can come between opening a descriptor and storing it
            made.extend(map(os.open, (path,), (flags,), (0o600,)))
            if stat.S_IFMT(os.fstat(made[0]).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                raise OSError(errno.EINVAL, "no regular file", str(path))
            if made[0] < _FIRST_OWN:
                made.insert(0, fcntl.fcntl(made[0], fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN))
                os.close(made.pop())
        except BaseException:
            for fd in made:
                os.close(fd)
            raise
        return made[0]

    close = staticmethod(os.close)
    """One call: no interrupt can come between the beginning of a method and the call in it."""

    @contextmanager
    def opened(self, path: str | Path, *, write: bool = False, create: bool = False) -> Iterator[int]:
        """`open` for the length of a with-block."""
        fd = self.open(path, write=write, create=create)
        try:
            yield fd
        finally:
            self.close(fd)

    def size(self, fd: int) -> int:
        """Length of the file in bytes."""
        return os.fstat(fd).st_size

    # ---- bytes ----------------------------------------------------------------------------------

    def is_unlinked(self, fd: int) -> bool:
        """Whether an open file has no name any more: nobody would find what is written to it."""
        return os.fstat(fd).st_nlink == 0

    def write_once(self, fd: int, data: Buffer, offset: int) -> int:
        """One pwrite, which may be short.

        Only `pwrite` calls it. Tests make it short, or let it fail.
        """
        return os.pwrite(fd, data, offset)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        """Writes all of `data` at `offset` (bytes), however many short writes it takes."""
        view = memoryview(data)
        while view:
            count = self.write_once(fd, view, offset)
            view = view[count:]
            offset += count

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the end of the file."""
        try:
            data = os.pread(fd, count, offset)
            while 0 < len(data) < count:
                more = os.pread(fd, count - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except MemoryError:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
        return data

    def pread_into(self, fd: int, room: memoryview, offset: int) -> int:
        """Fills `room` (bytes) from `offset` on, and returns how many bytes were there.

        They are fewer only at the end of the file. No memory is made, as `pread` does.
        """
        count = 0
        while count < len(room) and (more := os.preadv(fd, [room[count:]], offset + count)):
            count += more
        return count

    def next_data(self, fd: int, offset: int) -> int | None:
        """The first byte from `offset` on that is not in a hole of the file.

        None where the whole rest is a hole.
        """
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # the file system does not know holes
                return offset
            raise

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        """A read-only shared mapping of the first `length` bytes.

        The descriptor may be closed afterwards.
        """
        return mmap.mmap(fd, length, prot=mmap.PROT_READ)

    # ---- durability -----------------------------------------------------------------------------

    def fdatasync(self, fd: int) -> None:
        """Returns once the data is on the device.

        After an error the kernel counts the pages as clean, although they are not on the device.
        The next call would succeed. So a caller that meets an error writes the data again.
        """
        os.fdatasync(fd)

    def allocate(self, fd: int, length: int) -> None:
        """Reserves `length` bytes (posix_fallocate).

        So a full disk is an error here, and never later.
        """
        os.posix_fallocate(fd, 0, length)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync_directory(self, path: str | Path) -> None:
        """Makes names created, renamed or removed in the directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # ---- names ----------------------------------------------------------------------------------

    def rename(self, source: str | Path, target: str | Path) -> None:
        os.rename(source, target)

    def unlink(self, path: str | Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: str | Path) -> None:
        os.rmdir(path)

    def space(self, path: str | Path) -> tuple[int, int]:
        """Used bytes of the file system, and the bytes that this user may still use."""
        facts = os.statvfs(path)
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize, facts.f_bavail * facts.f_frsize

    def list(self, path: str | Path) -> list[str]:
        """Names in the directory, sorted; an absent directory has none."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def create_directory(self, path: str | Path, *, below: Path | None = None) -> None:
        """Makes the directory (0700) with its missing parents, and makes the new names durable.

        `below` is a directory above it that has to be there; otherwise it raises FileNotFoundError.
        The directories of a running store are made only below the store's own directory. Otherwise
        a store that was moved away would begin again at its old path.
        """
        for directory in self.make_directory(path, below=below):
            self.sync_directory(directory.parent)

    def make_directory(self, path: str | Path, *, below: Path | None = None) -> Sequence[Path]:
        """Like `create_directory`, but syncs no name.

        Returns the directories that it made, top first.
        """
        path = Path(path)
        missing = []
        while not path.is_dir():
            if path == below:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            missing.append(path)
            path = path.parent
        missing.reverse()
        for directory in missing:
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                if not directory.is_dir():
                    raise
        return missing

    def read_file(self, path: str | Path, limit: int = 1 << 20) -> bytes:
        """The whole of a small file, at most `limit` bytes."""
        with self.opened(path) as fd:
            try:
                data = self.pread(fd, min(limit, _SMALL_BYTES), 0)
                if len(data) == _SMALL_BYTES:
                    data += self.pread(fd, limit - _SMALL_BYTES, _SMALL_BYTES)
                return data
            except OSError as error:
                error.filename = str(path)
                raise

    def read_named_file(self, path: str | Path, limit: int) -> bytes:
        """The whole of a small file that a user names, by symbolic links too.

        Kubernetes mounts secrets by links, and certbot keeps certificates by them.
        """
        return self.read_file(os.path.realpath(path), limit)

    def replace_file(self, path: str | Path, data: bytes) -> None:
        """Writes a small file, durably.

        A reader sees either the old content or the new, never a mixture. The same holds for a start
        after a crash.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        fd = self.open(temporary, write=True, create=True)
        try:
            self.truncate(fd, 0)
            self.pwrite(fd, data, 0)
            self.fdatasync(fd)
        except BaseException as error:
            if isinstance(error, OSError):
                error.filename = str(path)  # a call with a descriptor names no file
            self.unlink(temporary)
            raise
        finally:
            self.close(fd)
        try:
            self.rename(temporary, path)
        except OSError as error:
            with suppress(FileNotFoundError):  # the disk may fail after it has renamed it
                self.unlink(temporary)
            raise OSError(error.errno, error.strerror, str(path)) from error
        self.sync_directory(path.parent)

    def remove_file(self, path: str | Path) -> None:
        """Removes a small file, durably. One that is not there is passed over."""
        path = Path(path)
        if path.exists():
            self.unlink(path)
            self.sync_directory(path.parent)

    # ---- locks ----------------------------------------------------------------------------------

    def try_lock(self, fd: int, at: int | None = None) -> bool:
        """Takes a write lock of the whole file, or of the byte `at`.

        The lock belongs to this open file description (OFD). It is freed when the last copy of the
        descriptor closes.

        Returns False where somebody else holds the lock: a process of ours, or a RocketMQ.
        RocketMQ's lock is a POSIX lock, which conflicts with ours.
        """
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _write_lock(at))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def is_locked(self, path: str | Path, at: int | None = None) -> bool:
        """Whether anybody holds the lock of a file, or of its byte `at`.

        A file that is not there is not locked.
        """
        try:
            with self.opened(path) as fd:
                answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _write_lock(at))
        except FileNotFoundError:
            return False
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def is_at(self, fd: int, path: str | Path) -> bool:
        """Whether an open file still has its name.

        Nobody else sees a lock on a file that was removed or replaced.
        """
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
        except FileNotFoundError:
            return False


def _write_lock(at: int | None) -> bytes:
    """`struct flock` of the whole file, or of one byte."""
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at or 0, 0 if at is None else 1, 0)


DISK = FileChannel()

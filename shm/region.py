"""Named regions of shared memory: create, attach, permissions.

A region is a file of fixed size in a private directory of /dev/shm, or of the directory in the
environment variable COMMITLOG_SHM_DIR. It lives until it is unlinked, whichever process dies.
`multiprocessing.shared_memory` is not used, because its resource tracker unlinks regions that other
processes still use.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path


class RegionError(Exception):
    """A region or its directory can't be used: another user's, a symbolic link, the wrong size."""


class RegionFull(RegionError):
    """The shared-memory file system has no room for the region."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


def base_directory() -> Path:
    """Where pools are made: /dev/shm unless COMMITLOG_SHM_DIR says otherwise. It is absolute."""
    return Path(os.path.abspath(os.environ.get("COMMITLOG_SHM_DIR") or "/dev/shm"))


def private_directory(path: Path, *, create: bool) -> None:
    """Checks that only this user can enter a directory.

    With `create` it first makes the directory, 0700 for any umask. Raises RegionError for a
    symbolic link, another owner or a mode that lets others in. Raises FileNotFoundError where the
    directory is missing and is not to be made.
    """
    if create:
        with contextlib.suppress(FileExistsError):  # it may be somebody else's: checked below
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        raise RegionError(f"{path} is not a directory of its own; remove it")
    if facts.st_uid != os.geteuid():
        raise RegionError(f"{path} belongs to user {facts.st_uid}, not to user {os.geteuid()}")
    if facts.st_mode & 0o077:
        raise RegionError(f"{path} lets other users in (mode {facts.st_mode & 0o777:o}); chmod 700 it")


_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)
"""What opening says where a link, a directory, … is in the place of a file. Shared memory imports
nothing of the package, so it can't use `errors.NOT_A_FILE`; other than there a wrong argument
(EINVAL) is no such thing here.
"""


def _opened(path: Path, flags: int) -> io.FileIO:
    """Opens a file in one call: an interrupt never leaves a descriptor that nobody closes.

    It does not wait for the other end of a named pipe. Raises RegionError for what is no file.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return next(map(io.FileIO, map(os.open, (path,), (flags,), (0o600,))))
    except OSError as error:
        if error.errno in _NO_FILE:
            raise RegionError(f"{path} is not a plain file of this user") from error
        raise


class Region:
    """A mapped region: `words` is its memory as unsigned 64-bit words, `bytes` as bytes.

    A store through `words[i] = value` is one aligned store of the machine; memory_order.py
    describes the order in which stores are seen.
    """

    def __init__(self, path: Path, fd: int, *, writable: bool) -> None:
        """Maps an open file. The mapping keeps a copy of the descriptor."""
        self.path = path
        facts = os.fstat(fd)
        self.size, self.inode = facts.st_size, facts.st_ino
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._mapping = mmap.mmap(fd, self.size, prot=access)
        self.bytes = memoryview(self._mapping)
        self.words = self.bytes[: self.size // 8 * 8].cast("Q")

    @classmethod
    def create(cls, path: Path, size: int) -> Region:
        """Makes a region of `size` zero bytes, which are all allocated now.

        So a full file system is an error here, and not a SIGBUS later. Raises FileExistsError,
        RegionFull, and OSError for another reason, such as a limit of this process.
        """
        with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
            try:
                os.fchmod(file.fileno(), 0o600)
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                os.unlink(path)
                if error.errno not in _FULL:
                    raise OSError(error.errno, error.strerror, str(path)) from error
                raise RegionFull(f"{path}: no room for {size:,} bytes of shared memory ({error.strerror})") from error
            return cls(path, file.fileno(), writable=True)

    @classmethod
    def attach(cls, path: Path, *, writable: bool = False) -> Region:
        """Maps a region that another process of this user has made.

        Raises FileNotFoundError, PermissionError, RegionError.
        """
        if path.is_dir():  # it can be opened for reading; FileIO would refuse it, and leave it open
            raise RegionError(f"{path} is not a plain file of this user")
        with _opened(path, os.O_RDWR if writable else os.O_RDONLY) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                raise RegionError(f"{path} is not a plain file of this user")
            if facts.st_size == 0:
                raise RegionError(f"{path} is empty: its maker died while making it")
            return cls(path, file.fileno(), writable=writable)

    def writer(self, position: int) -> Callable[[bytes], object]:
        """The mapping's own `write`, from a byte on: each call continues after the last one."""
        self._mapping.seek(position)
        return self._mapping.write

    def is_unlinked(self) -> bool:
        """Whether the region's name was removed.

        Its memory stays usable then, but no other process can find it any more.
        """
        try:
            return os.stat(self.path, follow_symlinks=False).st_ino != self.inode
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Unmaps the region; its file stays.

        Raises BufferError while somebody keeps a view of it. A second call works without the view.
        """
        self.words.release()
        self.bytes.release()
        self._mapping.close()

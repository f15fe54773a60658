"""The disk as a stage sees it: a call never reaches another directory in the store's place."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from commitlog.disk.file_channel import FileChannel


class StoreChannel(FileChannel):
    """The disk, for paths in one store. Each call checks that the store is still at its path.

    Calls raise FileNotFoundError if the path leads to another directory than at first. An open
    checks twice. It checks before, so that it makes nothing in the other directory. It checks
    after, so that no byte of ours goes to a file there, and no sync of such a file counts. A file
    that is open already is the store's, wherever the store is.
    """

    def __init__(self, store: Path) -> None:
        self._store = str(store)
        self._identity = self._identify()

    def _identify(self) -> tuple[int, int]:
        """Device and inode of the directory that is at the store's path now."""
        facts = os.stat(self._store)
        return facts.st_dev, facts.st_ino

    def _check(self) -> None:
        if self._identify() != self._identity:
            raise FileNotFoundError(errno.ENOENT, "the store is not here any more", self._store)

    def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        self._check()
        fd = super().open(path, write=write, create=create, exclusive=exclusive)
        try:
            self._check()
        except OSError:
            self.close(fd)
            raise
        return fd

    def rename(self, source: str | Path, target: str | Path) -> None:
        self._check()
        super().rename(source, target)

    def unlink(self, path: str | Path) -> None:
        self._check()
        super().unlink(path)

    def make_directory(self, path: str | Path, *, below: Path | None = None) -> Sequence[Path]:
        self._check()
        return super().make_directory(path, below=below)

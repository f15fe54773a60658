"""The disk as a stage sees it: no call by a path of the store reaches another directory that has
come into its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from commitlog.disk.file_channel import FileChannel


class StoreChannel(FileChannel):
    """Raises FileNotFoundError where the path of the store no longer leads to the directory that it
    led to at first.

    An open looks before, so that nothing is made there, and after, so that no byte of ours goes to
    a file there and no sync of such a file counts. What is open already is the store's, wherever it
    is.
    """

    def __init__(self, store: Path) -> None:
        self._store = str(store)
        self._identity = self._look()

    def _look(self) -> tuple[int, int]:
        facts = os.stat(self._store)
        return facts.st_dev, facts.st_ino

    def _check(self) -> None:
        if self._look() != self._identity:
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

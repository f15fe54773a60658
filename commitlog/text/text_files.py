"""Reads a user's input as bytes: a file, maybe compressed or with holes, a pipe, a terminal."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable
from typing import IO, Any, cast

from commitlog.errors import InputError, MissingPackage, how_to_install

_BZIP2 = [b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")]
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"} | dict.fromkeys(_BZIP2, "bzip2")
_NAMED_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4")
_FOREIGN = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x04\x22\x4d\x18": "lz4",
    b"PAR1\x15": "Parquet",
    b"\x7fELF": "a program",
}
"""The first bytes of a file → its kind, for kinds that are not text.

No text begins with these bytes. If one entry begins with another one, the longer one stands first.
"""
_TAR, _TAR_AT = b"ustar", 257
_UTF16_WITHOUT_MARK = re.compile(rb"(?:[\t\r\n -~]\0){4}|(?:\0[\t\r\n -~]){4}")
_LOOK_BYTES = 1 << 18
_MARK = b"\xef\xbb\xbf"
_UNCOMPRESS = {"gzip": "gzip -dc", "bzip2": "bzip2 -dc", "xz": "xz -dc", "zstd": "zstd -dc", "lz4": "lz4 -dc"}
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)
"""The errors that decompressors raise, Arrow's too."""


class TextFile:
    """An open input. `read` gives its bytes; `position` says how many bytes of the file were read.

    `say` gets a line for each fact that the user should know and that is not an error.
    """

    def __init__(self, name: str, descriptor: int, say: Callable[[str], object], *, grows: bool = False) -> None:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise InputError(f"{name}: is a directory; name the files in it")
        self.name, self.descriptor = name, descriptor
        self.identity = (facts.st_dev, facts.st_ino)
        self.is_regular = stat.S_ISREG(facts.st_mode)
        self.is_compressed = False
        self.grows = grows and self.is_regular
        """Whether the file may grow.

        Then NULs at its end are not read yet: the writer may replace them.
        """
        self.position = 0
        self.behind_hole = False
        """Whether the next NULs are the rest of a hole, because file systems know only whole
        blocks.
        """
        self._unwritten = 0
        self._unwritten_end: tuple[int, int] | None = None
        self._say = say
        self._source: IO[bytes] | None = None

    def read(self, limit: int) -> bytes | None:
        """Returns at most `limit` bytes.

        They are None if a pipe or terminal has none now, empty at the end. Raises InputError if the
        input is not text, and OSError.
        """
        if self._source is not None:
            return self._decompress(limit)
        if self._unwritten_end is not None and self._unwritten_end == self._facts():
            return b""
        while True:
            begin = self.position
            try:
                data = os.read(self.descriptor, limit)
            except BlockingIOError:
                return None
            self.position += len(data)
            if begin == 0 and data:
                if self._is_to_decompress(data):
                    return self._look_at_begin(self._decompress(limit))
                begin = self.position - len(data := self._look_at_begin(data))
            if self.grows and data.endswith(b"\0"):
                data = self._without_unwritten_end(begin, data)
            if self.is_regular and data and (self.behind_hole or b"\0" in data):
                data = self._without_hole(begin, data)
                if not data and self.position > begin:
                    continue
            return data

    def rewind(self) -> None:
        """Begins again at the start of a file that was cut."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        self.position, self.behind_hole, self._unwritten, self._unwritten_end = 0, True, 0, None

    # ---- what kind of file it is ----------------------------------------------------------------

    def _is_to_decompress(self, data: bytes) -> bool:
        kind = next((kind for begin, kind in _COMPRESSED.items() if data.startswith(begin)), None)
        if kind is not None and self.is_regular:
            self._source = self._opened(kind)
            self.is_compressed = True
        return self.is_compressed

    def _look_at_begin(self, data: bytes) -> bytes:
        """Returns the first bytes of the text. Raises InputError if the input is something else."""
        known = (_COMPRESSED | _FOREIGN).items()
        foreign = next((kind for begin, kind in known if data.startswith(begin)), None)
        if foreign is None and _UTF16_WITHOUT_MARK.match(data):
            foreign = "UTF-16"
        if data[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR and b"\0" in data[:_TAR_AT]:
            foreign = "a tar archive"
        if foreign is not None:
            raise InputError(f"{self.name}: is {foreign}, no text in UTF-8; {_way_out(foreign)}")
        if self.is_regular and not self.is_compressed and self.name.endswith(_NAMED_COMPRESSED):
            self._say(f"{self.name} is not compressed, as its name says: it is read as the text that it is")
        if self.is_regular and data.startswith(_MARK):
            self._say(f"{self.name} begins with a byte order mark of UTF-8, which is left out")
            return data[len(_MARK) :]
        return data

    def _opened(self, kind: str) -> IO[bytes]:
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        raw = io.BufferedReader(io.FileIO(self.descriptor, closefd=False))
        if kind == "gzip":
            return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        if kind == "bzip2":
            return bz2.BZ2File(raw)
        if kind == "xz":
            return lzma.LZMAFile(raw)
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingPackage(
                f"{self.name}: is zstd, which needs {how_to_install('arrow', 'pyarrow')}; or {_way_out(kind)}"
            ) from None
        return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"))

    def _decompress(self, limit: int) -> bytes:
        source: Any = self._source
        try:
            data: bytes = source.read1(limit) if hasattr(source, "read1") else source.read(limit)
        except _DAMAGED as error:
            raise InputError(f"{self.name}: its compressed data is damaged or cut off: {error or 'no end'}") from error
        return data

    # ---- holes ----------------------------------------------------------------------------------

    def _without_hole(self, begin: int, data: bytes) -> bytes:
        """Leaves out a hole: bytes that were never written, because the writer went on behind them.

        A hole that goes on to the end of the file stays unread, since it may be filled later.
        """
        hole, end = self._hole(begin) if b"\0" in data else (self.position, None)
        is_jump = hole < self.position
        if is_jump:
            data = data[: hole - begin].rstrip(b"\0")
        rest = data.lstrip(b"\0") if self.behind_hole else data
        self._unwritten += len(data) - len(rest)
        if rest:
            self._say_hole(begin + len(data) - len(rest))
            self.behind_hole = False
        if is_jump and end is None:
            self.position = begin + len(data)
            self._say(f"{self.name}: from byte {self.position:,} on it has never been written; that is not read")
        elif is_jump and end is not None:
            self._unwritten += end - begin - len(data)
            self.position, self.behind_hole = end, True
        if is_jump:
            os.lseek(self.descriptor, self.position, os.SEEK_SET)
        return rest

    def _hole(self, begin: int) -> tuple[int, int | None]:
        """Returns where the next hole begins and ends. The end is None if it is the file's end."""
        hole, end = os.fstat(self.descriptor).st_size, None
        try:
            hole = os.lseek(self.descriptor, begin, os.SEEK_HOLE)
            end = os.lseek(self.descriptor, hole, os.SEEK_DATA)
        except OSError as error:  # ENXIO: behind it is no data; EINVAL: this file system knows no holes
            if error.errno not in (errno.ENXIO, errno.EINVAL):
                raise
        os.lseek(self.descriptor, self.position, os.SEEK_SET)
        return hole, end

    def _without_unwritten_end(self, begin: int, data: bytes) -> bytes:
        """Leaves NULs at the end of a growing file for later: its writer may fill them."""
        facts = self._facts()
        if self._is_written_behind(self.position):
            return data
        written = data.rstrip(b"\0")
        self.position, self._unwritten_end = begin + len(written), facts
        os.lseek(self.descriptor, self.position, os.SEEK_SET)
        return written

    def _is_written_behind(self, at: int) -> bool:
        """Whether the file has a byte other than NUL from this offset on."""
        while data := os.pread(self.descriptor, _LOOK_BYTES, at):
            if data.strip(b"\0"):
                return True
            at += len(data)
            hole, end = self._hole(at)
            if hole == at:
                if end is None:
                    return False
                at = end
        return False

    def _facts(self) -> tuple[int, int]:
        facts = os.fstat(self.descriptor)
        return facts.st_size, facts.st_mtime_ns

    def _say_hole(self, end: int) -> None:
        if self._unwritten:
            begin = end - self._unwritten
            self._say(f"{self.name}: {self._unwritten:,} bytes from {begin:,} on were never written; they are left out")
        self._unwritten = 0


def _way_out(kind: str) -> str:
    if kind.startswith("UTF"):
        return f"`iconv -f {kind} -t UTF-8 FILE | …` makes it so"
    if kind in _UNCOMPRESS:
        return f"`{_UNCOMPRESS[kind]} FILE | …` makes it so"
    return "give the lines themselves"

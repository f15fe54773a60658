"""A disk that fails on command, and forgets what was not synced: a FileChannel for stages.

Beside a store `S` there is `S.faults/` with

- `rules.json`, read again at every call;
- `hits/<rule>`, a byte for each time that a rule struck;
- `disk/`, what a power cut would leave of each file under `S/lanes`. A successful sync copies the
  file there.

A failed sync does what Linux may do: what was written since the last good sync is gone from the
file itself, and the next sync finds nothing to do and succeeds.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

import orjson

from commitlog.disk.file_channel import FileChannel
from commitlog.record.record_layout import Buffer

Call = Literal["pwrite", "fdatasync", "allocate", "truncate", "open", "map_read", "rename", "unlink", "sync_directory"]


@dataclass(frozen=True)
class Rule:
    """A call fails with `error`, writes at most `short` bytes, or kills its process.

    - `where`: only on paths below the store that contain it. `stage`: only there.
    - `dies`: "before" the call does anything, or "after" it, failed or not.
    - `times`: how often, 0 for always; `skip`: how many are let pass first.
    - `keeps`: a failed sync leaves the bytes in the file (and does not make them durable).
    - `refuses`: a failed rename has changed nothing.
    """

    call: Call
    where: str = "/commitlog/"
    error: int = 0
    short: int = 0
    dies: Literal["", "before", "after"] = ""
    stage: str = ""
    times: int = 0
    skip: int = 0
    keeps: bool = False
    refuses: bool = False
    name: str = "rule"


class FaultsDirectory:
    """`S.faults`, for the test and for the channels in the stages."""

    def __init__(self, store: Path) -> None:
        self.store, self.lanes = store, store / "lanes"
        self.path = store.with_name(f"{store.name}.faults")
        self._rules_file = self.path / "rules.json"
        for part in ("hits", "disk"):
            (self.path / part).mkdir(parents=True, exist_ok=True)

    def set(self, *rules: Rule) -> None:
        """Sets these rules and no others, and counts hits from zero."""
        for file in (self.path / "hits").iterdir():
            file.unlink()
        temporary = self.path / f"rules.{os.getpid()}"
        temporary.write_bytes(orjson.dumps([asdict(rule) for rule in rules]))
        temporary.rename(self._rules_file)

    def clear(self) -> None:
        self.set()

    def rules(self) -> list[Rule]:
        try:
            return [Rule(**rule) for rule in orjson.loads(self._rules_file.read_bytes())]
        except FileNotFoundError:
            return []

    def hits(self, name: str = "rule") -> int:
        """How often a rule struck, in all processes."""
        file = self.path / "hits" / name
        return file.stat().st_size if file.exists() else 0

    def strikes(self, rule: Rule) -> bool:
        """Counts a call that matches a rule; returns whether it is one of those that fail."""
        fd = os.open(self.path / "hits" / rule.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, b"x")
        count = os.fstat(fd).st_size
        os.close(fd)
        return count > rule.skip and (not rule.times or count <= rule.skip + rule.times)

    def image(self, path: Path) -> Path:
        """What a power cut leaves of a file."""
        return self.path / "disk" / str(path.relative_to(self.lanes)).replace("/", "+")

    def durable(self, path: Path) -> bytes:
        image = self.image(path)
        return image.read_bytes() if image.exists() else b""


class FaultyChannel(FileChannel):
    """A channel with faults, one for each process: it remembers the file of each descriptor."""

    def __init__(self, store: Path, stage: str = "") -> None:
        self.faults = FaultsDirectory(store)
        self.stage = stage
        self._paths: dict[int, Path] = {}

    # ---- what fails -----------------------------------------------------------------------------

    def _rule(self, call: Call, path: Path | None) -> Rule | None:
        if path is None or not path.is_relative_to(self.faults.store):
            return None
        place = f"/{path.relative_to(self.faults.store)}/"  # without the names of the directories above
        for rule in self.faults.rules():
            wanted = rule.call == call and rule.where in place and rule.stage in ("", self.stage)
            if wanted and self.faults.strikes(rule):
                if rule.dies == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                return rule
        return None

    @staticmethod
    def _finish(rule: Rule | None) -> None:
        """The end of a call: dies, or raises, where a rule says so."""
        if rule and rule.dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        if rule and rule.error:
            raise OSError(rule.error, os.strerror(rule.error))

    def open(self, path: str | Path, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        rule = self._rule("open", Path(path))
        self._finish(rule)
        fd = super().open(path, write=write, create=create, exclusive=exclusive)
        self._paths[fd] = Path(path)
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def write_once(self, fd: int, data: Buffer, offset: int) -> int:
        rule = self._rule("pwrite", self._paths.get(fd))
        if rule and rule.short:
            data = memoryview(data)[: rule.short]
        count = 0 if rule and rule.error else super().write_once(fd, data, offset)
        self._finish(rule)
        return count

    def allocate(self, fd: int, length: int) -> None:
        rule = self._rule("allocate", self._paths.get(fd))
        if not (rule and rule.error):
            super().allocate(fd, length)
        self._finish(rule)

    def truncate(self, fd: int, length: int) -> None:
        rule = self._rule("truncate", self._paths.get(fd))
        if not (rule and rule.error):
            super().truncate(fd, length)
        self._finish(rule)

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        self._finish(self._rule("map_read", self._paths.get(fd)))
        return super().map_read(fd, length)

    def rename(self, source: str | Path, target: str | Path) -> None:
        rule = self._rule("rename", Path(target))
        if rule and rule.error and rule.refuses:
            self._finish(rule)
        super().rename(source, target)
        image = self.faults.image(Path(source)) if self._is_modelled(Path(source)) else None
        if image and image.exists():
            image.rename(self.faults.image(Path(target)))
        self._finish(rule)

    def unlink(self, path: str | Path) -> None:
        rule = self._rule("unlink", Path(path))
        if not (rule and rule.error):
            super().unlink(path)
            if self._is_modelled(Path(path)):
                self.faults.image(Path(path)).unlink(missing_ok=True)
        self._finish(rule)

    def sync_directory(self, path: str | Path) -> None:
        rule = self._rule("sync_directory", Path(path))
        super().sync_directory(path)
        self._finish(rule)

    # ---- what a disk keeps ----------------------------------------------------------------------

    def _is_modelled(self, path: Path) -> bool:
        return path.is_relative_to(self.faults.lanes)

    def fdatasync(self, fd: int) -> None:
        path = self._paths.get(fd)
        rule = self._rule("fdatasync", path)
        if path is None or not self._is_modelled(path):
            self._finish(rule)
            return
        image = self.faults.image(path)
        if rule and rule.error:
            if not rule.keeps:
                self._forget(path, image)
        else:
            temporary = image.with_name(f".{image.name}.{os.getpid()}")
            temporary.write_bytes(self.pread(fd, self.size(fd), 0))
            temporary.rename(image)
        self._finish(rule)

    def _forget(self, path: Path, image: Path) -> None:
        """Puts back what the file held at its last good sync: the pages written since are lost."""
        kept = image.read_bytes() if image.exists() else b""
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, kept.ljust(os.fstat(fd).st_size, b"\0"), 0)
        os.close(fd)


class CachingChannel(FaultyChannel):
    """A channel that fails in another way that Linux allows.

    After a failed sync the pages keep their bytes in memory and count as clean. No later sync
    writes them, unless they are written again. All channels of a bench share the set of dirty
    pages.
    """

    dirty: ClassVar[dict[Path, set[int]]] = {}

    def write_once(self, fd: int, data: Buffer, offset: int) -> int:
        count = super().write_once(fd, data, offset)
        pages = range(offset // _PAGE, (offset + count + _PAGE - 1) // _PAGE)
        self.dirty.setdefault(self._paths[fd], set()).update(pages)
        return count

    def rename(self, source: str | Path, target: str | Path) -> None:
        super().rename(source, target)
        self.dirty[Path(target)] = self.dirty.pop(Path(source), set())

    def fdatasync(self, fd: int) -> None:
        path = self._paths[fd]
        rule = self._rule("fdatasync", path)
        pages = self.dirty.pop(path, set())
        if not (rule and rule.error) and self._is_modelled(path):
            kept = bytearray(self.faults.durable(path).ljust(self.size(fd), b"\0"))
            for page in pages:
                kept[page * _PAGE : (page + 1) * _PAGE] = self.pread(fd, _PAGE, page * _PAGE)
            self.faults.image(path).write_bytes(kept)
        self._finish(rule)


_PAGE = 4096
NAMES = {errno.EIO: "DiskInputOutput", errno.ENOSPC: "DiskFull", errno.EDQUOT: "QuotaExceeded"}
"""The errors that producers see."""

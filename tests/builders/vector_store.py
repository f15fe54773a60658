"""Loads the stores that a real RocketMQ wrote (tests/vectors)."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from commitlog.record.scan import scan
from commitlog.record.table import RecordTable, Stop

VECTORS = Path(__file__).parents[1] / "vectors"
NAMES = sorted(path.parent.name for path in VECTORS.glob("*/store.tar.gz"))


@dataclass(frozen=True)
class VectorStore:
    """One store. `expected` and `queue_entries` are the lines of the JSON files."""

    name: str

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Every file of the store root, by its path in it."""
        with tarfile.open(VECTORS / self.name / "store.tar.gz") as tar:
            return {member.name: self._read(tar, member) for member in tar if member.isfile()}

    @staticmethod
    def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        file = tar.extractfile(member)
        assert file is not None
        return file.read()

    @cached_property
    def segments(self) -> dict[int, bytes]:
        """The segments by their start offset, ascending."""
        names = sorted(name for name in self.files if name.startswith("commitlog/"))
        return {int(name.removeprefix("commitlog/")): self.files[name] for name in names}

    @cached_property
    def expected(self) -> list[dict[str, Any]]:
        return self._lines("expected.jsonl")

    @cached_property
    def queue_entries(self) -> list[dict[str, Any]]:
        return self._lines("consumequeue.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (VECTORS / self.name / name).read_text().splitlines()]

    def place(self, offset: int) -> tuple[bytes, int]:
        """The segment that holds a log offset, and the position in it."""
        start = max(start for start in self.segments if start <= offset)
        return self.segments[start], offset - start

    def tables(self, max_records: int = 8192) -> list[RecordTable]:
        """All records of the log, up to the first place that is neither a record nor a BLANK."""
        tables: list[RecordTable] = []
        for start, data in self.segments.items():
            position = 0
            while True:
                table = scan(
                    data,
                    position,
                    len(data),
                    start,
                    None,
                    check_crc=True,
                    segment_end=len(data),
                    max_records=max_records,
                )
                tables.append(table)
                position = table.stop_position
                if table.stop is not Stop.FULL:
                    break
            if tables[-1].stop is not Stop.BLANK and position < len(data):
                break
        return tables

    def unpack(self, directory: Path) -> Path:
        """Writes the store root into a directory, files only."""
        for name, data in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return directory


@lru_cache
def load(name: str) -> VectorStore:
    return VectorStore(name)

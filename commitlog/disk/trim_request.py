"""What `commitlog trim` asks the allocator to delete: `STORE/trim.json`, until it is done.

{"store": "<store id>", "before_ms": 1790000000000, "keep_bytes": null, "force": false, …}

A trim is the way out of a full disk, so it needs no room there: the file is in the pool then.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DamagedFile, refusal

_NUMBER_END = 1 << 62


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Whole segments, the oldest first."""

    store: str
    before_ms: int | None = None
    """Those whose messages were all stored before this time."""
    keep_bytes: int | None = None
    """As many as it takes until all segments together have no more bytes."""
    force: bool = False
    """Also those that a named reader needs."""

    def save(self, directory: StoreDirectory, pool: Path | None = None) -> None:
        """Asks, durably. Raises DiskError, StoreRefused."""
        channel, data = directory.channel, to_checked_json(asdict(self))
        try:
            channel.replace_file(directory.trim_file, data)
        except OSError as error:
            refused = refusal(error, directory.trim_file, "asking the allocator")
            if pool is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise refused from error
            try:
                channel.replace_file(pool / directory.trim_file.name, data)
            except OSError:
                raise refused from error

    @staticmethod
    def file(directory: StoreDirectory, pool: Path | None) -> Path | None:
        """The file that asks; None where nobody does."""
        files = (directory.trim_file, *((pool / directory.trim_file.name,) if pool else ()))
        return next((file for file in files if file.exists()), None)

    @classmethod
    def load(cls, directory: StoreDirectory, pool: Path | None, store_id: str) -> TrimRequest | None:
        """What is asked for; None where nothing is. Raises DamagedFile, OSError."""
        file = cls.file(directory, pool)
        if file is None:
            return None
        try:
            data = directory.channel.read_file(file)
            request = cls(**from_checked_json(data, {field.name for field in fields(cls)}))
            if request.store != store_id or type(request.force) is not bool:
                raise ValueError(f"store {request.store}")
            for number in (request.before_ms, request.keep_bytes):
                if number is not None and not (type(number) is int and 0 <= number < _NUMBER_END):
                    raise ValueError(f"{number!r}")
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise DamagedFile(f"{file}: no request of this store ({error}); remove it") from error
        return request

    @classmethod
    def remove(cls, directory: StoreDirectory, pool: Path | None) -> None:
        """Says that it is done, or takes it back. Raises OSError."""
        while file := cls.file(directory, pool):
            with contextlib.suppress(FileNotFoundError):
                directory.channel.unlink(file)

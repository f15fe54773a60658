"""What `commitlog trim` asks the allocator to delete: `STORE/trim.json`, until it is done.

{"store": "<store id>", "before_ms": 1790000000000, "keep_bytes": null, "force": false, …}
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, fields

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

    def save(self, directory: StoreDirectory) -> None:
        """Asks, durably. Raises DiskError, StoreRefused."""
        try:
            directory.channel.replace_file(directory.trim_file, to_checked_json(asdict(self)))
        except OSError as error:
            raise refusal(error, directory.trim_file, "asking the allocator") from error

    @classmethod
    def load(cls, directory: StoreDirectory, store_id: str) -> TrimRequest | None:
        """What is asked for; None where nothing is. Raises DamagedFile, OSError."""
        try:
            data = directory.channel.read_file(directory.trim_file)
            request = cls(**from_checked_json(data, {field.name for field in fields(cls)}))
            if request.store != store_id or type(request.force) is not bool:
                raise ValueError(f"store {request.store}")
            for number in (request.before_ms, request.keep_bytes):
                if number is not None and not (type(number) is int and 0 <= number < _NUMBER_END):
                    raise ValueError(f"{number!r}")
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise DamagedFile(f"{directory.trim_file}: no request of this store ({error}); remove it") from error
        return request

    @staticmethod
    def remove(directory: StoreDirectory) -> None:
        """Says that it is done, or takes it back. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            directory.channel.unlink(directory.trim_file)

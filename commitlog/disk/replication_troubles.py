"""The troubles that keep replicas, or small files for them, away: `STORE/replication.json`.

    {"shut": {"127.0.0.1:4440": "[Errno 98] Address already in use"},
     "damaged": {"readers/billing.json": "…: not the position of a reader …"}}

Only the HAService writes it, and removes it when all is well again. It counts while that runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.layout import HA_SERVICE

_FILE_BYTES_MAX = 1 << 20
_TEXT_MOST, _FILES_MOST = 1_000, 100


@dataclass(frozen=True)
class ReplicationTroubles:
    """Addresses that no replica can reach, and damaged small files, each with the reason."""

    shut: Mapping[str, str] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """One for each of them."""
        return [
            *(f"no replica can come to {address}: {why}" for address, why in self.shut.items()),
            *(f"replicas keep the {name} that they have: {why}" for name, why in self.damaged.items()),
        ]


def save_troubles(directory: StoreDirectory, troubles: ReplicationTroubles) -> None:
    """Replaces the file; there is none where all is well. Raises OSError."""
    if not (troubles.shut or troubles.damaged):
        with contextlib.suppress(FileNotFoundError):
            directory.channel.unlink(directory.replication_file)
        return
    shut = {address: why[:_TEXT_MOST] for address, why in troubles.shut.items()}
    damaged = {name: why[:_TEXT_MOST] for name, why in list(troubles.damaged.items())[:_FILES_MOST]}
    data = to_checked_json(asdict(ReplicationTroubles(shut, damaged)))
    directory.channel.replace_file(directory.replication_file, data)


def replication_troubles(directory: StoreDirectory) -> ReplicationTroubles:
    """What the HAService has noted, if it runs. It writes a file that can't be read anew."""
    channel = directory.channel
    try:
        data = channel.read_file(directory.replication_file, _FILE_BYTES_MAX)
        values = from_checked_json(data, ("shut", "damaged"))
        found = ReplicationTroubles(**{name: _texts(values[name]) for name in ("shut", "damaged")})
    except (OSError, ValueError, KeyError, AttributeError):
        return ReplicationTroubles()
    return found if channel.is_locked(directory.stage_lock_file(HA_SERVICE)) else ReplicationTroubles()


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(text) for name, text in values.items()}

"""The forwarders of a store, and what they have done: `STORE/forwarders/<name>.json`.

    {"target": "kafka://one:9092", "pid": 4711, "state": "forwarding", "messages": 1000, …}

A forwarder holds its reader's name (`readers/<name>.lock`), and so the kernel tells whether it
runs. The file of one that has ended stays, because it says why.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.store_directory import StoreDirectory
from commitlog.system.clock import SYSTEM_CLOCK

_FILE_BYTES_MAX = 1 << 16
_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})\.json")
STATES = ("starting", "forwarding", "waiting", "stopped")
"""`waiting`: the cluster does not answer, and the forwarder tries again."""


@dataclass(frozen=True)
class ForwarderStatistics:
    """What a forwarder has done since it was started. Times are milliseconds."""

    name: str
    target: str
    pid: int
    state: str = "starting"
    messages: int = 0
    bytes: int = 0
    """Of the values of these messages."""
    messages_per_second: float = 0.0
    transactions: int = 0
    errors: int = 0
    """Sessions with the cluster that have ended in an error."""
    last_error: str = ""
    behind_messages: int = 0
    behind_bytes: int = 0
    """Estimated from the sizes of some of their records."""
    behind_ms: int = 0
    """The age of the oldest message that is not forwarded; 0 where there is none."""
    updated_ms: int = 0

    def aged(self, now_ms: int) -> ForwarderStatistics:
        """The same at a later time: what waited then has waited longer."""
        later = max(now_ms - self.updated_ms, 0) if self.behind_messages else 0
        return replace(self, behind_ms=self.behind_ms + later)


def write_forwarder(directory: StoreDirectory, statistics: ForwarderStatistics) -> None:
    """Replaces a forwarder's file. It is not synced: nobody needs it after a crash.

    Raises OSError.
    """
    channel, folder = directory.channel, directory.forwarders_directory
    channel.create_directory(folder, below=directory.path)
    data = to_checked_json(asdict(statistics))
    temporary = folder / f".{statistics.name}.tmp"
    with channel.opened(temporary, write=True, create=True) as fd:
        channel.truncate(fd, 0)
        channel.pwrite(fd, data, 0)
    channel.rename(temporary, folder / f"{statistics.name}.json")


def forwarders(directory: StoreDirectory) -> list[ForwarderStatistics]:
    """The forwarders of a store, by name. What can't be read is passed over."""
    found = []
    now_ms = SYSTEM_CLOCK.wall_ms()
    channel = directory.channel
    for file in channel.list(directory.forwarders_directory):
        name = _NAME.fullmatch(file)
        if name is None:
            continue
        try:
            data = channel.read_file(directory.forwarders_directory / file, _FILE_BYTES_MAX)
            statistics = _checked(from_checked_json(data, {field.name for field in fields(ForwarderStatistics)}))
            if statistics.name != name[1]:
                continue
            if not channel.is_locked(directory.readers_directory / f"{name[1]}.lock"):
                statistics = replace(statistics, state="stopped", messages_per_second=0.0)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue  # it is just starting, or is none of ours
        found.append(statistics.aged(now_ms))
    return sorted(found, key=lambda one: one.name)


def _checked(values: dict[str, object]) -> ForwarderStatistics:
    for field in fields(ForwarderStatistics):
        default = values[field.name]
        wanted = {"str": str, "int": int, "float": float}[str(field.type)]
        if type(default) is not wanted:
            raise ValueError(f"{field.name}: {default!r:.40}")
    return ForwarderStatistics(**values)  # type: ignore[arg-type]  # checked just now

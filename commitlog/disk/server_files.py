"""The servers of a store, and what their clients have used: `STORE/servers/<id>.json`.

    {"address": "commitlog://127.0.0.1:4433/orders", "pid": 4711,
     "clients": {"billing": {"streams": 1, "calls": 7, "rows_read": 1000, …}}}

Beside it is `<id>.lock`. The server holds it locked, and the kernel frees the lock when the server
dies. So a server in another container is seen as well, where its pid says nothing. What a server
that was killed has left is passed over, and the next one removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.locks import Lock
from commitlog.disk.store_directory import StoreDirectory

_FILE_BYTES_MAX = 1 << 20
_CLIENTS_MAX = 1_000
"""The clients in a file: without tokens, all count as one."""
_NAME = re.compile(r"([0-9a-f]{16})\.lock")


@dataclass
class ClientTraffic:
    """What one client has used of one store since the server was started."""

    streams: int = 0
    """Streams that are open now."""
    calls: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    errors: int = 0


@dataclass(frozen=True)
class ServerStatistics:
    """A server that runs: its URL of the store, the pid of its parent process, and its clients."""

    address: str
    pid: int
    clients: Mapping[str, ClientTraffic]


class ServerFile:
    """The file of one server in one store, until `close`. Making it raises OSError."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._channel, self._folder = directory.channel, directory.servers_directory
        self._channel.create_directory(self._folder, below=directory.path)
        _remove_stale(directory)
        self._lock = Lock(self._channel)
        self._id = os.urandom(8).hex()
        while not self._lock.try_take(self._folder / f"{self._id}.lock"):  # taken for a stale one, just now
            self._id = os.urandom(8).hex()

    def write(self, statistics: ServerStatistics) -> None:
        """Replaces the file. It is not synced: nobody needs it after a crash. Raises OSError."""
        clients = dict(list(statistics.clients.items())[:_CLIENTS_MAX])
        data = to_checked_json({**asdict(statistics), "clients": {name: asdict(use) for name, use in clients.items()}})
        temporary = self._folder / f".{self._id}.tmp"
        with self._channel.opened(temporary, write=True, create=True) as fd:
            self._channel.truncate(fd, 0)
            self._channel.pwrite(fd, data, 0)
        self._channel.rename(temporary, self._folder / f"{self._id}.json")

    @property
    def is_seen(self) -> bool:
        """Whether it is still in the store: another one may be at the path by now, as a backup."""
        return self._channel.is_at(self._lock.fd, self._folder / f"{self._id}.lock")

    def close(self) -> None:
        """Removes it."""
        _remove(self._folder, self._id, self._channel)
        self._lock.close()


def running_servers(directory: StoreDirectory) -> list[ServerStatistics]:
    """The servers of a store that run now. What can't be read is passed over."""
    found = []
    for name in _servers(directory):
        try:
            if not directory.channel.is_locked(directory.servers_directory / f"{name}.lock"):
                continue
            data = directory.channel.read_file(directory.servers_directory / f"{name}.json", _FILE_BYTES_MAX)
            values = from_checked_json(data, ("address", "pid", "clients"))
            clients = {str(client): ClientTraffic(**_counts(use)) for client, use in values["clients"].items()}
            found.append(ServerStatistics(str(values["address"]), int(values["pid"]), clients))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue  # it is just starting or ending, or is none of ours
    return sorted(found, key=lambda server: server.address)


def _counts(use: Mapping[str, object]) -> dict[str, int]:
    if not all(type(count) is int for count in use.values()):
        raise ValueError(f"counts {use}")
    return {name: count for name, count in use.items() if isinstance(count, int)}


def _servers(directory: StoreDirectory) -> Iterator[str]:
    for name in directory.channel.list(directory.servers_directory):
        if found := _NAME.fullmatch(name):
            yield found[1]


def _remove_stale(directory: StoreDirectory) -> None:
    folder, channel = directory.servers_directory, directory.channel
    for name in _servers(directory):
        if not channel.is_locked(folder / f"{name}.lock"):
            _remove(folder, name, channel)


def _remove(folder: Path, name: str, channel: FileChannel) -> None:
    """The lock last: without it the others would never be removed."""
    for file in (f"{name}.json", f".{name}.tmp", f"{name}.lock"):
        with contextlib.suppress(FileNotFoundError):
            channel.unlink(folder / file)

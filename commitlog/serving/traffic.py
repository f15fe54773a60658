"""Who uses a server, and how much: counted in each of its processes."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import asdict, fields

from commitlog.disk.server_files import ClientTraffic


class Traffic:
    """The counts by store and client. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], ClientTraffic] = defaultdict(ClientTraffic)

    def add(self, store: str, client: str, **counts: int) -> None:
        """Adds to the fields of ClientTraffic."""
        with self._lock:
            known = self._counts[store, client]
            for name, count in counts.items():
                setattr(known, name, getattr(known, name) + count)

    def by_store(self) -> dict[str, dict[str, dict[str, int]]]:
        """Store → client → field → count."""
        with self._lock:
            found: dict[str, dict[str, dict[str, int]]] = {}
            for (store, client), counts in self._counts.items():
                found.setdefault(store, {})[client] = asdict(counts)
            return found


def summed(parts: list[dict[str, dict[str, dict[str, int]]]]) -> dict[str, dict[str, dict[str, int]]]:
    """The counts of all processes together."""
    names = [field.name for field in fields(ClientTraffic)]
    found: dict[str, dict[str, dict[str, int]]] = {}
    for part in parts:
        for store, clients in part.items():
            for client, counts in clients.items():
                known = found.setdefault(store, {}).setdefault(client, dict.fromkeys(names, 0))
                for name in names:
                    known[name] += counts.get(name, 0)
    return found

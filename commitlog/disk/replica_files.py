"""The replicas of a store, and how far each has come: `STORE/replicas/<name>.json`.

The HAService writes them each second while something moves, and nobody else. A file stays when its
replica is gone, because retention keeps for a while what the replica still needs. `commitlog
replicas --forget` removes it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DamagedFile, ReplicaRefused
from commitlog.shm.layout import HA_SERVICE

_FILE_BYTES_MAX = 1 << 20
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._:-]{0,99}")


@dataclass
class ReplicaState:
    """One replica, as it was when the HAService looked last.

    - `kind`: "replica" is a copy of this package's, which acknowledges what is durable there;
      "slave" is a RocketMQ slave of one lane, which acknowledges its page cache
    - `sent_bytes_per_second`: between the HAService's last two looks
    - `acknowledged`: lane → how far it has the lane's log
    - `in_sync`: lanes in which it is in sync
    - `behind_since_ms`: wall time since when it lacks what it lacks now; 0 where it has all
    - `seen_ms`: wall time of its last word
    """

    name: str
    kind: str
    store_id: str
    address: str = ""
    connected: bool = False
    connects: int = 0
    sent_bytes: int = 0
    sent_bytes_per_second: float = 0.0
    acknowledged: dict[int, int] = field(default_factory=dict)
    in_sync: list[int] = field(default_factory=list)
    behind_bytes: int = 0
    behind_since_ms: int = 0
    seen_ms: int = 0
    refusal: str = ""
    """Why it was refused last; empty once it is connected."""

    @property
    def state(self) -> str:
        """The state in one word: connected, refused or gone."""
        if self.connected:
            return "connected"
        return "refused" if self.refusal else "gone"

    def behind_ms(self, now_ms: int) -> int:
        """For how long it has lacked what it lacks now, at the wall time `now_ms`."""
        return max(now_ms - self.behind_since_ms, 0) if self.behind_since_ms else 0


def behind_since(known_ms: int, now_ms: int) -> int:
    """The wall time since when something is behind: `known_ms`, or now where that is 0.

    It is now, too, where the clock was set back: else it would be behind for 0 ms for a long time.
    """
    return min(known_ms or now_ms, now_ms)


class Lag:
    """Since when a copy lacks what it lacks now, by looks at the copy and at a log that grows.

    A copy of a busy log lacks something at each look. So a look notes the ends of the log. When the
    copy has reached them, all that it lacks came after that look.
    """

    def __init__(self) -> None:
        self._ends: Mapping[int, int] | None = None
        self._noted_ms = 0

    def since(self, known_ms: int, now_ms: int, ends: Mapping[int, int], have: Mapping[int, int]) -> int:
        """The wall time since when; 0 where the copy has all. `known_ms` is what was said last.

        `ends` has how far the lanes of the log are, and `have` how far those of the copy.
        """
        if not lacking(ends, have):
            self._ends = None
            return 0
        if self._ends is not None and not lacking(self._ends, have):
            known_ms, self._ends = self._noted_ms, None
        if self._ends is None:
            self._ends, self._noted_ms = dict(ends), now_ms
        return behind_since(known_ms, now_ms)


def lacking(ends: Mapping[int, int], have: Mapping[int, int]) -> int:
    """How many bytes up to the ends of lanes a copy lacks that has each up to `have`."""
    return sum(max(end - have.get(lane, 0), 0) for lane, end in ends.items())


class ReplicaFiles:
    """The files of all replicas of a store. Only the HAService writes."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._channel: FileChannel = directory.channel
        self._store, self._folder = directory, directory.replicas_directory

    def names(self) -> list[str]:
        """The names of all replicas that have a file. Raises OSError."""
        found = (name.removesuffix(".json") for name in self._channel.list(self._folder) if name.endswith(".json"))
        return sorted(name for name in found if _NAME.fullmatch(name))

    def load(self, name: str) -> ReplicaState:
        """One replica. Raises DamagedFile, FileNotFoundError, OSError."""
        path = self._folder / f"{name}.json"
        try:
            known = ReplicaState.__dataclass_fields__
            values = from_checked_json(self._channel.read_file(path, _FILE_BYTES_MAX), known)
            values["acknowledged"] = {int(lane): int(where) for lane, where in values["acknowledged"].items()}
            return ReplicaState(**{key: value for key, value in values.items() if key in known})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedFile(
                f"{path}: not a replica's file ({error}); remove it, or `commitlog replicas --forget` it: it gets a new one "
                "when it connects"
            ) from error

    def save(self, state: ReplicaState) -> None:
        """Replaces a replica's file. Raises OSError."""
        self._channel.create_directory(self._folder, below=self._store.path)
        data = to_checked_json(asdict(state), indented=True)
        self._channel.replace_file(self._folder / f"{state.name}.json", data)

    def remove(self, name: str) -> None:
        """Removes a replica's file, durably. Raises OSError."""
        self._channel.unlink(self._folder / f"{name}.json")
        self._channel.sync_directory(self._folder)


def known_replicas(directory: StoreDirectory) -> list[ReplicaState]:
    """All replicas of a store. None of them is connected while no HAService runs.

    A file that can't be read is passed over: the HAService writes it anew. Raises OSError.
    """
    files, found = ReplicaFiles(directory), []
    serves = directory.channel.is_locked(directory.stage_lock_file(HA_SERVICE))
    for name in files.names():
        with contextlib.suppress(DamagedFile, FileNotFoundError):
            state = files.load(name)
            if not serves:
                state.connected, state.in_sync = False, []
            found.append(state)
    return found


def forget_replica(directory: StoreDirectory, name: str) -> None:
    """Removes a replica's file. Raises ReplicaRefused where it has none, or is connected."""
    files, connected = ReplicaFiles(directory), {state.name for state in known_replicas(directory) if state.connected}
    names = files.names()
    if name not in names or name in connected:
        why = "is connected: end it first" if name in names else f"is unknown; there are: {', '.join(names) or 'none'}"
        raise ReplicaRefused(f"replica {name!r} {why}")
    files.remove(name)


def is_replica_name(name: str) -> bool:
    """Whether a replica may have this name: it is the name of a file."""
    return bool(_NAME.fullmatch(name))

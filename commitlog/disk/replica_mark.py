"""The marks of a replica and of a superseded store: `replica.json`, `superseded.json`.

A replica may be read, and only `commitlog replica` writes to it. `commitlog promote` removes the
mark. A store that learns that a replica of it was promoted is superseded: its messages from then on
would be lost, so it stops, and does not start again before `commitlog rejoin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.epochs import number_below
from commitlog.disk.locks import file_locked
from commitlog.disk.replica_files import behind_since
from commitlog.disk.store_directory import StoreDirectory, is_backup
from commitlog.errors import DamagedFile, StoreRefused, StoreSuperseded
from commitlog.text.lines import for_shell

HEARD_MS_END = 253_402_300_800_000
"""The end of the year 9999, as a wall time in ms: behind it, there are no dates."""


@dataclass
class ReplicaMark:
    """The content of `replica.json`.

    - `source`: HOST:PORT of the store that it follows
    - `complete`: whether it has had all that the store had at one moment; then it may be promoted
    - `connected`: whether it follows now
    - `behind_since_ms`: wall time since when it may lack what it lacks now; 0 where it has all
    - `waits_for`: what it waits for before it follows again; empty where nothing is in its way
    - `acknowledged`: lane → how far it has ever acknowledged the lane's log. Whoever changes it
      gives it another dict
    - `heard_ms`: wall time when it heard of the store last, in whole minutes; 0 if not known
    - `promoting`: the epoch that the copy had when a promotion began; −1 where none did. Once
      `store.json` has a later one, this is a store, also where a kill has left the mark
    """

    source: str
    name: str
    complete: bool = False
    connected: bool = False
    behind_bytes: int = 0
    behind_since_ms: int = 0
    waits_for: str = ""
    acknowledged: dict[int, int] = field(default_factory=dict)
    heard_ms: int = 0
    promoting: int = -1

    def note_heard(self, now_ms: int) -> None:
        """Notes that the store has said something, at the wall time `now_ms`."""
        self.heard_ms = now_ms - now_ms % 60_000  # a mark that has changed is written

    def note_acknowledged(self, ends: Mapping[int, int]) -> None:
        """Notes how far lanes were acknowledged."""
        known = self.acknowledged
        if any(end > known.get(lane, 0) for lane, end in ends.items()):
            self.acknowledged = {lane: max(ends.get(lane, 0), known.get(lane, 0)) for lane in {**known, **ends}}

    def part_at(self, ends: Mapping[int, int]) -> None:
        """Notes that a later epoch of the store has of what was before each lane up to `ends`."""
        if any(ends[lane] < end for lane, end in self.acknowledged.items()):
            self.acknowledged = {lane: min(end, ends[lane]) for lane, end in self.acknowledged.items()}

    def note_behind(self, now_ms: int) -> None:
        """Notes that it may lack something, at the wall time `now_ms`."""
        self.behind_since_ms = behind_since(self.behind_since_ms, now_ms)

    def behind_ms(self, now_ms: int) -> int:
        """For how long it may lack what it lacks now, at the wall time `now_ms`."""
        return max(now_ms - self.behind_since_ms, 0) if self.behind_since_ms else 0


def load_mark(directory: StoreDirectory) -> ReplicaMark | None:
    """The mark of a replica; None for a store. Raises DamagedFile, StoreDamaged, OSError."""
    path = directory.replica_file
    try:
        known = ReplicaMark.__dataclass_fields__
        values = from_checked_json(directory.channel.read_file(path), known)
        mark = ReplicaMark(**{key: value for key, value in values.items() if key in known})
        mark.acknowledged = {int(lane): int(end) for lane, end in mark.acknowledged.items()}
        number_below(mark.heard_ms, HEARD_MS_END)
        return mark if mark.promoting < 0 or directory.load().epoch <= mark.promoting else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedFile(
            f"{path}: not the mark of a replica ({error}); rename {directory.path}, and begin anew with `commitlog replica`"
        ) from error


def save_mark(directory: StoreDirectory, mark: ReplicaMark) -> None:
    """Replaces the mark, durably. Raises OSError."""
    data = to_checked_json(asdict(mark), indented=True)
    directory.channel.replace_file(directory.replica_file, data)


def refuse_replica(directory: StoreDirectory) -> None:
    """Raises StoreRefused for a replica: only `commitlog replica` may change it."""
    path = directory.path
    if (mark := load_mark(directory)) is not None:
        raise StoreRefused(
            f"{path} is a replica of {mark.source}, and only `commitlog replica` writes to it: use the store at "
            f"{mark.source}, or make this one a store with `commitlog promote {for_shell(path)}`"
        )


def check_original(directory: StoreDirectory) -> None:
    """Raises StoreRefused for a replica and for a backup: what makes a copy would undo a change.

    And for another user's store: root is another user, too, whose files the owner could not read.
    """
    directory.check_owner()
    refuse_replica(directory)
    if is_backup(directory):
        raise StoreRefused(
            f"{directory.path} is a backup, and the next `commitlog backup` to it would undo this: read it without a name, "
            f"do this in the store itself, or make this one a store with `commitlog run {for_shell(directory.path)} --yes`"
        )


def check_runnable(directory: StoreDirectory) -> None:
    """Raises StoreRefused for a replica, and StoreSuperseded for a store that was superseded."""
    refuse_replica(directory)
    _refuse_superseded(directory)


def check_changeable(directory: StoreDirectory) -> None:
    """Raises what `check_runnable` and `check_original` raise."""
    check_original(directory)
    _refuse_superseded(directory)


def _refuse_superseded(directory: StoreDirectory) -> None:
    if directory.superseded_file.exists():
        raise superseded(directory)


@contextmanager
def changing(directory: StoreDirectory, lock_file: Path) -> Iterator[None]:
    """Holds a lock file of a store for a with-block that changes the store.

    Every change that no stage makes goes through here, so that none of them can forget what
    `check_changeable` refuses. Raises StoreRefused, StoreSuperseded.
    """
    check_changeable(directory)
    with file_locked(lock_file, directory, directory.channel):
        check_changeable(directory)  # it may have become one while this process waited
        yield


def mark_superseded(directory: StoreDirectory, epoch: int, by: str) -> None:
    """Notes durably that a copy of this store was promoted, with `epoch`. Raises OSError."""
    data = to_checked_json({"epoch": epoch, "by": by}, indented=True)
    directory.channel.replace_file(directory.superseded_file, data)


def superseded_by(directory: StoreDirectory) -> str:
    """Which store has superseded this one, in words; empty where none has."""
    try:
        said = from_checked_json(directory.channel.read_file(directory.superseded_file), ("epoch", "by"))
        return f"{said['by']} has epoch {said['epoch']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):  # that it is there says enough
        return "superseded.json says so"


def superseded(directory: StoreDirectory) -> StoreSuperseded:
    """The error of a store that was superseded."""
    return StoreSuperseded(
        f"{directory.path}: a replica of this store was promoted ({superseded_by(directory)}): send to that one, and bring "
        f"this directory back as "
        f"its replica with `commitlog rejoin {for_shell(directory.path)} --from HOST:PORT`"
    )

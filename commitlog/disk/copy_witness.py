"""The witness of a copy: how far it has acknowledged its store, noted outside of its directory.

    $XDG_STATE_HOME/commitlog/copies/<store id>-<name>.json        by default in ~/.local/state

`replica.json` says the same, but it is in the copy. So it is as old as the copy where somebody puts
an older one back, from a snapshot, say. Whoever promotes it must hear what it lacks, also where
the store is gone and can't be asked. The witness is for this machine: one that was put back as a
whole, or another machine, has none that is newer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.epochs import epochs_from_json, is_of_history, number_below, shared_end
from commitlog.disk.replica_mark import HEARD_MS_END, ReplicaMark
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import DamagedFile
from commitlog.shm.layout import LANE_ROWS


@dataclass(frozen=True)
class CopyWitness:
    """The content of the file.

    - `store`, `name`, `path`: the id of the store, what it calls the copy, and the copy's directory
    - `epoch`: the epoch that the copy was in
    - `heard_ms`: wall time when the copy heard of its store last, in whole minutes
    - `acknowledged`: lane → how far it has ever acknowledged the lane's log
    """

    store: str
    name: str
    path: str
    epoch: int
    heard_ms: int
    acknowledged: Mapping[int, int] = field(default_factory=dict)

    def told(self, facts: StoreFacts) -> dict[int, int]:
        """Returns how far a copy with these facts should have each lane.

        What was acknowledged in an earlier epoch counts only as far as the store still has it.
        """
        epochs = epochs_from_json(facts.epochs)
        if self.epoch > facts.epoch:  # the copy is older than that epoch
            return dict(self.acknowledged)
        if not is_of_history(epochs, self.epoch):
            return {}
        return {lane: min(end, shared_end(epochs, self.epoch, lane)) for lane, end in self.acknowledged.items()}


def witness_file(store_id: str, name: str) -> Path:
    """Where the witness of a copy is. Raises NotADirectoryError for a user without a home."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if home.startswith("~"):
        raise NotADirectoryError(errno.ENOTDIR, "this user has no home; set XDG_STATE_HOME", home)
    return Path(home, "commitlog", "copies", f"{store_id}-{name}.json")


def save_witness(directory: StoreDirectory, facts: StoreFacts, mark: ReplicaMark) -> None:
    """Notes durably what a copy has acknowledged. Raises OSError."""
    path, channel = witness_file(facts.id, mark.name), directory.channel
    witness = CopyWitness(facts.id, mark.name, str(directory.path), facts.epoch, mark.heard_ms, mark.acknowledged)
    channel.create_directory(path.parent)
    channel.replace_file(path, to_checked_json(asdict(witness), indented=True))


def load_witness(directory: StoreDirectory, facts: StoreFacts, name: str) -> CopyWitness:
    """What was noted last of a copy. Raises DamagedFile, OSError; FileNotFoundError for nothing."""
    path = witness_file(facts.id, name)
    try:
        known = CopyWitness.__dataclass_fields__
        values = from_checked_json(directory.channel.read_file(path), known)
        witness = CopyWitness(**{key: values[key] for key in known})
        if (witness.store, witness.name) != (facts.id, name):
            raise ValueError(f"it is of copy {witness.name!r:.100} of store {witness.store!r:.40}")
        acknowledged = {
            number_below(int(lane), LANE_ROWS): number_below(end) for lane, end in witness.acknowledged.items()
        }
        epoch, heard_ms = number_below(witness.epoch), number_below(witness.heard_ms, HEARD_MS_END)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFile(
            f"{path}: does not say what a copy has acknowledged ({error}): remove it; the copy writes it anew"
        ) from error
    return CopyWitness(facts.id, name, str(witness.path), epoch, heard_ms, acknowledged)

"""What a copy and a promotion do with the copy's witness (`disk/copy_witness.py`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from commitlog.disk.copy_witness import load_witness, save_witness, witness_file
from commitlog.disk.replica_mark import ReplicaMark
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import DamagedFile
from commitlog.opening import Report


class Witnessing:
    """The witness of a copy that follows. It says once why it can't be used."""

    def __init__(self, directory: StoreDirectory, tell: Callable[[str], None]) -> None:
        self._directory, self._tell = directory, tell
        self._said = ""

    def hear(self, facts: StoreFacts, mark: ReplicaMark) -> None:
        """Adds to the mark what was acknowledged before somebody put this directory here."""
        if not mark.complete:  # it may have rejoined, and is not promoted
            return
        try:
            mark.note_acknowledged(load_witness(self._directory, facts, mark.name).told(facts))
        except FileNotFoundError:
            return
        except (DamagedFile, OSError) as error:
            self._say(error)

    def note(self, facts: StoreFacts, mark: ReplicaMark) -> None:
        """Notes what the copy has acknowledged. The file may be on another disk than the copy."""
        if not mark.complete:
            return
        try:
            save_witness(self._directory, facts, mark)
        except OSError as error:
            self._say(error)

    def _say(self, error: Exception) -> None:
        if self._said != str(error):
            self._said = str(error)
            self._tell(
                f"WARNING: {error}: if an older copy is put back here, `commitlog promote` can't say what it lacks"
            )


def hear_at_promotion(directory: StoreDirectory, facts: StoreFacts, mark: ReplicaMark, report: Report) -> None:
    """Adds to the mark what the copy has acknowledged since this directory was copied.

    It reports whom it has asked, and how old that is: the witness may be old, too.
    """
    try:
        file = witness_file(facts.id, mark.name)
        witness = load_witness(directory, facts, mark.name)
    except FileNotFoundError as error:
        why = f"{error.filename} is not there"
    except (DamagedFile, OSError) as error:
        why = str(error)
    else:
        told = witness.told(facts)
        if told or not witness.acknowledged:
            mark.note_acknowledged(told)
            report(f"{file} says how far {mark.name} had acknowledged until {_minute(witness.heard_ms)}")
            return
        why = f"{file} tells of epoch {witness.epoch}, in which this copy never was"
    report(
        f"nobody could be asked how far {mark.name} had acknowledged ({why}): this directory has heard of {mark.source} "
        f"until {_minute(mark.heard_ms)}; if it is an older copy that was put back, it lacks what came later"
    )


def _minute(wall_ms: int) -> str:
    """A time in this machine's zone, as in `2026-03-01 12:00+01:00`."""
    if not wall_ms:
        return "an unknown time"
    return datetime.fromtimestamp(wall_ms / 1000).astimezone().isoformat(" ", "minutes")

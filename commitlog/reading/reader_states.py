"""The readers of a store that have names, as people see them: how far behind, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReaderError
from commitlog.reading.named_reader import Lag
from commitlog.reading.named_readers import NamedReaders
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import for_shell

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex  # what it needs takes long to import

STANDS_STILL_MS = 86_400_000
"""A reader that is behind and has not moved for this time gets a warning."""


@dataclass(frozen=True)
class ReaderState:
    """A named reader as `commitlog stat` and `commitlog readers` show it."""

    name: str
    running: bool
    """Whether a process reads under the name now."""
    kind: str = ""
    """SPARK, PYTHON or FORWARD; empty if the reader's position can't be read."""
    still_ms: int = 0
    """For how long the reader has not moved."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    lag: Lag | None = None
    warning: str = ""
    host: str = ""
    """The machine of the server's client that reads under the name; empty for a process here."""

    @property
    def behind(self) -> int:
        """How many messages the reader has not read, over all topics and lanes."""
        return sum(sum(lanes.values()) for lanes in (self.lag or {}).values())


def reader_states(index: TopicIndex, clock: Clock = SYSTEM_CLOCK) -> list[ReaderState]:
    """Returns all named readers of the index's store, by name.

    One with a damaged position has a `warning`.
    """
    view = index.view
    readers = NamedReaders(StoreDirectory(view.path), clock)
    found = []
    for name in readers.names():
        running = False
        try:
            running = readers.is_held(name)
            reader = readers.load(name)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ReaderError) as error:
            found.append(
                ReaderState(name, running, warning=f"reader {name}: {error}; until then everything is kept for it")
            )
            continue
        still_ms = reader.still_ms(clock)
        if reader.store_id != view.store_id:
            warning = f"reader {name}: belongs to another store, nothing is kept for it"
            found.append(ReaderState(name, running, reader.kind, still_ms, reader.offsets, {}, warning))
            continue
        lag = reader.lag(index)
        state = ReaderState(name, running, reader.kind, still_ms, reader.offsets, lag, host=reader.host)
        if state.behind and still_ms >= STANDS_STILL_MS:
            warning = (
                f"reader {name} has not moved for {still_ms // 3_600_000:,} hours and keeps what it has not read: start it "
                f"again, or `commitlog readers {for_shell(view.path)} --remove {for_shell(name)}`"
            )
            state = replace(state, warning=warning)
        found.append(state)
    return found

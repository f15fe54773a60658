"""Handles queue offsets that a store uses again, because the messages that had them are lost.

A start keeps the offsets that the consume queues and `ends.json` tell of a damaged part of the log.
If these files are lost too, or are old (after a kill, or in an older copy of a lane), nobody knows
how many messages a topic had. Then new messages get offsets that were used before. A reader whose
position is further would pass over the new messages in silence, so it must be told:

- Spark's checkpoints and forwarders keep the epoch with a position, so an epoch begins.
- Named readers have their positions in the store: those behind a topic's end are lowered to it.

A start knows by a reader that is ahead, too, that all files are of an older copy of the store.

`store.json` has a checksum over the notes of damage of each lane, with the times when they were
written. A start that finds other notes begins an epoch. It makes no difference where the damage is,
and whether a range that was noted before was lost again with an older copy of the lane. Notes are
written anew, too, where consume queues are built anew: the entries of lost messages may be lost
with them. If a start is killed, the next one completes the work.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from commitlog.disk.epochs import Epoch, epochs_from_json, epochs_to_json
from commitlog.disk.quarantine import corruption_notes
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import CommitLogError, ReadingWarning
from commitlog.reading.named_reader import NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex


def damaged_lanes(directory: StoreDirectory) -> dict[int, int]:
    """Returns lane → a checksum over its notes of damage, for lanes with a note.

    The notes' times count, and not what is in them: a note that can't be read counts as any other.
    """
    found: dict[int, int] = {}
    for lane in directory.lane_numbers():
        for start, note in sorted(corruption_notes(directory.lane_directory(lane), directory.channel)):
            stamp = b"%d %d " % (start, os.stat(note).st_mtime_ns)
            found[lane] = zlib.crc32(stamp, found.get(lane, 0))
    return found


def with_epoch(facts: StoreFacts, damaged: Mapping[int, int], control: ControlRegion) -> StoreFacts:
    """Returns the facts, with a new epoch if there is damage that the last start did not know."""
    known = replace(facts, damage=dict(damaged))
    return known if damaged.items() <= facts.damage.items() else begin_epoch(known, control)


def begin_epoch(facts: StoreFacts, control: ControlRegion) -> StoreFacts:
    """Returns the facts, with a new epoch that begins where the lanes end now.

    The new number is the last one plus 1, and no time: so a replica that was promoted meanwhile has
    a later epoch.
    """
    history = epochs_from_json(facts.epochs)
    begun = Epoch(facts.epoch + 1, control.positions(Lane.WROTE))
    return replace(facts, epoch=begun.epoch, epochs=epochs_to_json((*history, begun)))


class AheadReaders:
    """The named readers whose positions are behind the end of a topic.

    `damaged` are the lanes with noted damage. All files of a store may be an older copy, too, but
    for a reader's: then positions in a lane without damage are ahead.
    """

    def __init__(self, directory: StoreDirectory, damaged: Collection[int]) -> None:
        self._readers, self._damaged = NamedReaders(directory), damaged
        self._found: dict[str, NamedReader] = {}
        self._lines: list[str] = []
        self.are_copied = False
        """Whether a position is ahead in a lane without damage."""
        if names := self._readers.names():
            self._look(directory, names)

    def _look(self, directory: StoreDirectory, names: Collection[str]) -> None:
        from commitlog.reading.topic_index import TopicIndex  # starts without readers do without it

        view = StoreView(directory.path, directory.channel)
        try:
            index = TopicIndex(view)
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", ReadingWarning
                )  # they are for readers; the start says what it has mended
                index.refresh()
            for name in names:
                try:
                    self._find(name, index)
                except (CommitLogError, OSError) as error:
                    self._lines.append(f"reader {name}: nobody has looked whether it is ahead of the log: {error}")
        except (CommitLogError, OSError) as error:
            self._lines.append(f"nobody has looked whether readers are ahead of the log: {error}")
        finally:
            view.close()

    def _find(self, name: str, index: TopicIndex) -> None:
        reader = self._readers.load(name)
        offsets = {topic: dict(lanes) for topic, lanes in reader.offsets.items()}
        for topic, lanes in offsets.items():
            ranges = index.ranges(topic)
            for lane in sorted(lanes.keys() & {*self._damaged, *index.lanes}):
                end = ranges[lane].end if lane in ranges else 0
                if lanes[lane] > end:
                    self.are_copied |= lane not in self._damaged
                    why = "whose damaged log ends" if lane in self._damaged else "which is older and ends"
                    self._lines.append(
                        f"reader {name} was at offset {lanes[lane]:,} of topic {topic}, lane {lane}, {why} at {end:,}: it "
                        f"is there now, so that it gets new messages"
                    )
                    lanes[lane] = end
        if offsets != reader.offsets:
            self._found[name] = replace(reader, offsets=offsets)

    def lower(self) -> Iterator[str]:
        """Lowers these positions to the ends. Gives a line for each, and for what can't be read."""
        yield from self._lines
        for name, reader in self._found.items():
            try:
                self._readers.save(reader)
            except (CommitLogError, OSError) as error:
                yield f"reader {name} is ahead of the log, and its position can't be written: {error}"

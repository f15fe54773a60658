"""Notes the damage of a log, and whether the consume queues name all messages that were in it.

Where the log is damaged, only the queues and `ends.json` tell which topics have lost messages. If
they are lost too, or are older than the damaged part, a message may be lost without a trace. Two
counts were made while all was well. Either one proves that no message is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from commitlog.disk.file_channel import FileChannel
from commitlog.disk.quarantine import NotedRange, Quarantine
from commitlog.disk.store_directory import LaneDirectory
from commitlog.disk.topic_ends import TopicEnds
from commitlog.opening.queue_files import LOG_END
from commitlog.reading.log_scan import Gap
from commitlog.reading.queue_bounds import ends_of_queues, total_of_ends


@dataclass
class NamedMessages:
    """The consume queues of a lane, whose log is [first, end), and what was counted of them."""

    lane_directory: LaneDirectory
    first: int
    end: int
    channel: FileChannel
    counted_at: int
    """A log offset: up to here the ends of all queues added up to `counted`."""
    counted: int
    """It is −1 if nobody counted."""
    ends: TopicEnds
    """Where the topics ended at a stop."""

    limit: int = LOG_END
    """No message was behind this offset of the log."""

    def reach(self, where: int) -> bool:
        """Whether the queues name all messages that the log had below offset `where`."""
        where = min(where, self.limit)
        return self._add_up(where) or self._reach_ends(where)

    def _add_up(self, where: int) -> bool:
        return self.counted >= 0 and where <= self.counted_at and self._total == self.counted

    def _reach_ends(self, where: int) -> bool:
        if not where <= self.ends.end <= self.end or self._found is None:
            return False
        return all(self._found.get(topic, 0) >= end for topic, end in self.ends.topics.items())

    @cached_property
    def _total(self) -> int:
        return total_of_ends(self.lane_directory, self.first, self.counted_at, self.channel)

    @cached_property
    def _found(self) -> dict[str, int] | None:
        return ends_of_queues(self.lane_directory, self.first, self.end, self.channel)


def note_damage(
    gaps: Iterable[Gap],
    messages: NamedMessages,
    quarantine: Quarantine,
    *,
    anew: bool,
    unnamed: Collection[NotedRange] = (),
) -> Iterator[str]:
    """Notes damaged ranges durably, and gives a line for each. Raises OSError.

    The queues must have their entries by now. `anew` says that they were built anew. The ranges
    `unnamed` had messages that no queue names, as another store knows that has the same log.
    """
    for gap in gaps:
        reason = gap.reason or "the segment file is missing"
        is_named = messages.reach(gap.end) and not any(noted.overlaps(gap.start, gap.end) for noted in unnamed)
        yield quarantine.note_corruption(gap.file, gap.start, gap.end, reason, is_named=is_named, anew=anew)

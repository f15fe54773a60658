"""The offsets that Spark keeps in a checkpoint.

    {"@store": "<id>", "@from": {…}, "orders": {"0": 42}, …}

Spark compares offsets as strings, so the order of keys is fixed: the store, `@from` if there is
one, topics by name, lanes by number. `@` is illegal in a topic, and users never write it.

`@from` says where queues began that are new in an end offset: all queues at the first start, later
a lane or topic that has appeared. Spark stores an end offset before its batch runs, but it never
stores a first start. So after a crash in the very first batch, the replay would begin wherever
"latest" is by then. `begin_of` believes `@from` before anything else.

A topic with no lanes, `"orders": {}`, was subscribed to and had no message yet. All of its messages
are read, from offset 0 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commitlog.errors import DataLoss, OptionError
from commitlog.reading.starting_point import Offsets

STORE_KEY, FROM_KEY = "@store", "@from"


@dataclass(frozen=True)
class StreamOffset:
    """One offset of a query.

    `ends` has the next queue offset to read, by topic and lane. `begins` is `@from`.
    """

    store: str
    ends: Offsets
    begins: Offsets = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark gets it, with the keys in their fixed order."""
        parts: dict[str, Any] = {STORE_KEY: self.store}
        begins = {topic: lanes for topic, lanes in self.begins.items() if lanes}
        if begins:
            parts[FROM_KEY] = _ordered(begins)
        return parts | _ordered(self.ends)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Reads an offset back from a checkpoint.

        Raises OptionError for an offset that this source has not written.
        """
        try:
            ends = {topic: _numbers(lanes) for topic, lanes in value.items() if not topic.startswith("@")}
            begins = {topic: _numbers(lanes) for topic, lanes in value.get(FROM_KEY, {}).items()}
            return cls(str(value[STORE_KEY]), ends, begins)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise OptionError(
                f"the checkpoint holds an offset that is none of this source ({error!r}); give the query a new checkpoint"
            ) from None

    def check_store(self, store: str, path: str) -> None:
        """Raises DataLoss if the offset belongs to another store than the one at the path now."""
        if self.store != store:
            raise DataLoss(
                f"{path} is another store ({store}) than the one this checkpoint counts in ({self.store}): it was deleted "
                "and made again, or the path changed; give the query a new checkpoint"
            )

    def begin_of(self, start: StreamOffset, topic: str, lane: int) -> int | None:
        """Where the range of a queue begins that ends in this offset.

        None if neither offset says it.
        """
        found = self.begins.get(topic, {}).get(lane)
        return start.ends.get(topic, {}).get(lane) if found is None else found

    def following(self, start: StreamOffset, earliest: Offsets) -> StreamOffset:
        """This end offset with `@from`, for a batch that begins at `start`.

        `@from` has the queues that `start` does not know; `earliest` says where these begin. It
        also has the queues in which nothing was read since `start` named them in its own `@from`.
        """
        begins: Offsets = {}
        for topic, lanes in self.ends.items():
            known, first = start.ends.get(topic, {}), start.begins.get(topic, {})
            new = {lane: earliest[topic][lane] for lane in lanes if lane not in known}
            new |= {lane: known[lane] for lane in lanes if lane in known and first.get(lane) == known[lane]}
            if new:
                begins[topic] = new
        return StreamOffset(self.store, self.ends, begins)


def _ordered(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(lane): lanes[lane] for lane in sorted(lanes)} for topic, lanes in sorted(offsets.items())}


def _numbers(lanes: Mapping[str, Any]) -> dict[int, int]:
    found = {int(lane): offset for lane, offset in lanes.items()}
    if not all(type(offset) is int and offset >= 0 and lane >= 0 for lane, offset in found.items()):
        raise ValueError("an offset is a whole number")
    return found

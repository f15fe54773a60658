"""The offsets that Spark keeps in a checkpoint.

    {"@store": "<id>", "@epoch": 1, "@from": {…}, "orders": {"0": 42}, …}

Spark compares offsets as strings, so the order of keys is fixed: the store, `@epoch` and `@from` if
there are any, topics by name, lanes by number. `@` is illegal in a topic, and users never write it.

`@from` has the begins of queues that are new in an end offset: of all queues in the first batch,
later of a lane or topic that has appeared. Spark stores an end offset before its batch runs, but it
never stores the first start. So without `@from`, a replay after a crash in the very first batch
would begin at the "latest" of that later moment. `begin_of` takes a begin from `@from` first.

`@epoch` is the epoch that the store was in. A later epoch, after the promotion of a replica or the
restore of a backup, may have other messages at offsets that were read.

A topic with no lanes, `"orders": {}`, was subscribed to and had no message yet. All of its messages
are read, from offset 0 on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from commitlog.errors import DataLoss, OptionError, StoreSuperseded
from commitlog.reading.starting_point import Offsets

STORE_KEY, EPOCH_KEY, FROM_KEY = "@store", "@epoch", "@from"


@dataclass(frozen=True)
class StreamOffset:
    """One offset of a query.

    `ends` has the next queue offset to read, by topic and lane. `begins` is `@from`.
    """

    store: str
    ends: Offsets
    begins: Offsets = field(default_factory=dict)
    epoch: int = 0

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark gets it, with the keys in their fixed order."""
        parts: dict[str, Any] = {STORE_KEY: self.store}
        if self.epoch:
            parts[EPOCH_KEY] = self.epoch
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
            return cls(str(value[STORE_KEY]), ends, begins, int(value.get(EPOCH_KEY, 0)))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise _none_of_ours(error) from None

    def check_store(self, store: str, epoch: int, path: str) -> None:
        """Checks that the offset belongs to the store at the path now.

        Raises DataLoss for another store, and StoreSuperseded for an old primary.
        """
        if self.store != store:
            raise DataLoss(
                f"{path} is another store ({store}) than the one this checkpoint counts in ({self.store}): it was deleted "
                "and made again, or the path changed; give the query a new checkpoint"
            )
        if self.epoch > epoch:
            raise StoreSuperseded(
                f"{path} is in epoch {epoch}, and the checkpoint has read epoch {self.epoch} of this store: a replica of "
                "it was promoted, or a backup restored, so give the query the path of that one"
            )

    def back_to(self, shared: Mapping[tuple[str, int], int], epoch: int) -> StreamOffset:
        """Moves the offset to a later epoch, and queues back to the end of `shared` messages.

        `shared` has the queues whose messages are others from that end on. A queue that goes back
        gets a begin in `@from`, so that the next batch begins there.
        """
        ends: Offsets = {topic: dict(lanes) for topic, lanes in self.ends.items()}
        begins: Offsets = {topic: dict(lanes) for topic, lanes in self.begins.items()}
        for (topic, lane), end in shared.items():
            if ends[topic][lane] > end:
                ends[topic][lane] = begins.setdefault(topic, {})[lane] = end
        return StreamOffset(self.store, ends, begins, epoch)

    def begin_of(self, start: StreamOffset, topic: str, lane: int) -> int | None:
        """The begin of a queue's range in the batch from `start` to this offset.

        It comes from this offset's `@from`, otherwise from `start`. None if neither has the queue.
        """
        found = self.begins.get(topic, {}).get(lane)
        return start.ends.get(topic, {}).get(lane) if found is None else found

    def following(self, start: StreamOffset, earliest: Offsets) -> StreamOffset:
        """Returns this end offset with `@from`, for a batch that begins at `start`.

        `@from` gets the queues that `start` does not have, with their begins from `earliest`. It
        keeps the queues of `start`'s own `@from` from which nothing was read since.
        """
        begins: Offsets = {}
        for topic, lanes in self.ends.items():
            known, first = start.ends.get(topic, {}), start.begins.get(topic, {})
            new = {lane: earliest[topic][lane] for lane in lanes if lane not in known}
            new |= {lane: known[lane] for lane in lanes if lane in known and first.get(lane) == known[lane]}
            if new:
                begins[topic] = new
        return replace(self, begins=begins)


def parsed(text: str) -> Any:
    """An offset as Spark's JVM has it, which is text. Raises OptionError where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise _none_of_ours(error) from None


def _none_of_ours(error: Exception) -> OptionError:
    return OptionError(
        f"the checkpoint holds an offset that is none of this source ({error!r}); give the query a new checkpoint"
    )


def _ordered(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(lane): lanes[lane] for lane in sorted(lanes)} for topic, lanes in sorted(offsets.items())}


def _numbers(lanes: Mapping[str, Any]) -> dict[int, int]:
    found = {int(lane): offset for lane, offset in lanes.items()}
    if not all(type(offset) is int and offset >= 0 and lane >= 0 for lane, offset in found.items()):
        raise ValueError("an offset is a whole number")
    return found

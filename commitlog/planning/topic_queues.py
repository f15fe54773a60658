"""The queues of a topic, of which some may be in lanes that are damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commitlog.errors import DamagedFile
from commitlog.reading.queue_range import QueueRange


class TopicQueues(Mapping[int, QueueRange]):
    """Lane → the range of the topic's messages that may be read there.

    A damaged lane that has the topic is among the lanes. Who asks for its queue gets DamagedFile;
    who reads other lanes only does not ask. `sound` has the queues of all other lanes, `damaged`
    the texts of the errors.
    """

    def __init__(self, sound: Mapping[int, QueueRange], damaged: Mapping[int, str]) -> None:
        self.sound, self.damaged = sound, damaged

    def __getitem__(self, lane: int) -> QueueRange:
        if lane in self.damaged:
            raise DamagedFile(self.damaged[lane])
        return self.sound[lane]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self.sound, *self.damaged}))

    def __len__(self) -> int:
        return len({*self.sound, *self.damaged})

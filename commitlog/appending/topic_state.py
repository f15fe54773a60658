"""What a producer keeps about the topics that it has sent to."""

from __future__ import annotations

from typing import NoReturn

from commitlog.appending.appender import Topic
from commitlog.disk.writable_topic import WritableTopic
from commitlog.record.bound_encoder import BoundEncoder, bind
from commitlog.record.record import RecordEncoder


class TopicState(Topic):
    """The facts that a producer keeps about a topic that it has sent to.

    `encode` and `overhead` are for messages without key, headers and tags.
    """

    __slots__ = ("encode", "encoded", "overhead", "writable")
    encoded: bytes
    encode: BoundEncoder
    overhead: int
    writable: WritableTopic

    @classmethod
    def of(cls, encoder: RecordEncoder, topic: WritableTopic, next_offset: int) -> TopicState:
        made = cls(*encoder.template(topic.encoded), next_offset)
        made.writable, made.encoded = topic, topic.encoded
        made.encode, made.overhead = bind(encoder, topic.encoded)
        return made


class NoTopics(dict[str, TopicState]):
    """The topics of a producer that can't be used any more: every look-up raises `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def get(self, *_: object) -> NoReturn:
        raise self._error

"""Which topics may be sent to, and with which messages: every door for messages asks here.

A door that has no store yet asks for the topic's name alone (`check_writable_name`). A door that
has one makes a WritableTopic of it, and a producer keeps nothing of a topic without one. Readers
have rules of their own: they may name any topic that a log can have (`record/topic_names.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from commitlog.disk.schema_versions import schema_versions
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ValuesRefused
from commitlog.record.row_headers import CONTENT_TYPE, CONTENT_TYPE_HEADER, ROWS_HEADER, SCHEMA_HEADER, version_of
from commitlog.record.topic_names import check_topic


def check_writable_name(topic: object) -> bytes:
    """Returns a topic's bytes, if a message may be sent to a topic of this name in any store.

    Raises TopicNotWritable.
    """
    return check_topic(topic)


class WritableTopic:
    """A topic of one store that may be sent to, and what it takes.

    - `name`, `encoded`: its name as text and as bytes
    - `versions`: the versions of its schema at the last look; none if it takes values (bytes)

    `look` asks the store for the versions of a topic. Making one raises TopicNotWritable and what
    `look` raises.
    """

    __slots__ = ("_look", "encoded", "name", "versions")

    def __init__(self, topic: str, look: Callable[[str], Sequence[int]]) -> None:
        self.encoded = check_writable_name(topic)
        self.name = self.encoded.decode()  # not the caller's: a str of a subclass may have a hash of its own
        self._look = look
        self.versions = look(self.name)

    @classmethod
    def of(cls, directory: StoreDirectory, topic: str) -> WritableTopic:
        """The topic of a store of this machine. Raises also StoreRefused, StoreDamaged."""
        return cls(topic, partial(schema_versions, directory))

    def check(self, headers: object) -> None:
        """Raises TopicNotWritable if the topic does not take a message that has these headers.

        A typed topic takes rows of the versions that it has. They may have become more, or fewer,
        since the last look, so this looks again before it refuses.
        """
        if not self.versions:
            return
        version = version_of(headers)
        if version not in self.versions:
            self.versions = self._look(self.name)
            if self.versions and version not in self.versions:
                raise _values_refused(self.name, version)


def _values_refused(topic: str, version: int | None) -> ValuesRefused:
    """The error where a typed topic is sent a value, which no reader of its rows could read."""
    if version is not None:
        return ValuesRefused(
            f"topic {topic} has no version {version} of its schema, which header {SCHEMA_HEADER} names: give the topic the "
            f"schema by store.create_topic, or use send_rows"
        )
    return ValuesRefused(
        f"topic {topic} has a schema, so it takes rows: use send_rows (`commitlog produce --rows`). A value that is an "
        f"Arrow record batch already has headers that say so: {CONTENT_TYPE_HEADER}={CONTENT_TYPE}, {SCHEMA_HEADER}, "
        f"{ROWS_HEADER}"
    )

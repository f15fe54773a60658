"""The schemas of a store's topics: `topics/<topic>/<version>.json`, synced before their first use.

A version never changes. The next one may only grow (`evolution.py`). So a message names the version
that it was written with, and every version can be read as a later one.

The file `topics/<topic>/deleted` says up to which version the schema was deleted. These versions
are no schema of the topic any more. Their files stay, because their numbers are never given out
again: a message that was read before, or is sent late, still means what it meant. (Older packages
wrote the bare number, without a checksum.)
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from commitlog.disk.checked_json import to_checked_json
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.replica_mark import changing, check_changeable
from commitlog.disk.schema_versions import (
    damaged_schema,
    declared_topics,
    schema_refused,
    schema_values,
    schema_versions,
)
from commitlog.disk.store_directory import DELETED_FILE, StoreDirectory
from commitlog.disk.writable_topic import check_writable_name
from commitlog.errors import NoSchema, SchemaConflict, SchemaError, StoreDamaged, StoreTooNew, refusal
from commitlog.record.topic_names import check_topic
from commitlog.schemas.ddl import ddl, ddl_type
from commitlog.schemas.evolution import why_not_grown
from commitlog.schemas.types import stored_fields

FORMAT_VERSION = 1


@dataclass(frozen=True)
class TopicSchema:
    """One version of a topic's schema. Versions count from 1."""

    topic: str
    version: int
    columns: pa.Schema

    def __str__(self) -> str:
        return f"version {self.version}: {ddl(self.columns)}"

    def to_bytes(self) -> bytes:
        """The content of its file: Arrow's own bytes, and the columns for people."""
        columns = [
            {"name": field.name, "type": ddl_type(field.type), "nullable": field.nullable} for field in self.columns
        ]
        arrow = base64.b64encode(self.columns.serialize().to_pybytes()).decode()
        values = {"format": FORMAT_VERSION, "topic": self.topic, "version": self.version, "columns": columns}
        return to_checked_json({**values, "arrow": arrow}, indented=True)

    @classmethod
    def from_bytes(cls, data: bytes, file: Path) -> TopicSchema:
        """Reads the content of a file. Raises StoreTooNew, StoreDamaged."""
        values = schema_values(file, data)
        try:
            if values["format"] > FORMAT_VERSION:
                raise StoreTooNew(f"{file}: format {values['format']}, this package knows {FORMAT_VERSION}: upgrade it")
            columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["arrow"], validate=True)))
            if stored_fields(list(columns)) != list(columns):
                raise ValueError("it has types that no topic has")
            return cls(values["topic"], values["version"], columns)
        except (ValueError, KeyError, TypeError, OSError, SchemaError, pa.ArrowException) as error:
            raise damaged_schema(file, error) from error


class TopicSchemas:
    """The schemas in a store's directory. What was read is kept: a version never changes."""

    def __init__(self, directory: StoreDirectory, channel: FileChannel = DISK) -> None:
        self._directory, self._channel = directory, channel
        self._known: dict[tuple[str, int], TopicSchema] = {}

    def topics(self) -> list[str]:
        """The topics that have a schema. Raises StoreDamaged, StoreRefused."""
        return declared_topics(self._directory, self._channel)

    def _versions(self, topic: str, *, deleted: bool = False) -> list[int]:
        return schema_versions(self._directory, topic, self._channel, deleted=deleted)

    def latest(self, topic: str) -> TopicSchema | None:
        """The newest schema of a topic, or None for a topic of bytes.

        Raises IllegalTopic, StoreDamaged, StoreTooNew, StoreRefused.
        """
        check_topic(topic)
        versions = self._versions(topic)
        return self.version(topic, versions[-1]) if versions else None

    def version(self, topic: str, version: int) -> TopicSchema:
        """One version.

        Raises StoreDamaged where its file is missing or is no schema, StoreTooNew, StoreRefused.
        """
        known = self._known.get((topic, version))
        if known is None:
            file = self._file(topic, version)
            try:
                data = self._channel.read_file(file)
            except FileNotFoundError:
                raise StoreDamaged(
                    f"{file} is missing; without it the rows of topic {topic} can't be read: put it back"
                ) from None
            except OSError as error:
                raise schema_refused(file, error) from error
            known = self._known[topic, version] = TopicSchema.from_bytes(data, file)
        return known

    def is_added_later(self, column: str, schema: TopicSchema) -> bool:
        """Whether a version after this one has a column. Raises what `version` raises."""
        later = (number for number in self._versions(schema.topic, deleted=True) if number > schema.version)
        return any(column in self.version(schema.topic, number).columns.names for number in later)

    def check(self, topic: str) -> None:
        """Reads the versions that count. Raises StoreDamaged, StoreTooNew, StoreRefused."""
        for version in self._versions(topic):
            self.version(topic, version)

    def undeleted(self, topic: str, version: int) -> TopicSchema | None:
        """One version, or None where the topic never had it, or was deleted since.

        Raises IllegalTopic, StoreDamaged, StoreTooNew, StoreRefused.
        """
        check_topic(topic)
        return self.version(topic, version) if version in self._versions(topic) else None

    def required(self, topic: str, instead: str) -> TopicSchema:
        """The newest schema of a topic. Raises NoSchema, whose text says what to do `instead`."""
        found = self.latest(topic)
        if found is None:
            raise no_schema(self._directory.path, topic, instead, self.topics())
        return found

    def _file(self, topic: str, version: int) -> Path:
        return self._directory.topics_directory / topic / f"{version}.json"

    def declare(
        self, topic: str, columns: pa.Schema, *, evolve: bool, used: Callable[[], int] = lambda: 0
    ) -> TopicSchema:
        """Gives a topic a schema, durably, and returns the version that has it.

        The topic may have the same schema already. With `evolve`, one that it has may grow. `used`
        says which version the log's messages have: a new one is above it. Raises
        TopicNotWritable, SchemaConflict, StoreNotFound, StoreRefused, StoreSuperseded,
        StoreDamaged, DiskError.
        """
        check_writable_name(topic)
        self._directory.load()
        check_changeable(self._directory)
        directory = self._directory.topics_directory
        try:
            self._channel.create_directory(directory / topic, below=self._directory.path)
        except OSError as error:
            raise schema_refused(directory, error) from error
        with changing(self._directory, self._directory.topics_lock_file):
            return self._declare(topic, columns, evolve, used)

    def _declare(self, topic: str, columns: pa.Schema, evolve: bool, used: Callable[[], int]) -> TopicSchema:
        latest = self.latest(topic)
        if latest is not None and latest.columns.equals(columns):
            return latest
        if latest is not None:
            _check_change(latest, columns, evolve)
        known = max(self._versions(topic, deleted=True), default=0)
        made = TopicSchema(topic, max(known, used()) + 1, columns)
        self._replace(self._file(topic, made.version), made.to_bytes())
        return made

    def delete(self, topic: str, check_unused: Callable[[], None] = lambda: None) -> None:
        """Takes its schema from a topic, durably. The next one that it is given has a new version.

        `check_unused` is called when nobody finds the schema any more. If it raises, the topic has
        its schema again: a producer may have found it just before. Raises that, IllegalTopic,
        StoreRefused, StoreSuperseded, DiskError.
        """
        check_topic(topic)
        with changing(self._directory, self._directory.topics_lock_file):
            versions, kept = self._versions(topic, deleted=True), self._versions(topic)
            if not versions:
                return
            self._delete_up_to(topic, versions[-1])
            try:
                check_unused()
            except BaseException:
                self._delete_up_to(topic, max(set(versions).difference(kept), default=0))
                raise

    def _delete_up_to(self, topic: str, version: int) -> None:
        file = self._directory.topics_directory / topic / DELETED_FILE
        self._replace(file, to_checked_json({"version": version}))

    def _replace(self, file: Path, data: bytes) -> None:
        try:
            self._channel.replace_file(file, data)
        except OSError as error:
            raise refusal(error, file, "writing it") from error


def no_schema(store: Path | str, topic: str, instead: str, typed: list[str] | None = None) -> NoSchema:
    """The error for a topic of a store that is none of its `typed` ones, and what to do instead.

    None: which topics are typed is not known.
    """
    listed = "" if typed is None else f". Topics that have one: {', '.join(typed) or 'none'}"
    return NoSchema(
        f"{store}: topic {topic} has no schema, so it has values and no rows; {instead}, or give it a schema by "
        f"store.create_topic{listed}"
    )


def _check_change(latest: TopicSchema, columns: pa.Schema, evolve: bool) -> None:
    """Raises SchemaConflict, with both schemas, if these can't be the next version's columns."""
    reason = why_not_grown(latest.columns, columns)
    if reason is None and not evolve:
        reason = "it can grow to the new one: say so in Python, store.create_topic(…, evolve=True)"
    if reason is not None:
        raise SchemaConflict(
            f"topic {latest.topic} has another schema, {reason}. It has {latest}. The new one is {ddl(columns)}"
        )

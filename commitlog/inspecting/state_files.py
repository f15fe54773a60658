"""The small files of a store: which of them can't be believed. Their texts say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from commitlog.disk.copy_witness import load_witness
from commitlog.disk.replica_files import ReplicaFiles
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.schema_versions import names_in, schema_values, schema_versions
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.topic_ends import load_ends
from commitlog.errors import CommitLogError
from commitlog.reading.named_readers import NamedReaders


def damaged_state_files(directory: StoreDirectory) -> list[str]:
    """What is wrong with the named readers, replicas and schemas of a store."""
    found: list[str] = []
    with _noted(found):
        load_mark(directory)
    for files in (NamedReaders(directory), ReplicaFiles(directory)):
        with _noted(found):
            for name in files.names():
                with _noted(found):
                    files.load(name)
    return found + damaged_schemas(directory)


def damaged_schemas(directory: StoreDirectory) -> list[str]:
    """What is wrong with the schemas of a store."""
    found = misplaced_schemas(directory)
    topics = directory.channel.list(directory.topics_directory) if directory.topics_directory.is_dir() else []
    if not topics:
        return found
    from commitlog.schemas.topic_schemas import TopicSchemas  # most stores have none, and Arrow is large

    schemas = TopicSchemas(directory, directory.channel)
    for topic in topics:
        if (directory.topics_directory / topic).is_dir():
            with _noted(found):
                schemas.check(topic)
    return found


def refused_by_checksum(directory: StoreDirectory) -> list[str]:
    """What is wrong with schemas and ends of topics, as far as checksums tell: without Arrow."""
    found, topics = misplaced_schemas(directory), directory.topics_directory
    for topic in directory.channel.list(topics) if topics.is_dir() else ():
        if (topics / topic).is_dir():
            with _noted(found):
                for version in schema_versions(directory, topic, directory.channel):
                    file = topics / topic / f"{version}.json"
                    schema_values(file, directory.channel.read_file(file))
    for number in directory.lane_numbers():
        with _noted(found):
            load_ends(directory.lane_directory(number), "", directory.channel)
    return found


def misplaced_schemas(directory: StoreDirectory) -> list[str]:
    """Names a file in place of the schemas of all topics, or of a topic that has messages.

    Other files among them are somebody's notes.
    """
    found: list[str] = []
    with _noted(found):
        for topic in names_in(directory.topics_directory, directory.channel):
            lanes = map(directory.lane_directory, directory.lane_numbers())
            if any(lane.queue_path(topic).exists() for lane in lanes):
                with _noted(found):
                    names_in(directory.topics_directory / topic, directory.channel)
    return found


def acknowledged_by_copy(directory: StoreDirectory) -> dict[int, int]:
    """Lane → how far a copy of a store has ever acknowledged it. There are none in a store."""
    try:
        mark = load_mark(directory)
        if mark is None:
            return {}
        with suppress(CommitLogError, OSError):
            facts = directory.load()
            mark.note_acknowledged(load_witness(directory, facts, mark.name).told(facts))
    except (CommitLogError, OSError):  # `damaged_state_files` says so
        return {}
    return mark.acknowledged


@contextmanager
def _noted(found: list[str]) -> Iterator[None]:
    """Adds what is wrong to a list. A file that was just removed is not."""
    try:
        yield
    except FileNotFoundError:
        return
    except (CommitLogError, OSError) as error:
        found.append(str(error))

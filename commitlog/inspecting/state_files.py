"""The small files of a store: which of them can't be believed. Their texts say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from commitlog.disk.replica_files import ReplicaFiles
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError
from commitlog.reading.named_readers import NamedReaders


def damaged_state_files(directory: StoreDirectory) -> list[str]:
    """What is wrong with the named readers, replicas and schemas of a store."""
    found = []
    for load in _loads(directory):
        try:
            load()
        except FileNotFoundError:
            continue  # it was just removed
        except (CommitLogError, OSError) as error:
            found.append(str(error))
    return found


def _loads(directory: StoreDirectory) -> Iterator[Callable[[], object]]:
    """A call for each file, which raises what is wrong with it; for each topic one call."""
    yield partial(load_mark, directory)
    for files in (NamedReaders(directory), ReplicaFiles(directory)):
        for name in files.names():
            yield partial(files.load, name)
    topics = directory.channel.list(directory.topics_directory) if directory.topics_directory.is_dir() else []
    if topics:
        from commitlog.schemas.topic_schemas import TopicSchemas  # most stores have none, and Arrow is large

        schemas = TopicSchemas(directory, directory.channel)
        for topic in topics:
            yield partial(schemas.check, topic)

"""Which versions of a topic's schema a store has: the names in `topics/<topic>/`.

It reads no schema, so it needs no Arrow: a producer asks here whether a topic has one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from commitlog.disk.checked_json import from_checked_json
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.disk.store_directory import DELETED_FILE, StoreDirectory
from commitlog.errors import FAULT_BY_ERRNO, CommitLogError, StoreDamaged, StoreRefused, disk_error

_VERSION = re.compile(r"[1-9][0-9]{0,8}")


def schema_versions(
    directory: StoreDirectory, topic: str, channel: FileChannel = DISK, *, deleted: bool = False
) -> list[int]:
    """The versions that the topic has, ascending; with `deleted` those that were deleted, too.

    Raises StoreRefused, StoreDamaged, DiskError.
    """
    names = names_in(directory.topics_directory / topic, channel)
    found = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    least = 0
    if DELETED_FILE in names and not deleted:
        file = directory.topics_directory / topic / DELETED_FILE
        try:
            least = last_deleted(file, channel.read_file(file))
        except OSError as error:
            raise schema_refused(file, error) from error
    return sorted(version for name in found if _VERSION.fullmatch(name) and (version := int(name)) > least)


def declared_topics(directory: StoreDirectory, channel: FileChannel = DISK) -> list[str]:
    """The topics that have a schema, sorted. Raises StoreDamaged, StoreRefused, DiskError."""
    topics = directory.topics_directory
    names = sorted(names_in(topics, channel))
    return [name for name in names if (topics / name).is_dir() and schema_versions(directory, name, channel)]


def names_in(directory: Path, channel: FileChannel) -> list[str]:
    """The names in a directory of schemas. Raises StoreDamaged, StoreRefused, DiskError."""
    try:
        return channel.list(directory)
    except NotADirectoryError:
        place = next(path for path in (directory.parent, directory) if not path.is_dir())
        raise StoreDamaged(
            f"{place} is no directory: nobody knows which topics have schemas; put back the one that was there, or move "
            f"this away"
        ) from None
    except OSError as error:
        raise schema_refused(directory, error) from error


def last_deleted(file: Path, data: bytes) -> int:
    """The last version that was deleted, as the content of its file says. Raises StoreDamaged."""
    try:
        return int(data if data.strip().isdigit() else from_checked_json(data, ("version",))["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(
            f"{file}: does not say which versions were deleted ({error}); remove it, and the topic has its schema again"
        ) from error


def schema_values(file: Path, data: bytes) -> dict[str, Any]:
    """The fields that a schema's file has, checked by its checksum. Raises StoreDamaged."""
    try:
        values = from_checked_json(data, ("format", "topic", "version", "columns", "arrow"))
        if (values["topic"], f"{values['version']}.json") != (file.parent.name, file.name):
            raise ValueError(f"it is version {values['version']} of topic {values['topic']}")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_schema(file, error) from error
    return values


def damaged_schema(file: Path, error: Exception) -> StoreDamaged:
    """The error where the content of a schema's file can't be believed."""
    return StoreDamaged(
        f"{file}: not a schema of ours ({error}); without it the rows of the topic can't be read: put it back"
    )


def schema_refused(path: Path, error: OSError) -> CommitLogError:
    """The error where the system refuses to read a schema, or the names of the versions."""
    if error.errno in FAULT_BY_ERRNO:
        return disk_error(error.errno, f"{path}: reading the topic's schema")
    return StoreRefused(f"{path}: {error.strerror}; check its owner and permissions")

"""A reader of what is accepted, as a program that may be killed at any moment.

`python -m tests.crash.follower STORE NOTES`. It notes a line for each message that it gets, and the
next one goes on behind the last whole line.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import defaultdict
from pathlib import Path

from commitlog.client.reader import Reader
from commitlog.message import Message

Note = tuple[str, int, int, int]
"""Topic, lane, queue offset, and the CRC of value and key."""


def note_of(message: Message) -> Note:
    return message.topic, message.partition, message.offset, zlib.crc32(message.value + repr(message.key).encode())


def read_notes(file: Path) -> list[Note]:
    """The whole lines. A killed program may leave a part of one."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [(topic, *map(int, numbers)) for topic, *numbers in map(str.split, lines)]  # type: ignore[misc]


def main(store: Path, file: Path) -> None:
    starts: dict[str, dict[int, int]] = defaultdict(dict)
    notes = read_notes(file)
    for topic, lane, offset, _ in notes:
        starts[topic][lane] = offset + 1
    with file.open("w") as whole:
        whole.writelines(f"{' '.join(map(str, note))}\n" for note in notes)
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    with Reader(store, isolation="accepted", follow=True, start=starts or "earliest") as reader:
        for message in reader:
            os.write(fd, f"{' '.join(map(str, note_of(message)))}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

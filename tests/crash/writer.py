"""A process that sends until it is killed, and notes elsewhere what was accepted: `python -m tests.crash.writer`.

Arguments: store, notes file, seed, and how many messages to send (0: until killed). A note is one line, written with one
system call after `send` returned: lane, topic, queue offset, physical offset, CRC-32 of the body.
"""

from __future__ import annotations

import os
import random
import sys
import time
import zlib

import commitlog
from commitlog.errors import DiskError, NoBufferAvailable, NoFreeLane, StoreNotFound, StoreNotRunning, StoreStopped

_RETRY_SECONDS = 30.0


def main() -> None:
    path, notes, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    deadline = time.monotonic() + _RETRY_SECONDS
    sent = 0
    while True:
        try:
            with commitlog.Producer(path) as producer:
                while not count or sent < count:
                    deadline = time.monotonic() + _RETRY_SECONDS
                    topic = f"topic-{chance.randrange(3)}"
                    body = chance.randbytes(chance.choice((0, 10, 100, 1000, 5000)))
                    receipt = producer.send(topic, body, key=str(sent))
                    note = f"{producer.lane} {topic} {receipt.offset} {receipt.physical_offset} {zlib.crc32(body)}\n"
                    os.write(fd, note.encode())
                    sent += 1
                producer.flush()
            return
        except (StoreNotRunning, StoreStopped, StoreNotFound, NoBufferAvailable, NoFreeLane, DiskError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    main()

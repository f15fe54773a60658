"""Consume queues that stay open between calls, within a limit.

There is a limit because a lane may have more topics than a process has descriptors.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from commitlog.disk.consume_queue import FILE_BYTES, ConsumeQueue
from commitlog.disk.file_channel import FileChannel

_OPEN_MOST = 256
_OTHER_DESCRIPTORS = 24
"""Descriptors that a process of ours has open besides its queues."""


def open_most(wanted: int = sys.maxsize) -> int:
    """How many queues a process may have open: `wanted`, or fewer where it has few descriptors.

    Queues get half of the limit without the other descriptors, because a queue may have two files
    open, and lanes have their segments open.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if limit == resource.RLIM_INFINITY else max(min(wanted, limit // 2 - _OTHER_DESCRIPTORS), 1)


class OpenQueues:
    """At most 256 open queues, by directory; fewer where the process has few descriptors.

    When one more is asked for, all of them are synced and closed. For `file_bytes`, see
    ConsumeQueue.
    """

    def __init__(self, channel: FileChannel, file_bytes: int = FILE_BYTES) -> None:
        self._channel, self._file_bytes = channel, file_bytes
        self._queues: dict[Path, ConsumeQueue] = {}
        self._named: set[Path] = set()
        self._most = open_most(_OPEN_MOST)

    def get(self, directory: Path) -> ConsumeQueue:
        """The queue at `directory`, opened if it is not open. Raises OSError where a sync fails."""
        queue = self._queues.get(directory)
        if queue is None:
            if len(self._queues) >= self._most:
                self.sync()
                self.close()
            queue = self._queues[directory] = ConsumeQueue(directory, self._file_bytes, self._channel, self._named)
        return queue

    def sync(self) -> None:
        """Makes everything durable that was placed in the queues that are open. Raises OSError."""
        for queue in self._queues.values():
            queue.sync()

    def close(self) -> None:
        """Closes the queues that are open, whatever else happened."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()

"""Consume queues that stay open between calls, within a limit.

There is a limit because a lane may have more topics than a process has descriptors.
"""

from __future__ import annotations

from pathlib import Path

from commitlog.disk.consume_queue import FILE_BYTES, ConsumeQueue
from commitlog.disk.file_channel import FileChannel

_OPEN_MOST = 256


class OpenQueues:
    """At most 256 open queues, by directory.

    When one more is asked for, all of them are synced and closed. For `file_bytes`, see
    ConsumeQueue.
    """

    def __init__(self, channel: FileChannel, file_bytes: int = FILE_BYTES) -> None:
        self._channel, self._file_bytes = channel, file_bytes
        self._queues: dict[Path, ConsumeQueue] = {}
        self._named: set[Path] = set()

    def get(self, directory: Path) -> ConsumeQueue:
        """The queue at `directory`, opened if it is not open. Raises OSError where a sync fails."""
        queue = self._queues.get(directory)
        if queue is None:
            if len(self._queues) >= _OPEN_MOST:
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

"""A producer of a replicated store, which is killed now and then with all the rest."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import commitlog
from commitlog.errors import CommitLogError


class Sender:
    """Sends messages that are all different, in a thread, until `end` or until the store ends.

    It notes those that are accepted, and those that are replicated.
    """

    def __init__(self, path: Path, seed: int, accepted: list[bytes], replicated: list[bytes]) -> None:
        self._path, self._random = path, random.Random(seed)
        self._accepted, self._replicated = accepted, replicated
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        with contextlib.suppress(CommitLogError), commitlog.Producer(self._path) as producer:
            while not self._end.is_set():
                values = [b"%d|" % self._random.getrandbits(64) * self._random.randrange(1, 30) for _ in range(20)]
                for value in values:
                    receipt = producer.send("orders", value)
                    self._accepted.append(value)
                with contextlib.suppress(CommitLogError):
                    receipt.wait("replicated", timeout=0.5)
                    self._replicated += values

    def end(self) -> None:
        self._end.set()
        self._thread.join()

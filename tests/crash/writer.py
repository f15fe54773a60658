"""`python -m tests.crash.writer`: sends until it is killed, and notes what was accepted.

Arguments: store, notes file, seed, how many messages a plain writer sends (0: until it is killed),
and a kind, the way in which a program gets its producers. A note is one line, written with one
system call after `send` returned: lane, topic, queue offset, physical offset, CRC-32 of the body.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable

import commitlog
from commitlog.errors import (
    DiskError,
    NoBufferAvailable,
    NoFreeLane,
    NotEnoughSharedMemory,
    StoreNotFound,
    StoreNotRunning,
    StoreStopped,
    WaitTimeout,
)

_RETRY_SECONDS = 90.0
_CHILDS_MESSAGES = 60
_PASSING = (
    StoreNotRunning,
    StoreStopped,
    StoreNotFound,
    NoBufferAvailable,
    NoFreeLane,
    NotEnoughSharedMemory,
    DiskError,
    WaitTimeout,
)
"""Errors of a store that was killed, is full, or starts again: then a new producer is made."""


class Writer:
    """Sends random messages to a store in one thread, and notes them."""

    def __init__(self, path: str, notes: str, seed: int) -> None:
        self.path, self._notes, self._chance = path, notes, random.Random(seed)
        self._fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.sent = 0
        self._deadline = time.monotonic() + _RETRY_SECONDS

    def send(self, producer: commitlog.Producer) -> commitlog.Receipt:
        """Sends one message and notes it."""
        topic = f"topic-{self._chance.randrange(3)}"
        body = self._chance.randbytes(self._chance.choice((0, 10, 100, 1000, 5000)))
        receipt = producer.send(topic, body, key=str(self.sent))
        note = f"{producer.lane} {topic} {receipt.offset} {receipt.physical_offset} {zlib.crc32(body)}\n"
        os.write(self._fd, note.encode())
        self.sent += 1
        self._deadline = time.monotonic() + _RETRY_SECONDS
        return receipt

    def again(self, use: Callable[[commitlog.Producer], None]) -> None:
        """Makes a producer and uses it.

        After an error that passes, it tries with a new producer for half a minute.
        """
        while True:
            try:
                with commitlog.Producer(self.path) as producer:
                    use(producer)
                return
            except _PASSING:
                if time.monotonic() > self._deadline:
                    raise
                time.sleep(0.01)

    def plain(self, count: int) -> None:
        """Sends `count` messages; 0: for ever."""

        def use(producer: commitlog.Producer) -> None:
            while not count or self.sent < count:
                self.send(producer)
            producer.flush()

        self.again(use)

    def awaiting(self) -> None:
        """Sends some messages at a time, for ever, and awaits each of them."""

        async def send_and_await(producer: commitlog.Producer) -> None:
            while True:
                receipts = [self.send(producer) for _ in range(self._chance.randrange(1, 20))]
                for receipt in receipts:
                    if (await receipt).name == "PUT_OK":
                        assert receipt.done("flushed")

        self.again(lambda producer: asyncio.run(send_and_await(producer)))

    def with_children(self, how: str) -> None:
        """Sends for ever, beside children that have producers of their own."""
        context = multiprocessing.get_context("fork") if how == "fork" else multiprocessing.get_context("spawn")

        def use(producer: commitlog.Producer) -> None:
            while True:
                self.send(producer)
                child = context.Process(target=_child, args=(self.path, self._notes, self._chance.randrange(1 << 30)))
                child.start()
                while child.is_alive():
                    self.send(producer)
                child.join()
                assert child.exitcode == 0, f"a {how} child ended with {child.exitcode}"

        self.again(use)


def _child(path: str, notes: str, seed: int) -> None:
    Writer(path, notes, seed).plain(_CHILDS_MESSAGES)


def _in_threads(path: str, notes: str, seed: int) -> None:
    """Two threads, each with its own producers."""

    def send_on(number: int) -> None:
        try:
            Writer(path, notes, seed + number).plain(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=send_on, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


KINDS = ("plain", "threads", "fork", "spawn", "asyncio")


def main() -> None:
    path, notes, seed, count, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    if kind == "threads":
        _in_threads(path, notes, seed)
        return
    writer = Writer(path, notes, seed)
    if kind == "plain":
        writer.plain(count)
    elif kind == "asyncio":
        writer.awaiting()
    else:
        writer.with_children(kind)


if __name__ == "__main__":
    main()

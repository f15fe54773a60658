"""A process that reads for a test, by the native core or by Python's: tests compare what both find.

`ReadingProcess` is the test's side. The other side is this file as a program.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

Found = tuple[list[Any], str, list[str]]
"""What was read, the class and text of the error that ended it, and those of the warnings."""


class ReadingProcess:
    """One reader at a time, in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, *command: Any) -> Found:
        self.begin(*command)
        return self.answer()

    def begin(self, *command: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(command, self._process.stdin)
        self._process.stdin.flush()

    def answer(self) -> Found:
        assert self._process.stdout is not None
        found: Found = pickle.load(self._process.stdout)
        return found


@contextmanager
def reading_process(native: str) -> Iterator[ReadingProcess]:
    """Within it a process reads; `native` is its COMMITLOG_NATIVE."""
    environment = {**os.environ, "COMMITLOG_NATIVE": native}
    words = [sys.executable, "-P", __file__]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield ReadingProcess(process)


def _main() -> None:
    import commitlog
    from commitlog.errors import CommitLogError
    from commitlog.message import Message
    from commitlog.reading import topic_index

    topic_index.STOPPED_REREAD_NS = 0  # both find what is there, however late one of them is
    names = [field.name for field in dataclasses.fields(Message)]
    readers: list[commitlog.Reader] = []

    def fields_of(message: Any) -> tuple[Any, ...]:
        return tuple(getattr(message, name) for name in names)

    def polled(most: int) -> Iterator[Any]:
        nothing = 0
        while most and nothing < 20:
            message = readers[0].poll(0)
            nothing = nothing + 1 if message is None else 0
            if message is not None:
                most -= 1
                yield fields_of(message)

    def batched(most: int) -> Iterator[Any]:
        for messages in islice(readers[0].batches(most, timeout=0), 3):
            yield [fields_of(message) for message in messages]

    def opened(path: Path, options: dict[str, Any]) -> Iterator[Any]:
        readers.append(commitlog.Reader(path, **options))
        return iter(())

    def closed() -> Iterator[Any]:
        while readers:
            readers.pop().close()
        return iter(())

    answers: dict[str, Callable[..., Iterator[Any]]] = {
        "open": opened,
        "close": closed,
        "poll": polled,
        "batch": batched,
        "next": lambda most: map(fields_of, islice(readers[0], most)),
        "values": lambda: ([bytes(value) for value in values] for values in readers[0].value_lists()),
    }
    while True:
        try:
            name, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        found: list[Any] = []
        failure = ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if name in ("open", "close") or readers:
                    found.extend(answers[name](*arguments))
            except CommitLogError as error:
                failure = f"{type(error).__name__}: {error}"
        pickle.dump((found, failure, [str(warning.message) for warning in caught]), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()

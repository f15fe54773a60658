"""`python -m tests.crash.dying_writer STORE NOTES WAY`: producers that die inside `send`.

Each is a forked child of its own, and notes what was accepted, as writer.py does. WAY is `lines`:
at every third line of the producer's module that is run; or `points`: at each of FAILPOINTS, which
a native core with the feature `failpoints` has. Prints how many died.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from commitlog.client import producer as producer_module  # here, so that not every child loads it

FAILPOINTS = ("encoded", "wrote", "messages", "next_offset")
TURNS = (1, 2, 3)
"""The how manieth time that a failpoint is reached."""


def _die_at(line: int) -> None:
    """Kills this process at the n-th line of the producer's module."""
    file, seen = producer_module.__file__, 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def _dies(path: str, notes: str, body: bytes, prepare: Callable[[], None]) -> bool:
    """Sends larger and larger messages in a forked child, some across segments.

    False when the child got to the end.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            producer = producer_module.Producer(path)
            fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            prepare()
            for number in range(60_000 // len(body)):
                value = body + body[:1] * number
                receipt = producer.send("t", value)
                note = f"{producer.lane} t {receipt.offset} {receipt.physical_offset} {zlib.crc32(value)}\n"
                os.write(fd, note.encode())
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def main() -> None:
    path, notes, way = sys.argv[1:]
    deaths = 0
    if way == "lines":
        while _dies(path, notes, bytes([deaths % 256]) * 14_000, partial(_die_at, 1 + 3 * deaths)):
            deaths += 1
    else:
        for point in FAILPOINTS:
            for turn in TURNS:
                wish = {"COMMITLOG_FAILPOINT": f"{point}:{turn}"}
                deaths += _dies(path, notes, point.encode() * 1000, partial(os.environ.update, wish))
    print(deaths)


if __name__ == "__main__":
    main()
